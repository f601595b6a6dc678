"""A cluster made for a ``with`` block of a flow ends with the block, however that is left."""

from __future__ import annotations

import asyncio
import os
import pathlib
import time

import pytest
from prefect import State, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings

import steps
from ipcluster_core import Client, Cluster, ClusterHandle, ClusterManager, ClusterState, errors, open_store
from ipcluster_core.process import tagged
from prefect_ipcluster import acluster, cluster, teardown_cluster

LIMITS = "ends by itself: idle timeout in 30 min, lifetime in 24 h"


@task(cache_policy=NO_CACHE)
def use(handle: ClusterHandle) -> int:
    """Use the cluster."""
    with Client.connect(handle) as client:
        return len(client.run(os.getpid))


@task(cache_policy=NO_CACHE)
def fail(handle: ClusterHandle) -> None:
    """Fail on an engine, while another one is busy."""
    with Client.connect(handle) as client:
        client.submit(time.sleep, 60)
        client.submit(int, "not a number").result()


def nothing_is_left_of(name: str) -> bool:
    """Tell whether a cluster has ended, and neither process, socket, log nor secret is left."""
    record = steps.record_of(name)
    assert record.state is ClusterState.ENDED
    return not tagged(record.tag) and not pathlib.Path(record.folder).exists() and not list(open_store().keys("secret"))


def test_a_flows_cluster_ends_with_its_block(run_log: list[str]) -> None:
    """It is watched by the flow's process, named after the run, and gone before the flow goes on."""

    @flow
    def scoped() -> tuple[ClusterHandle, int, bool]:
        with cluster(n=2) as handle:
            engines = use(handle)
        return handle, engines, nothing_is_left_of(handle.name)

    handle, engines, gone = scoped()

    assert handle.name.startswith("scoped-")
    assert (engines, gone) == (2, True)
    assert run_log == [
        f"creating cluster '{handle.name}' with 2 engines",
        f"cluster '{handle.name}' #1 is running with 2 engines up; {LIMITS}",
        f"cluster '{handle.name}' #1 ended",
    ]


def test_a_flow_that_raises_leaves_nothing() -> None:
    """The flow's own error is what it fails with."""

    @flow
    def raising() -> None:
        with cluster("raising", n=2):
            raise ZeroDivisionError("in the block")

    with pytest.raises(ZeroDivisionError, match="in the block"):
        raising()
    assert nothing_is_left_of("raising")


def test_a_task_that_fails_leaves_nothing() -> None:
    """Not even what its engines were still busy with."""

    @flow
    def failing() -> None:
        with cluster("failing", n=2) as handle:
            fail(handle)

    state: State[None] = failing(return_state=True)

    assert state.is_failed()
    assert "invalid literal for int() with base 10: 'not a number'" in str(state.message)
    assert nothing_is_left_of("failing")


@pytest.mark.timeout(method="thread")  # Prefect's own needs the alarm signal
def test_a_flow_that_takes_too_long_leaves_nothing() -> None:
    """Prefect interrupts its body."""

    @flow(timeout_seconds=2)
    def slow() -> None:
        with cluster("slow", n=1):
            time.sleep(60)

    state: State[None] = slow(return_state=True)

    assert state.name == "TimedOut"
    assert nothing_is_left_of("slow")


def test_an_async_flows_cluster_ends_with_its_block() -> None:
    """As in a sync flow."""

    @flow
    async def scoped() -> tuple[ClusterHandle, int, bool]:
        async with acluster(n=1) as handle:
            engines = use.submit(handle).result()
        return handle, engines, nothing_is_left_of(handle.name)

    handle, engines, gone = asyncio.run(scoped())

    assert handle.name.startswith("scoped-")
    assert (engines, gone) == (1, True)


def test_an_async_flow_that_takes_too_long_leaves_nothing() -> None:
    """Prefect would cancel the waiting for the end as well."""

    @flow(timeout_seconds=2)
    async def slow() -> None:
        async with acluster("slow", n=1):
            await asyncio.sleep(60)

    async def run() -> State[None]:
        return await slow(return_state=True)

    assert asyncio.run(run()).name == "TimedOut"
    assert nothing_is_left_of("slow")


def test_an_async_flow_that_is_cancelled_leaves_nothing() -> None:
    """From outside, as asyncio does it."""

    @flow
    async def cancelled() -> None:
        async with acluster("cancelled", n=1):
            inside.set()
            await asyncio.sleep(60)

    async def cancel() -> None:
        running = asyncio.create_task(cancelled())
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    inside = asyncio.Event()
    asyncio.run(cancel())
    assert nothing_is_left_of("cancelled")


def test_each_attempt_of_a_flow_has_its_own_cluster() -> None:
    """Of the same name."""
    handles = []

    @flow(retries=1)
    def retried() -> None:
        with cluster(n=0) as handle:
            handles.append(handle)
            if len(handles) == 1:
                raise RuntimeError("first attempt")

    retried()

    assert [handle.incarnation for handle in handles] == [1, 2]
    assert handles[0].name == handles[1].name
    assert nothing_is_left_of(handles[0].name)


def test_a_cluster_of_somebody_else_is_neither_used_nor_ended() -> None:
    """A block's cluster is its own."""

    @flow
    def greedy() -> None:
        with cluster("taken"):
            pytest.fail("the block was entered")

    with Cluster("taken", n=0) as taken:
        with pytest.raises(errors.ClusterExists, match="cluster 'taken' #1 exists"):
            greedy()
        assert taken.status_sync().state is ClusterState.RUNNING


def test_the_end_of_a_block_is_the_end_for_others_too(run_log: list[str]) -> None:
    """The log names them."""

    @flow
    def scoped() -> None:
        with cluster("lent", n=0) as handle:
            Cluster.connect_sync(handle, claim="somebody")

    scoped()

    assert run_log[-1] == "cluster 'lent' #1 ended; it was in use by: somebody"
    assert nothing_is_left_of("lent")


def test_a_cluster_may_end_before_its_block(run_log: list[str]) -> None:
    """Early, by a task: the log tells it."""

    @flow
    def early() -> None:
        with cluster("early", n=0) as handle:
            teardown_cluster(handle)

    early()

    assert "cluster 'early' #1 ended" in run_log[-1]
    assert nothing_is_left_of("early")


def test_a_cluster_that_cannot_be_made_says_why() -> None:
    """And leaves nothing to end."""

    @flow
    def unmade() -> None:
        with cluster("unmade", n=1, python="/nowhere/python"):
            pytest.fail("the block was entered")

    with pytest.raises(errors.LaunchError, match="the interpreter '/nowhere/python'"):
        unmade()
    assert nothing_is_left_of("unmade")


def test_a_failed_end_does_not_hide_why_the_flow_failed(monkeypatch: pytest.MonkeyPatch, run_log: list[str]) -> None:
    """It is logged; it fails the flow only if nothing else did."""

    def broken(self: Cluster, **_: object) -> None:
        raise errors.ClusterBroken("it does not answer")

    @flow
    def unlucky(*, fails: bool) -> None:
        with cluster("unlucky", n=0, if_exists="replace"):
            if fails:
                raise ZeroDivisionError("in the block")

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "teardown_sync", broken)
        with pytest.raises(ZeroDivisionError, match="in the block"):
            unlucky(fails=True)
        assert run_log[-1] == "it does not answer"
        with pytest.raises(errors.ClusterBroken, match="it does not answer"):
            unlucky(fails=False)
    ClusterManager().teardown_sync("unlucky", force=True)


def test_a_block_works_outside_a_flow_run() -> None:
    """With a name. Prefect warns, unless told not to, that it keeps no logs of tasks outside a flow run."""
    with temporary_settings({PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}), cluster("plain", n=1) as handle:
        engines = use(handle)

    assert engines == 1
    assert nothing_is_left_of("plain")
