"""Ordinary Prefect tasks on the engines of a cluster: values, futures, states, logs, and whose cluster it is."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pickle
import re
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect import allow_failure, flow, tags, task
from prefect.cache_policies import INPUTS, NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import TaskRun
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterSpec, ClusterState, errors
from ipcluster_core.process import tagged
from prefect_ipcluster import IPClusterFuture, IPClusterTaskRunner, _link, cluster, tasks_on

#: What engines import before they are forked: Prefect, once for all of them.
PRELOAD = ["prefect_ipcluster._engine_side"]


@task(cache_policy=NO_CACHE)
def increment(x: int) -> int:
    """Add one."""
    return x + 1


@task(cache_policy=NO_CACHE)
async def double(x: int) -> int:
    """Multiply by two, and wait a moment."""
    await asyncio.sleep(0.001)
    return 2 * x


@task(cache_policy=NO_CACHE)
def where(_: object = None) -> int:
    """Return the pid of whatever runs this."""
    return os.getpid()


@task(cache_policy=NO_CACHE)
def fail() -> None:
    """Fail."""
    raise ZeroDivisionError("as asked for")


def server_runs(flow_run_id: str) -> dict[str, TaskRun]:
    """Return a flow's task runs as the server has them, by the names of their tasks."""
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))  # type: ignore[list-item]
    return {run.name.rpartition("-")[0]: run for run in found}


def server_state(flow_run_id: str, name: str, state: str) -> TaskRun:
    """Wait until a task run has a state on the server, which takes events in a while; return the run."""
    steps.wait_until(lambda: (run := server_runs(flow_run_id).get(name)) and run.state_name == state, timeout=60)
    return server_runs(flow_run_id)[name]


def server_logs(flow_run_id: str) -> list[str]:
    """Return what the server has of a flow run's logs, in order."""
    with get_client(sync_client=True) as client:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id])), limit=200)  # type: ignore[list-item]
    return [log.message for log in logs if log.task_run_id is not None]


def test_tasks_run_on_engines_of_a_cluster_that_the_flow_run_owns() -> None:
    """Made at the first submit, by name and claim of the run, gone with it."""

    @flow(task_runner=IPClusterTaskRunner(n=2))
    def owning() -> tuple[set[int], str]:
        before = ClusterManager().list_sync()
        pids = {future.result() for future in where.map(range(8))}
        (summary,) = ClusterManager().list_sync()
        return pids | {len(before)}, summary.name

    pids, name = owning()

    assert 0 in pids
    assert os.getpid() not in pids
    assert name.startswith("owning-")
    record = steps.record_of(name)
    assert (record.state, tagged(record.tag)) == (ClusterState.ENDED, [])


def test_a_cluster_by_name_is_used_and_left_alone() -> None:
    """A runner ends what it has made, and nothing else; also with a spec, if there is one of that name."""
    with Cluster("lasting", n=1, preload=PRELOAD) as lasting:
        with lasting.client() as client:
            pid = client.run(os.getpid)[0]
        given: list[Any] = ["lasting", lasting.handle, lasting.handle.model_dump_json()]
        runners = [IPClusterTaskRunner(cluster) for cluster in given]
        runners.append(IPClusterTaskRunner("lasting", spec=ClusterSpec(n=3)))

        @flow
        def using() -> int:
            return where.submit().result()

        pids = [using.with_options(task_runner=runner)() for runner in runners]

        assert pids == [pid] * 4
        assert lasting.status_sync().state is ClusterState.RUNNING


def test_a_cluster_that_is_not_there_is_an_error_of_the_first_submit() -> None:
    """Not before: a runner is made when a module is imported."""

    @flow(task_runner=IPClusterTaskRunner("nowhere"))
    def lost(*, submits: bool) -> None:
        if submits:
            where.submit()

    lost(submits=False)
    with pytest.raises(errors.ClusterNotFound, match="nowhere"):
        lost(submits=True)


def test_futures_are_arguments_and_waited_for(tmp_path: Path) -> None:
    """Nested too; values travel, also from and to async tasks, and the server knows what came from where."""

    @task(cache_policy=NO_CACHE)
    def total(numbers: list[int], more: dict[str, int], plus: int = 0) -> int:
        return sum(numbers) + sum(more.values()) + plus

    @task(cache_policy=NO_CACHE)
    def stamp(path: str, wait: float = 0.0) -> str:
        time.sleep(wait)
        with Path(path).open("a") as file:
            file.write("x")
        return Path(path).read_text()

    @flow(task_runner=IPClusterTaskRunner(n=2))
    def graph() -> tuple[str, tuple[Any, ...]]:
        one = increment.submit(0)
        two = double.submit(one)
        mapped = increment.map([one, two, 10], return_state=False)
        nested = total.submit([one, two], {"a": two, "b": 4}, plus=5, wait_for=[mapped[0]])  # type: ignore[list-item, dict-item]
        first = stamp.submit(f"{tmp_path}/stamps", 0.3)
        second = stamp.submit(f"{tmp_path}/stamps", wait_for=[first, [one]])
        found = mapped.result(), nested.result(), first.result(), second.result(), isinstance(one, IPClusterFuture)
        return str(flow_run.id), found

    run_id, found = graph()

    assert found == ([2, 3, 11], 14, "x", "xx", True)
    inputs = server_state(run_id, "total", "Completed").task_inputs
    assert {name: len(runs) for name, runs in inputs.items()} == {"numbers": 2, "more": 1, "plus": 0, "wait_for": 1}


def test_what_is_upstream_of_a_failure_does_not_run() -> None:
    """As with Prefect's own runners; `allow_failure` hands on the exception."""

    @task(cache_policy=NO_CACHE)
    def judge(outcome: object) -> str:
        return repr(outcome)

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def failing() -> tuple[Any, ...]:
        failed = fail.submit()
        skipped: Any = increment.submit(failed)  # type: ignore[arg-type]
        waiting: Any = increment.submit(1, wait_for=[failed])
        judged = judge.submit(allow_failure(failed))
        for future in (failed, skipped, waiting):
            future.wait()
        return str(flow_run.id), failed.state, skipped.state.name, waiting.state.name, judged.result()

    run_id, failed, skipped, waiting, judged = failing(return_state=True).result(raise_on_failure=False)

    assert failed.is_failed()
    assert (skipped, waiting, judged) == ("NotReady", "NotReady", "ZeroDivisionError('as asked for')")
    error = failed.data if isinstance(failed.data, BaseException) else failed.result(raise_on_failure=False)
    assert isinstance(error, ZeroDivisionError)
    assert server_state(run_id, "increment", "NotReady").run_count == 0


def test_a_tasks_exception_comes_with_the_engines_traceback() -> None:
    """Also one that cannot be pickled, which comes as what it said."""

    class Stubborn(Exception):
        def __reduce__(self) -> str:
            raise TypeError("no")

    @task(cache_policy=NO_CACHE)
    def stubborn() -> None:
        raise Stubborn("in vain")

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def raising() -> tuple[BaseException, BaseException]:
        errors = [future.result(raise_on_failure=False) for future in (fail.submit(), stubborn.submit())]
        return errors[0], errors[1]  # type: ignore[return-value]

    failed, rebuilt = raising()

    assert isinstance(failed, ZeroDivisionError)
    assert str(failed.__cause__).rstrip().endswith("in fail\nZeroDivisionError: as asked for")
    assert isinstance(rebuilt, errors.TaskError)
    assert str(rebuilt).endswith("Stubborn: in vain")


def without_network() -> None:
    """Have an engine reach nothing but what is on its host's file system."""
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: str) -> None:
        if self.family != socket.AF_UNIX:
            raise OSError(f"no way to {address}")
        connect(self, address)

    socket.socket.connect = refuse  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = refuse  # type: ignore[assignment]


def test_engines_need_no_way_to_the_api(caplog: pytest.LogCaptureFixture) -> None:
    """States, logs, prints and events of tasks travel through the flow's process; its loggers see them too."""

    @task(retries=1, log_prints=True, cache_policy=NO_CACHE)
    def talk() -> int:
        print("printed", task_run.run_count)  # noqa: T201 - that is the point
        get_run_logger().warning("logged in %s", flow_run.name)
        if task_run.run_count == 1:
            raise ValueError("the first time")
        emit_event("test.talked", {"prefect.resource.id": "test.talk"})
        return task_run.run_count

    @flow
    def talking(name: str) -> tuple[str, str, int, int]:
        with tasks_on(name):
            talked = talk.submit()
            doubled = double.submit(4)
            return str(flow_run.id), str(flow_run.name), talked.result(), doubled.result()

    with Cluster("far", n=1, preload=PRELOAD) as far, far.client() as client:
        client.run(without_network)
        run_id, name, count, doubled = talking("far")

    assert (count, doubled) == (2, 8)
    run = server_state(run_id, "talk", "Completed")
    assert run.run_count == 2
    assert run.total_run_time.total_seconds() > 0
    said = ["printed 1", f"logged in {name}", "printed 2", f"logged in {name}"]
    steps.wait_until(lambda: "Finished in state Completed()" in server_logs(run_id), timeout=60)
    assert [line for line in server_logs(run_id) if line.startswith(("printed", "logged"))] == said
    handled = [record for record in caplog.records if record.getMessage().startswith("printed")]
    assert [record.name for record in handled] == ["prefect.task_runs"] * 2
    assert vars(handled[0])["task_run_name"] == run.name
    steps.wait_until(lambda: related_to("test.talked"), timeout=60)
    assert {f"prefect.flow-run.{run_id}", f"prefect.task-run.{run.id}"} <= related_to("test.talked")


def related_to(event: str) -> set[str]:
    """Return what the server knows an event to be related to."""
    with get_client(sync_client=True) as client:
        answer = client.request("POST", "/events/filter", json={"filter": {"event": {"name": [event]}}})
    return {one["prefect.resource.id"] for found in answer.json()["events"] for one in found["related"]}


def test_contexts_are_opened_once_for_each_engine_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what makes a task cheap; tags are another place, and seen by the tasks submitted there."""
    opened: list[dict[str, str]] = []
    monkeypatch.setattr(_link.Link, "_compare", lambda self, versions: opened.append(versions))

    @task(cache_policy=NO_CACHE)
    def seen(_: object = None) -> set[str]:
        return set(task_run.tags)

    @flow
    def placed() -> tuple[list[set[str]], int, set[str], int]:
        with tasks_on(n=1):
            plain = [future.result() for future in seen.map(range(10))]
            once = len(opened)
            with tags("special"):
                special = seen.submit().result()
            seen.submit().result()
        return plain, once, special, len(opened)

    assert placed() == ([set()] * 10, 1, {"special"}, 2)


def test_other_versions_on_engines_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With both, since that is what may go wrong."""
    monkeypatch.setattr("prefect_ipcluster._relay.versions", lambda: {"prefect": "3.9.999"})

    @flow
    def drifting() -> None:
        with tasks_on(n=1):
            increment.submit(1).wait()
            with tags("again"):
                increment.submit(1).wait()

    drifting()

    told = [record.getMessage() for record in caplog.records if "other versions" in record.getMessage()]
    assert len(told) == 1
    assert "(here 3.9.999)" in told[0]


def test_a_task_that_submits_tasks_runs_them_on_its_engine() -> None:
    """So it cannot wait for engines that wait for it; sync and async tasks within each other."""

    @task(cache_policy=NO_CACHE)
    def parent(x: int) -> tuple[int, int, int]:
        child = where.submit()
        assert isinstance(child, IPClusterFuture)
        return child.result() - os.getpid(), increment.submit(double.submit(x)).result(), len(increment.map([1, 2]))

    @task(cache_policy=NO_CACHE)
    async def async_parent(x: int) -> int:
        return double.submit(increment.submit(x)).result()

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def nesting() -> tuple[str, Any]:
        return str(flow_run.id), (parent.map([1, 2]).result(), async_parent.submit(3).result())

    run_id, found = nesting()

    assert found == ([(0, 3, 2), (0, 5, 2)], 8)
    where_run = server_state(run_id, "where", "Completed")
    assert list(where_run.task_inputs["__parents__"])


def test_what_an_async_task_leaves_does_not_run_beside_the_next(tmp_path: Path) -> None:
    """They share a loop, in which each finds nothing of the one before, as with a loop of its own."""

    async def scribble() -> None:
        await asyncio.sleep(0.05)
        (tmp_path / "scribbled").touch()

    @task(cache_policy=NO_CACHE)
    async def leave() -> int:
        asyncio.get_running_loop().create_task(scribble())
        return len(asyncio.all_tasks())

    @task(cache_policy=NO_CACHE)
    async def look() -> int:
        await asyncio.sleep(0.3)
        return len(asyncio.all_tasks())

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def leaving() -> tuple[int, int]:
        return leave.submit().result(), look.submit().result()

    assert leaving() == (2, 1)
    assert not (tmp_path / "scribbled").exists()


def test_what_a_flow_holds_on_to_stays_with_it() -> None:
    """Its code does not travel with its tasks, only what Prefect's tasks need to know of the flow."""
    lock = threading.Lock()

    @flow(task_runner=IPClusterTaskRunner(n=1), on_completion=[lambda flow, flow_run, state: lock.release()])
    def holding() -> str:
        lock.acquire()
        return named.submit().result()

    @task(cache_policy=NO_CACHE)
    def named() -> str:
        return f"{flow_run.flow_name} {flow_run.id}"

    state = holding(return_state=True)

    assert state.result() == f"holding {state.state_details.flow_run_id}"
    assert not lock.locked()


def test_caching_works_across_engines(tmp_path: Path) -> None:
    """A result that was persisted is found, and the task does not run again."""

    @task(cache_policy=INPUTS, persist_result=True, result_storage_key=None)
    def costly(x: int, path: str) -> int:
        with Path(path).open("a") as file:
            file.write("x")
        return x

    @flow(task_runner=IPClusterTaskRunner(n=2))
    def caching() -> list[str]:
        states = []
        for _ in range(3):
            future = costly.submit(5, f"{tmp_path}/ran")
            future.wait()
            states.append(str(future.state.name))
        return states

    assert caching() == ["Completed", "Cached", "Cached"]
    assert (tmp_path / "ran").read_text() == "x"


def test_an_edited_helper_runs_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the flow's project travel with its tasks, also of one that has run there before."""

    def edit(value: int) -> None:
        (tmp_path / "project_helper.py").write_text(f"def answer():\n    return {value}  # {'x' * value}\n")
        importlib.invalidate_caches()
        importlib.reload(importlib.import_module("project_helper"))

    monkeypatch.syspath_prepend(str(tmp_path))
    edit(0)
    project_helper: Any = importlib.import_module("project_helper")

    @flow
    def helped(name: str) -> int:
        @task(cache_policy=NO_CACHE)
        def ask() -> int:
            return int(project_helper.answer())

        with tasks_on(name):
            return ask.submit().result()

    with Cluster("edited", n=1, preload=PRELOAD):
        answers = []
        for value in (1, 2):
            edit(value)
            answers.append(helped("edited"))

    assert answers == [1, 2]


def test_tasks_on_a_cluster_of_the_same_flow() -> None:
    """Inside of the block only; leaving it waits for what was submitted there, so that the cluster is still needed."""

    @flow
    def placing() -> tuple[Any, ...]:
        with cluster(n=1, preload=PRELOAD) as handle:
            with Client.connect(handle) as client:
                engine = client.run(os.getpid)[0]
            before = where.submit().result()
            with tasks_on(handle):
                inside = where.submit()
                late = [increment.submit(n) for n in range(5)]
            done = [future.state.name for future in late]
            after = where.submit().result()
        return engine == inside.result(), before == after == os.getpid(), done

    assert placing() == (True, True, ["Completed"] * 5)


def test_tasks_on_in_an_async_flow() -> None:
    """Waits without holding up the loop, with ``async with``."""

    @flow
    async def placing() -> tuple[list[int], bool]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with tasks_on(n=1):
            futures = [double.submit(n) for n in range(3)]
            pause.submit(0.5)
            before = ticks
        during = ticks - before
        ticking.cancel()
        return [future.result() for future in futures], during > 0

    @task(cache_policy=NO_CACHE)
    def pause(seconds: float) -> None:
        time.sleep(seconds)

    assert asyncio.run(placing()) == ([0, 2, 4], True)


def test_tasks_on_is_for_flows() -> None:
    """Elsewhere a runner can be used by itself."""
    with pytest.raises(RuntimeError, match="tasks_on is for the body of a flow"), tasks_on(n=1):
        pass
    with (
        temporary_settings({PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}),
        IPClusterTaskRunner(n=1) as runner,
    ):
        future = runner.submit(increment, {"x": 1})

        assert future.result() == 2


def test_a_runner_is_its_settings() -> None:
    """Equal, duplicated, pickled without what is live; started before it is used."""
    spec = ClusterSpec(n=2)
    runner = IPClusterTaskRunner("nightly", spec=spec, retries_on_engine_loss=1)

    assert runner == runner.duplicate() == pickle.loads(pickle.dumps(runner))
    assert runner is not runner.duplicate()
    assert runner != IPClusterTaskRunner("nightly")
    assert runner != "nightly"
    assert repr(IPClusterTaskRunner("nightly")).startswith("IPClusterTaskRunner(cluster='nightly'")
    with pytest.raises(RuntimeError, match="Task runner is not started"):
        runner.submit(increment, {"x": 1})
    with pytest.raises(ValueError, match="not both"):
        IPClusterTaskRunner(spec=spec, n=1)


def test_a_flow_on_an_engine_makes_no_second_cluster() -> None:
    """Its runner runs tasks there and then."""

    @flow(task_runner=IPClusterTaskRunner(n=3))
    def inner() -> bool:
        return where.submit().result() == os.getpid()

    @task(cache_policy=NO_CACHE)
    def outer() -> bool:
        return inner()

    @flow(task_runner=IPClusterTaskRunner(n=1))
    def outermost() -> tuple[bool, int]:
        return outer.submit().result(), len(ClusterManager().list_sync())

    assert outermost() == (True, 1)


def test_a_thousand_tasks_finish(caplog: pytest.LogCaptureFixture) -> None:
    """In order, each with its own state."""
    caplog.set_level(logging.WARNING)

    @flow(task_runner=IPClusterTaskRunner(n=2))
    def many() -> list[int]:
        return increment.map(range(1000)).result()

    assert many() == list(range(1, 1001))


def test_what_readme_shows_of_the_task_runner_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script of its own."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = (code for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "tasks_on" in code)
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())

    assert steps.run_step(block, timeout=100).splitlines()[-1] == "30 30"
