"""Task runs that do not come to their own end: engines that die, cancellations, limits, flows that are stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_API_URL

import steps
from ipcluster_core import Cluster, ClusterManager, ClusterState, errors
from ipcluster_core.process import tagged
from prefect_ipcluster import IPClusterFuture, IPClusterTaskRunner, _link, tasks_on

PRELOAD = ["prefect_ipcluster._engine_side"]


@task(cache_policy=NO_CACHE)
def increment(x: int) -> int:
    """Add one."""
    return x + 1


@task(cache_policy=NO_CACHE)
def die() -> None:
    """Take the engine along."""
    os.write(1, b"last words\n")
    os.kill(os.getpid(), signal.SIGKILL)


@task(cache_policy=NO_CACHE)
def dawdle(path: str, seconds: float = 60.0) -> str:
    """Say that it runs, and that it was left."""
    Path(f"{path}/began").write_text(str(os.getpid()))
    try:
        time.sleep(seconds)
    finally:
        Path(f"{path}/left").touch()
    return "done"


def server_run(flow_run_id: str, name: str, state: str, said: str = "") -> TaskRun:
    """Wait until a task run has a state, with a text, on the server, which takes events in a while; return the run."""

    def find() -> TaskRun | None:
        with get_client(sync_client=True) as client:
            found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))  # type: ignore[list-item]
        having = [run for run in found if run.name.startswith(name) and run.state_name == state]
        return next((run for run in having if said in str(run.state)), None)

    steps.wait_until(find, timeout=60)
    run = find()
    assert run is not None
    return run


def test_the_death_of_an_engine_crashes_its_task_run_at_once() -> None:
    """On the server too, with the reason; the others go on, and the flow decides what that means."""

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def bereft() -> tuple[str, Any, Any, int]:
        dying = die.submit()
        dying.wait()
        skipped: Any = increment.submit(dying)  # type: ignore[arg-type]
        skipped.wait()
        error = dying.result(raise_on_failure=False)
        return str(flow_run.id), (dying.state.name, error), skipped.state.name, increment.submit(1).result()

    run_id, (state, error), skipped, after = bereft()

    assert (state, skipped, after) == ("Crashed", "NotReady", 2)
    assert isinstance(error, errors.EngineLost)
    assert error.cause == "signal SIGKILL"
    run = server_run(run_id, "die", "Crashed")
    assert run.run_count == 1
    assert run.state is not None
    assert "died (signal SIGKILL) while it ran this task" in str(run.state.message)
    assert "last words" in str(run.state.message)


def test_an_engine_that_cannot_import_prefect_says_so() -> None:
    """Where it looked, and the cure; the run is over, on the server too, though it could not tell anything."""

    def hide() -> None:
        sys.modules["prefect"] = None  # type: ignore[assignment] # what makes an import fail

    @flow
    def bereft() -> tuple[str, str, str]:
        with tasks_on("bare"):
            future = increment.submit(1)
            future.wait()
            return str(flow_run.id), str(future.state.name), str(future.state.message)

    with Cluster("bare", n=1) as bare, bare.client() as client:
        client.run(hide)
        run_id, state, message = bereft()

    assert state == "Crashed"
    assert "on engine 0" in message
    assert "To mend it: install it for that interpreter" in message
    assert server_run(run_id, "increment", "Crashed").run_count == 0


def test_a_run_may_be_begun_again_when_its_engine_died(tmp_path: Path) -> None:
    """If so asked for; the same run, and it may find what it left."""

    @task(cache_policy=NO_CACHE)
    def once() -> str:
        try:
            (tmp_path / "begun").touch(exist_ok=False)
        except FileExistsError:
            return str(task_run.id)
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @flow(task_runner=IPClusterTaskRunner(n=1, retries_on_engine_loss=1))
    def insisting() -> tuple[str, str, str]:
        future = once.submit()
        return str(flow_run.id), str(future.task_run_id), future.result()

    run_id, expected, found = insisting()

    assert found == expected
    assert str(server_run(run_id, "once", "Completed").id) == expected


def test_the_end_of_the_cluster_crashes_what_runs(tmp_path: Path) -> None:
    """It says who ended it, and nobody waits for ever."""
    with Cluster("doomed", n=1, preload=PRELOAD) as doomed:

        @flow
        def bereft() -> tuple[str, str, Any]:
            with tasks_on("doomed"):
                future = dawdle.submit(str(tmp_path))
                steps.wait_until((tmp_path / "began").exists, timeout=30)
                doomed.teardown_sync(force=True)
                future.wait(30)
                return str(flow_run.id), future.state.name or "", future.result(raise_on_failure=False)

        run_id, state, error = bereft()

    assert state == "Crashed"
    assert isinstance(error, errors.ClusterEnded)
    assert server_run(run_id, "dawdle", "Crashed", said="doomed")


def test_cancelling_a_run_stops_its_code(tmp_path: Path) -> None:
    """On the engine, which goes on with the next; what has not begun never does, whatever it waits for."""

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def fickle() -> tuple[Any, ...]:
        running = dawdle.submit(str(tmp_path))
        queued = dawdle.submit("/nowhere")
        waiting = increment.submit(1, wait_for=[running])
        steps.wait_until((tmp_path / "began").exists, timeout=30)
        cancelled = [future.cancel() for future in (waiting, queued, running)]  # type: ignore[attr-defined]
        states = [future.state.name for future in (waiting, queued, running)]
        again = running.cancel()  # type: ignore[attr-defined]
        left = (tmp_path / "left").exists()
        finished = increment.submit(2)
        return str(flow_run.id), cancelled, states, again, left, finished.result(), finished.cancel()  # type: ignore[attr-defined]

    run_id, cancelled, states, again, left, after, too_late = fickle(return_state=True).result(raise_on_failure=False)

    assert cancelled == [True, True, True]
    assert states == ["Cancelled", "Cancelled", "Cancelled"]
    assert (again, left, after, too_late) == (True, True, 3, False)
    assert server_run(run_id, "dawdle", "Cancelled").state is not None
    assert server_run(run_id, "increment", "Cancelled").run_count == 0


def test_a_tasks_limit_stops_its_code(tmp_path: Path) -> None:
    """Where it runs on the main thread, which it does on an engine."""
    slow = dawdle.with_options(timeout_seconds=1)

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def limited() -> tuple[str, str, bool, int]:
        future = slow.submit(str(tmp_path))
        future.wait()
        return str(flow_run.id), future.state.name or "", (tmp_path / "left").exists(), increment.submit(1).result()

    run_id, state, left, after = limited()

    assert (state, left, after) == ("TimedOut", True, 2)
    assert server_run(run_id, "dawdle", "TimedOut").run_count == 1


def test_code_that_heeds_no_limit_is_ended_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's limit is an exception in the code, which may catch it: then the cluster's own limit follows."""
    monkeypatch.setattr(_link, "_GRACE_SECONDS", 0.5)

    @task(cache_policy=NO_CACHE, timeout_seconds=0.5)
    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001 - such code there is
                continue

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def limited() -> tuple[str, str, int]:
        future = stubborn.submit()
        future.wait()
        return str(flow_run.id), future.state.name or "", increment.submit(1).result()

    run_id, state, after = limited()

    assert (state, after) == ("TimedOut", 2)
    assert "ended with its engine" in str(server_run(run_id, "stubborn", "TimedOut").state)


def test_an_interrupt_in_a_task_is_a_crash_and_leaves_the_engine_usable() -> None:
    """As with Prefect's own runners; also in the middle of an async task, whose loop is not used again."""

    @task(cache_policy=NO_CACHE)
    def interrupted() -> None:
        raise KeyboardInterrupt

    @task(cache_policy=NO_CACHE)
    async def interrupted_async() -> None:
        raise KeyboardInterrupt

    @task(cache_policy=NO_CACHE)
    async def fine() -> int:
        return 1

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def interrupting() -> list[Any]:
        found: list[Any] = []
        for one in (interrupted, interrupted_async):
            future: Any = one.submit()
            future.wait()
            found.append(future.state.type.value)
        return [*found, fine.submit().result()]

    assert interrupting() == ["CRASHED", "CRASHED", 1]


def test_a_block_that_fails_cancels_what_it_has_submitted(tmp_path: Path) -> None:
    """Nobody is left to want it; the cluster, which is not its own, lives on."""
    with Cluster("shared", n=1, preload=PRELOAD) as shared:
        futures: list[Any] = []

        @flow
        def failing() -> None:
            with tasks_on("shared"):
                futures.extend([dawdle.submit(str(tmp_path)), dawdle.submit("/nowhere")])
                steps.wait_until((tmp_path / "began").exists, timeout=30)
                raise ZeroDivisionError("in the block")

        with pytest.raises(ZeroDivisionError, match="in the block"):
            failing()

        assert [future.state.name for future in futures] == ["Cancelled", "Cancelled"]
        assert (tmp_path / "left").exists()
        assert shared.status_sync().state is ClusterState.RUNNING


def test_a_flow_that_fails_waits_for_what_runs_and_drops_the_rest(tmp_path: Path) -> None:
    """As Prefect's own runners do it."""
    futures: list[Any] = []

    @task(cache_policy=NO_CACHE)
    def linger() -> None:
        (tmp_path / "began").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def failing() -> None:
        futures.append(linger.submit())
        steps.wait_until((tmp_path / "began").exists, timeout=30)
        futures.extend([increment.submit(1), increment.submit(2, wait_for=futures[:1])])
        raise ZeroDivisionError("in the flow")

    def let_go() -> None:
        with suppress(AssertionError):  # too late is told by the states
            steps.wait_until(lambda: len(futures) == 3 and all(map(is_over, futures[1:])), timeout=60)
        (tmp_path / "go").touch()

    with ThreadPoolExecutor() as pool:
        pool.submit(let_go)
        with pytest.raises(ZeroDivisionError, match="in the flow"):
            failing()

    assert [future.state.name for future in futures] == ["Completed", "Cancelled", "Cancelled"]


STOPPED = """
    import time
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE
    from prefect.runtime import flow_run
    from prefect_ipcluster import IPClusterTaskRunner
    from ipcluster_core import ClusterSpec

    @task(cache_policy=NO_CACHE)
    def busy():
        print("ready", flush=True)
        time.sleep(60)

    @flow(task_runner=IPClusterTaskRunner("stopped", n=1))
    def stopped():
        print(flow_run.id, flush=True)
        future = busy.submit()
        while not future.state.is_running():
            time.sleep(0.05)
        print("ready", flush=True)
        future.wait()

    stopped()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_flow_that_is_stopped_takes_its_own_cluster_along(
    monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    """Told to stop, it ends the cluster; killed, the cluster ends by itself, since it watches the flow's process."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    with steps.started_step(STOPPED) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        process.wait(60)

    steps.wait_until(lambda: ClusterManager().get_sync("stopped").state is ClusterState.ENDED, timeout=60)
    steps.wait_until(lambda: not tagged(steps.record_of("stopped").tag), timeout=20)
    if signum is signal.SIGTERM:
        assert server_run(run_id, "busy", "Cancelled").run_count == 1


def is_over(future: IPClusterFuture[Any]) -> bool:
    """Tell whether a task run has its last state."""
    return future.wrapped_future.done()


def test_two_flows_use_one_cluster_at_once() -> None:
    """Each has its own connection; neither ends it."""
    with Cluster("common", n=2, preload=PRELOAD) as common:

        @flow(task_runner=IPClusterTaskRunner("common"))
        def using(start: int) -> list[int]:
            return increment.map(range(start, start + 20)).result()

        with ThreadPoolExecutor() as pool:
            found = list(pool.map(using, [0, 100]))

        assert found == [list(range(1, 21)), list(range(101, 121))]
        assert common.status_sync().state is ClusterState.RUNNING
