"""User code that must pass the type checkers as it stands; it is checked, not run."""

from __future__ import annotations

from prefect import flow, task

from ipcluster_core import ClusterSpec
from prefect_ipcluster import IPClusterFuture, IPClusterTaskRunner, cluster, tasks_on


@task
def length(text: str) -> int:
    """Return a length."""
    return len(text)


@flow(task_runner=IPClusterTaskRunner("nightly", store="file:/clusters", retries_on_engine_loss=1))
def by_name() -> int:
    """Use a cluster that is there."""
    return length.submit("text").result()


@flow(task_runner=IPClusterTaskRunner(spec=ClusterSpec(n=4)))
def own() -> list[int]:
    """Use a cluster of its own."""
    return length.map(["a", "b"]).result()


@flow
def block() -> bool:
    """Use a cluster in a block."""
    with cluster(n=2) as handle, tasks_on(handle) as runner:
        future = length.submit("text")
        runner.wait()
        return isinstance(future, IPClusterFuture) and future.cancel()


@flow
async def async_block() -> int:
    """Use a cluster in an async flow."""
    async with tasks_on(n=2):
        return length.submit("text").result()
