"""Flows in processes of their own that are stopped or killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest
from prefect.settings import PREFECT_API_URL

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterState
from ipcluster_core.process import tagged

SCOPED = """
    import time
    from prefect import flow
    from prefect_ipcluster import cluster

    @flow
    def scoped():
        with cluster("doomed", n=2):
            print("ready", flush=True)
            time.sleep(60)

    scoped()
"""

SCOPED_ASYNC = """
    import asyncio
    from prefect import flow
    from prefect_ipcluster import acluster

    @flow
    async def scoped():
        async with acluster("doomed", n=2):
            print("ready", flush=True)
            await asyncio.sleep(60)

    asyncio.run(scoped())
"""

#: Its task is in a thread, and busy on an engine.
SCOPED_BUSY = """
    import time
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from ipcluster_core import Client
    from prefect_ipcluster import cluster

    @task(cache_policy=NO_CACHE)
    def busy(handle):
        with Client.connect(handle) as client:
            future = client.submit(time.sleep, 60)
            print("ready", flush=True)
            future.result()

    @flow
    def scoped():
        with cluster("doomed", n=2) as handle:
            busy.submit(handle).wait()

    scoped()
"""

SHARED = """
    import time
    from prefect import flow
    from prefect_ipcluster import create_cluster

    @flow
    def shared():
        create_cluster("lasting", n=2)
        print("ready", flush=True)
        time.sleep(60)

    shared()
"""


@pytest.fixture(autouse=True)
def server_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the processes that a test starts the API server of this one."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())


def stop(process: subprocess.Popen[str], *signals: signal.Signals) -> int:
    """Signal a flow that is at work, and return its exit code."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for signum in signals:
        process.send_signal(signum)
    return process.wait(20)


def wait_until_nothing_is_left(name: str) -> str:
    """Wait for a cluster's end, a bounded time; return the reason in its record."""
    steps.wait_until(lambda: ClusterManager().get_sync(name).state is ClusterState.ENDED, timeout=5)
    record = steps.record_of(name)
    steps.wait_until(lambda: not tagged(record.tag), timeout=5)
    assert not pathlib.Path(record.folder).exists()
    assert record.ended is not None
    return record.ended.reason


@pytest.mark.parametrize("code", [SCOPED, SCOPED_ASYNC, SCOPED_BUSY], ids=["sync", "async", "busy"])
def test_a_flow_that_is_told_to_stop_ends_its_cluster(code: str) -> None:
    """SIGTERM, as Prefect's runners and workers send it: the block is left, and the end is its own."""
    with steps.started_step(code) as process:
        assert stop(process, signal.SIGTERM) != 0

        assert wait_until_nothing_is_left("doomed") == "torn down"


def test_a_flow_that_is_interrupted_ends_its_cluster() -> None:
    """Ctrl-C."""
    with steps.started_step(SCOPED) as process:
        stop(process, signal.SIGINT)

        assert wait_until_nothing_is_left("doomed") == "torn down"


def test_a_flow_that_is_told_twice_ends_its_cluster() -> None:
    """A second signal may interrupt the wait, not the end."""
    with steps.started_step(SCOPED) as process:
        stop(process, signal.SIGTERM, signal.SIGTERM)

        wait_until_nothing_is_left("doomed")


def test_a_flow_that_is_killed_takes_its_cluster_along() -> None:
    """The cluster of a block watches the flow's process: no clean-up code needs to run."""
    with steps.started_step(SCOPED_BUSY) as process:
        stop(process, signal.SIGKILL)

        assert wait_until_nothing_is_left("doomed") == "the process whose with-block owned it is gone"


def test_a_shared_cluster_outlives_the_flow_that_made_it() -> None:
    """That is what it is for: another step finds it, and ends it."""
    with steps.started_step(SHARED) as process:
        stop(process, signal.SIGKILL)

    with Client.connect("lasting") as client:
        assert len(client.run(os.getpid)) == 2
    assert Cluster.connect_sync("lasting").teardown_sync(force=True).outcome == "ended"
    assert wait_until_nothing_is_left("lasting").startswith("torn down; it was in use by: prefect-")
