"""The flows of the matrix: the same work in a cluster of a block, and in one of steps whose end is seen to by hooks.

Run directly (``run STYLE CASE FOLDER``), served (``serve``), or deployed to a worker, by `matrix`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from prefect import flow, serve, suspend_flow_run, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from ipcluster_core import Client, ClusterHandle
from prefect_ipcluster import cluster, create_cluster, with_teardown

#: Seconds for which an engine is busy while something happens to the flow; less where nobody stops it.
BUSY = {"cancelled": 6.0}

#: Seconds without a client after which the cluster of steps ends: it is what covers a direct run that is killed.
LIMIT = 4.0


@task(cache_policy=NO_CACHE)
def fail(handle: ClusterHandle) -> None:
    """Fail on an engine."""
    with Client.connect(handle) as client:
        client.submit(int, "not a number").result()


@task(cache_policy=NO_CACHE)
def work(handle: ClusterHandle, folder: str, seconds: float) -> None:
    """Keep an engine busy, and say so."""
    with Client.connect(handle) as client:
        future = client.submit(time.sleep, seconds)
        Path(folder, "busy").touch()
        future.result()


def act(handle: ClusterHandle, case: str, folder: str) -> None:
    """Say who is at work, and do what the case is about."""
    about = {"pid": os.getpid(), "run": str(flow_run.id), "cluster": handle.model_dump()}
    Path(folder, "new").write_text(json.dumps(about))
    Path(folder, "new").rename(Path(folder, "about"))
    if case == "task failure":
        fail(handle)
    if case == "flow exception":
        raise RuntimeError("on purpose")
    if case == "suspend, resume":
        suspend_flow_run(timeout=300)
        return
    # In a thread: what waits there must not hold up the end of the flow.
    work.submit(handle, folder, BUSY.get(case, 120.0)).wait()


def limit_of(case: str) -> float | None:
    """Return the limit of a cluster of steps: none while its run is suspended."""
    return None if case.startswith("suspend") else LIMIT


@flow
def block(case: str, folder: str) -> None:
    """Work in a cluster that ends with its block."""
    with cluster(n=1) as handle:
        act(handle, case, folder)


@flow(timeout_seconds=6)
def block_limited(case: str, folder: str) -> None:
    """Take too long for it."""
    with cluster(n=1) as handle:
        act(handle, case, folder)


@with_teardown
@flow
def steps(case: str, folder: str) -> None:
    """Work on a cluster that is made by a step, and given up by the flow's hooks."""
    act(create_cluster(n=1, no_client_timeout=limit_of(case)), case, folder)


@with_teardown
@flow(timeout_seconds=6)
def steps_limited(case: str, folder: str) -> None:
    """Take too long for it."""
    act(create_cluster(n=1, no_client_timeout=limit_of(case)), case, folder)


FLOWS = {flow.name: flow for flow in (block, block_limited, steps, steps_limited)}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        deployments: list[Any] = [one.to_deployment("served") for one in FLOWS.values()]
        serve(*deployments, pause_on_shutdown=False)
    else:
        _, name, case, folder = sys.argv[1:]
        FLOWS[name](case, folder)
