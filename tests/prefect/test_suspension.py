"""A flow run that is suspended keeps the cluster of its block, and finds it when it is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow, flow, suspend_flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.flow_runs import resume_flow_run
from prefect.states import Pending

import steps
from ipcluster_core import Cluster, ClusterHandle, ClusterManager, ClusterState
from prefect_ipcluster import acluster, cluster


@pytest.fixture(autouse=True)
def nothing_kept(store_url: str) -> Iterator[None]:
    """End what a failed test has kept."""
    yield
    for one in ClusterManager().list_sync():
        ClusterManager().teardown_sync(one.name, force=True)


class Run:
    """A run of a deployment, carried out in this process as its worker would in another one."""

    def __init__(self, function: Flow[..., Any]) -> None:
        self._flow = function
        with get_client(sync_client=True) as client:
            deployment = client.create_deployment(client.create_flow(function), function.name)
            self.id = client.create_flow_run_from_deployment(deployment).id

    def go(self) -> Any:  # noqa: ANN401 - whatever the flow returns
        """Carry the run out until it is suspended or over."""
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, Pending())
            flow_run = client.read_flow_run(self.id)
        done: Any = run_flow(self._flow, flow_run=flow_run)
        return asyncio.run(done) if self._flow.isasync else done

    def suspend(self) -> None:
        """Carry the run out until it is suspended."""
        with pytest.raises(Pause):
            self.go()

    def resume(self) -> Any:  # noqa: ANN401 - whatever the flow returns
        """Resume the run, and carry it out."""
        resume_flow_run(self.id)
        return self.go()


def claims_of(name: str) -> list[str]:
    """Return who uses a cluster."""
    return sorted(steps.record_of(name).claims)


def test_a_suspended_run_finds_its_cluster_again(run_log: list[str]) -> None:
    """The same incarnation; marked meanwhile, and ended by the block in the end."""
    seen: list[ClusterHandle] = []

    @flow(name="suspending")
    def suspending() -> str:
        with cluster("paused", n=1) as handle:
            seen.append(handle)
            suspend_flow_run(timeout=600)
        return "done"

    run = Run(suspending)
    run.suspend()
    meanwhile = ClusterManager().get_sync("paused").state, claims_of("paused")
    result = run.resume()

    claim = f"prefect-{run.id}"
    assert meanwhile == (ClusterState.RUNNING, [claim, f"{claim}-suspended"])
    assert result == "done"
    assert seen[0] == seen[1]
    assert ClusterManager().get_sync("paused").state is ClusterState.ENDED
    assert "cluster 'paused' is kept while the run is suspended, but for its limits" in run_log


def test_an_async_run_finds_its_cluster_again() -> None:
    """As a sync one."""
    seen: list[ClusterHandle] = []

    @flow(name="async suspending")
    async def suspending() -> str:
        async with acluster("apaused", n=0) as handle:
            seen.append(handle)
            await suspend_flow_run(timeout=600)  # type: ignore[misc]
        return "done"

    run = Run(suspending)
    run.suspend()
    meanwhile = ClusterManager().get_sync("apaused").state
    result = run.resume()

    assert meanwhile is ClusterState.RUNNING
    assert (result, seen[0]) == ("done", seen[1])
    assert ClusterManager().get_sync("apaused").state is ClusterState.ENDED


def test_a_run_that_is_resumed_too_late_makes_a_new_cluster() -> None:
    """Its limits go on while it is suspended."""
    seen: list[ClusterHandle] = []

    @flow(name="late")
    def late() -> None:
        with cluster("late", n=0, idle_timeout=1.0) as handle:
            seen.append(handle)
            suspend_flow_run(timeout=600)

    run = Run(late)
    run.suspend()
    steps.wait_until(lambda: ClusterManager().get_sync("late").state is ClusterState.ENDED, 30)
    run.resume()

    assert [handle.incarnation for handle in seen] == [1, 2]


def test_a_run_need_not_keep_its_cluster() -> None:
    """Then the block ends it, and makes another one later."""
    seen: list[ClusterHandle] = []

    @flow(name="tidy")
    def tidy() -> None:
        with cluster("tidy", n=0, keep_on_suspend=False) as handle:
            seen.append(handle)
            suspend_flow_run(timeout=600)

    run = Run(tidy)
    run.suspend()
    meanwhile = ClusterManager().get_sync("tidy").state
    run.resume()

    assert meanwhile is ClusterState.ENDED
    assert [handle.incarnation for handle in seen] == [1, 2]


def test_a_cluster_that_cannot_be_kept_is_ended(monkeypatch: pytest.MonkeyPatch, run_log: list[str]) -> None:
    """It would be nobody's."""
    from ipcluster_core.errors import ClusterTimeout

    @flow(name="unkept")
    def unkept() -> None:
        with cluster("unkept", n=0):
            suspend_flow_run(timeout=600)

    def late(self: Cluster) -> None:
        raise ClusterTimeout("no answer")

    run = Run(unkept)
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "disown_sync", late)
        run.suspend()

    assert ClusterManager().get_sync("unkept").state is ClusterState.ENDED
    assert "cluster 'unkept' is not kept while the run is suspended: no answer" in run_log
