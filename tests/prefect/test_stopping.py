"""A flow that is stopped gives up its clusters at once, and not when its threads are over."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prefect import Flow, State, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import Pause

import steps
from ipcluster_core import Client, ClusterHandle, ClusterManager, ClusterState, errors
from prefect_ipcluster import acreate_cluster, create_cluster, stopping, with_teardown


@task(cache_policy=NO_CACHE)
def work(handle: ClusterHandle) -> None:
    """Keep an engine busy."""
    with Client.connect(handle) as client:
        client.submit(time.sleep, 300).result()


def state_of(name: str) -> ClusterState:
    """Return the state of a cluster."""
    return ClusterManager().get_sync(name).state


@pytest.mark.timeout(method="thread")  # Prefect's own needs the alarm signal
def test_a_thread_that_waits_for_the_cluster_does_not_hold_up_the_end() -> None:
    """The task of 300 s ends with the cluster, and the flow with it."""

    @with_teardown
    @flow(timeout_seconds=8)
    def stopped() -> None:
        work.submit(create_cluster("held", n=1)).wait()

    state: State[None] = stopped(return_state=True)

    assert state.name == "TimedOut"
    assert state_of("held") is ClusterState.ENDED


def test_an_async_flow_that_is_cancelled_gives_up_its_clusters() -> None:
    """Before the cancellation goes on."""
    inside = asyncio.Event()

    @with_teardown(on=["failure", "crashed", "cancellation"])
    @flow
    async def cancelled() -> None:
        await acreate_cluster("acancelled", n=0)
        inside.set()
        await asyncio.sleep(300)

    async def cancel() -> None:
        running = asyncio.create_task(cancelled())
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())

    assert state_of("acancelled") is ClusterState.ENDED


@pytest.mark.parametrize("error", [RuntimeError("ordinary"), Pause()])
def test_what_is_no_stop_is_left_to_the_hooks(error: BaseException) -> None:
    """An exception may be retried; a suspended run comes back."""
    assert not stopping._is_stop(error)
    assert stopping._is_stop(KeyboardInterrupt())


def test_a_flow_with_fewer_hooks_is_left_as_it_is() -> None:
    """What stops it may be an end that does not count."""

    def body() -> None: ...

    plain: Flow[[], None] = flow(body)
    assert with_teardown(on=["failure"])(plain).fn is body
    assert with_teardown(plain).fn is not body
    assert with_teardown(plain).fn.__name__ == "body"


def test_a_failure_to_give_up_is_left_to_the_hooks(monkeypatch: pytest.MonkeyPatch, run_log: list[str]) -> None:
    """It does not hide why the flow was stopped."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise errors.StoreError("no store")

    @flow
    def stopped() -> None:
        with pytest.raises(KeyboardInterrupt):
            guarded.fn()

    @flow
    def guarded() -> None:
        raise KeyboardInterrupt

    stopping.end_when_stopped(guarded, force=False, store=None)
    monkeypatch.setattr(stopping, "give_up", unreachable)
    stopped()

    assert run_log == ["the flow's hooks are to try again: no store"]
    assert steps.left_in_store() == []
