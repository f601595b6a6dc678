"""Work on a cluster as tasks: one call, a map as one task run, a call on each engine; each with its async twin."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prefect import State, Task, flow, task
from prefect.artifacts import Artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.runtime import flow_run

import steps
from ipcluster_core import Cluster, ClusterHandle, errors
from prefect_ipcluster import (
    amap_on_cluster,
    arun_on_cluster,
    arun_spmd,
    attempts,
    chunks,
    map_on_cluster,
    output,
    progress,
    run_on_cluster,
    run_spmd,
)


@pytest.fixture
def cluster(store_url: str) -> Any:  # noqa: ANN401 - a generator
    """Two engines."""
    with Cluster("workers", n=2) as made:
        yield made.handle


def note_and_square(folder: str, item: int) -> int:
    """Note each call, and return the square."""
    with (Path(folder) / str(item)).open("a") as file:
        file.write("x")
    return item * item


def calls(folder: Path) -> dict[int, int]:
    """Return how often each item was worked on."""
    return {int(path.name): len(path.read_text()) for path in folder.iterdir() if path.name.isdigit()}


def test_one_call_runs_on_an_engine(cluster: ClusterHandle) -> None:
    """By handle, by name; futures among its arguments are waited for."""

    @task(cache_policy=NO_CACHE)
    def ten() -> int:
        return 10

    @flow
    def calling() -> tuple[int, int, int]:
        given: Any = ten.submit()
        submitted: Any = run_on_cluster.submit("workers", pow, given, 2)
        return run_on_cluster(cluster, os.getpid), run_on_cluster(cluster, int, "11", base=2), submitted.result()

    pid, three, hundred = calling()

    assert pid != os.getpid()
    assert (three, hundred) == (3, 100)


def test_what_a_call_raises_fails_its_task(cluster: ClusterHandle) -> None:
    """With the exception's own type, and the engine's traceback."""

    @flow
    def failing() -> None:
        run_on_cluster(cluster, int, "eleven")

    with pytest.raises(ValueError, match="invalid literal for int") as caught:
        failing()
    assert "Traceback" in str(caught.value.__cause__)


def test_a_map_is_one_task_run_whatever_the_number_of_items(cluster: ClusterHandle) -> None:
    """Its name says what it maps; the results are in order."""

    @flow
    def mapping() -> tuple[str, list[int]]:
        return str(flow_run.id), map_on_cluster(cluster, pow, range(5000), [2] * 6000)

    run_id, results = mapping()
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run_id]}}))

    assert results == [n * n for n in range(5000)]
    assert [run.name for run in runs] == ["map pow on cluster workers"]
    assert "ipcluster" in runs[0].tags


@pytest.mark.parametrize(("items", "chunksize", "expected"), [(0, None, 1), (7, None, 1), (5000, None, 5), (9, 4, 4)])
def test_a_map_has_a_thousand_chunks_at_most(items: int, chunksize: int | None, expected: int) -> None:
    """Unless asked otherwise."""
    assert chunks.size_of(items, chunksize) == expected
    assert len(chunks.ChunkedMap(abs, [range(items)], chunksize=chunksize)._chunks) == -(-items // expected)
    with pytest.raises(ValueError, match="a chunk has at least one item, not 0"):
        chunks.size_of(items, 0)


def test_a_map_takes_futures_and_nothing(cluster: ClusterHandle) -> None:
    """A whole iterable may be another task's result."""

    @task(cache_policy=NO_CACHE)
    def numbers() -> list[int]:
        return [-1, -2]

    @flow
    def mapping() -> tuple[list[int], list[int], list[int]]:
        later: Any = map_on_cluster.submit(cluster, abs, numbers.submit())
        named = map_on_cluster.with_options(name="other")
        return later.result(), map_on_cluster(cluster, abs, []), named(cluster, abs, [-3])

    assert mapping() == ([1, 2], [], [3])
    assert type(map_on_cluster.with_options(retries=1)) is type(map_on_cluster)


def test_items_are_not_looked_into(cluster: ClusterHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when the task is called, nor when it is submitted: Prefect would take microseconds for each."""
    from prefect.utilities import collections

    visited = []
    visit = collections.visit_collection

    def counting(expr: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        visited.append(type(expr))
        return visit(expr, *args, **kwargs)

    items = [0.5] * 20_000
    monkeypatch.setattr(collections, "visit_collection", counting)

    @flow
    def mapping() -> int:
        called = map_on_cluster(cluster, int, items)
        submitted: Any = map_on_cluster.submit(cluster, int, items)
        return len(called) + len(submitted.result())

    assert mapping() == 40_000
    assert float not in visited


def test_a_retried_map_keeps_its_finished_chunks(cluster: ClusterHandle, tmp_path: Path) -> None:
    """Only what has failed is run again, also when the items came from a generator."""

    def sometimes(folder: str, item: int) -> int:
        square = note_and_square(folder, item)
        if item == 7 and len((Path(folder) / "7").read_text()) == 1:
            raise RuntimeError("the first time")
        return square

    @flow
    def mapping() -> list[int]:
        mapped = map_on_cluster.with_options(retries=1, retry_delay_seconds=0)
        return mapped(cluster, functools.partial(sometimes, str(tmp_path)), (n for n in range(20)), chunksize=1)

    assert mapping() == [n * n for n in range(20)]
    assert calls(tmp_path) == {n: 2 if n == 7 else 1 for n in range(20)}
    assert not chunks._kept


def test_a_map_that_fails_for_good_stops_its_work(cluster: ClusterHandle, tmp_path: Path) -> None:
    """What waits is never run, what runs is interrupted, and nothing is kept."""

    def first_fails(item: int) -> None:
        if item == 0:
            raise RuntimeError("for good")
        time.sleep(60)

    @flow
    def mapping() -> str:
        return str(map_on_cluster(cluster, first_fails, range(50), return_state=True).message)

    assert "for good" in mapping()
    steps.wait_until(lambda: not sum(_tasks().values()), 10)
    assert not chunks._kept


def _tasks() -> dict[str, int]:
    tasks = Cluster.connect_sync("workers").status_sync().tasks
    return {key: tasks[key] for key in ("queued", "running")}


def test_errors_can_take_the_place_of_results(cluster: ClusterHandle) -> None:
    """One bad item does not cost the others."""

    @flow
    def mapping() -> list[Any]:
        return map_on_cluster(cluster, int, ["1", "x", "3"], keep_errors=True, chunksize=3)

    one, error, three = mapping()

    assert (one, three) == (1, 3)
    assert isinstance(error, ValueError)


def test_a_map_that_is_late_says_how_much_is_done(cluster: ClusterHandle) -> None:
    """And stops."""

    @flow
    def mapping() -> None:
        map_on_cluster(cluster, time.sleep, [0, 60, 60], timeout=2)

    with pytest.raises(errors.ClusterTimeout, match="a map over 3 items on cluster 'workers' was not done in time: "):
        mapping()
    steps.wait_until(lambda: not sum(_tasks().values()), 10)


@pytest.mark.parametrize("step", [run_on_cluster, run_spmd], ids=["once", "on each engine"])
@pytest.mark.parametrize("submitted", [False, True], ids=["called", "in a thread"])
@pytest.mark.timeout(method="thread")  # Prefect's own needs the alarm signal
def test_a_task_that_takes_too_long_stops_its_call(
    cluster: ClusterHandle, submitted: bool, step: Task[..., Any]
) -> None:
    """On the engines too, and whether or not it runs in the main thread."""
    limited = step.with_options(timeout_seconds=1)

    @flow
    def calling() -> str:
        if submitted:
            future: Any = limited.submit(cluster, time.sleep, 60)
            future.wait()
            return str(future.state.name)
        state: State[Any] = limited(cluster, time.sleep, 60, return_state=True)
        return str(state.name)

    assert calling() == "TimedOut"
    steps.wait_until(lambda: not sum(_tasks().values()), 10)


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "as the map ends"])
def test_the_progress_of_a_map_is_shown(cluster: ClusterHandle, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    """As one artifact, made when it takes long enough, and complete at the end, also when all ends as it is made."""
    monkeypatch.setattr(attempts, "SECONDS", 0.05)
    monkeypatch.setattr(progress, "SECONDS", 0.05)
    create = progress._create

    def create_late(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - Prefect's
        if slow:
            steps.wait_until(lambda: not sum(_tasks().values()), 10)
        return create(*args, **options)

    monkeypatch.setattr(progress, "_create", create_late)

    @flow
    def mapping() -> None:
        map_on_cluster(cluster, time.sleep, [0.3] * 4)

    mapping()
    artifact = Artifact.get("ipcluster-workers-progress")

    assert artifact.data == 100  # type: ignore[union-attr]
    assert artifact.description == "map sleep on cluster workers"  # type: ignore[union-attr]


def test_progress_is_shown_at_most_every_two_seconds() -> None:
    """Never what is over before; the end only if something was shown."""
    shown = progress.Progress("nightly", "map", shown=False)
    shown.shown, shown.due = True, 100.0
    due = [
        shown.is_due(percent, now) for percent, now in [(1, 99.9), (100, 101), (1, 100), (2, 101), (3, 102), (100, 103)]
    ]

    assert due == [False, False, True, False, True, False]


def test_a_call_on_each_engine_gives_their_results_in_order(cluster: ClusterHandle) -> None:
    """Once on each; a set may be named."""

    @flow
    def calling() -> tuple[list[int], list[int]]:
        return run_spmd(cluster, os.getpid), run_spmd(cluster, pow, 3, 2, engines="default")

    pids, nines = calling()

    assert len(set(pids)) == 2
    assert nines == [9, 9]


@pytest.mark.parametrize("step", [run_spmd, arun_spmd], ids=["sync", "async"])
def test_a_call_on_each_engine_that_is_late_names_the_engines(cluster: ClusterHandle, step: Task[..., Any]) -> None:
    """And does not go on there."""

    @flow
    def calling() -> Any:  # noqa: ANN401 - of either kind
        return step(cluster, time.sleep, 60, timeout=0.5, return_state=True)

    @flow
    async def acalling() -> Any:  # noqa: ANN401 - of either kind
        return await step(cluster, time.sleep, 60, timeout=0.5, return_state=True)

    with pytest.raises(errors.ClusterTimeout, match="sleep was not done in time on engines 0, 1 of cluster 'workers'"):
        calling() if step is run_spmd else asyncio.run(acalling())
    steps.wait_until(lambda: not sum(_tasks().values()), 10)


def test_what_is_over_is_not_late() -> None:
    """Not even when nobody has looked before the deadline."""
    over, going_on = Future[int](), Future[int]()
    over.set_result(1)

    assert attempts.wait_for_a_turn([over], time.monotonic() - 1)
    with pytest.raises(errors.ClusterTimeout, match="they are late"):
        attempts.wait_for_a_turn([over, going_on], time.monotonic() - 1, lambda: "they are late")


def fail_on_one(marker: Path) -> None:
    """Fail on one engine, and work for long on the others."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        time.sleep(60)
    else:
        raise ValueError("no luck")


def test_one_call_on_each_engine_that_fails_stops_the_others(cluster: ClusterHandle, tmp_path: Path) -> None:
    """They would wait for what it does not send any more."""

    @flow
    def calling() -> None:
        run_spmd(cluster, fail_on_one, tmp_path / "marker")

    with pytest.raises(ValueError, match="no luck"):
        calling()
    steps.wait_until(lambda: not sum(_tasks().values()), 10)


def fail_on_one_and_go_on(marker: Path) -> None:
    """Fail on one engine; on the others heed no interrupt, as code does that waits in a C library."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(KeyboardInterrupt):
                time.sleep(60)
    else:
        raise ValueError("no luck")


def test_engines_that_heed_no_interrupt_are_named_when_another_one_fails(
    cluster: ClusterHandle, tmp_path: Path
) -> None:
    """C36: as ranks in a barrier; the error does not wait for them."""

    @flow
    def calling() -> None:
        run_spmd(cluster, fail_on_one_and_go_on, tmp_path / "marker")

    with pytest.raises(ValueError, match="no luck") as raised:
        calling()

    (note,) = [note for note in raised.value.__notes__ if "busy" in note]
    assert re.fullmatch(r"engines [01] are still busy with their part of this call: restart them", note)


def tell(what: str) -> None:
    """Write a line, as code does that knows nothing of Prefect."""
    os.write(1, f"{what}\n".encode())


@pytest.mark.parametrize("wanted", [True, False])
def test_what_engines_write_is_in_the_log_of_the_run(
    cluster: ClusterHandle, caplog: pytest.LogCaptureFixture, wanted: bool
) -> None:
    """If it is wanted, with the engine's id, of each kind of task, sync and async."""

    @flow
    async def working() -> None:
        await arun_on_cluster(cluster, tell, "async once", log_output=wanted)
        await amap_on_cluster(cluster, tell, ["async map"], log_output=wanted)
        await arun_spmd(cluster, tell, "async each", log_output=wanted)

    @flow
    def calling() -> None:
        run_on_cluster(cluster, tell, "once", log_output=wanted)
        map_on_cluster(cluster, tell, ["map"], log_output=wanted)
        run_spmd(cluster, tell, "each", log_output=wanted)

    calling()
    asyncio.run(working())
    found = [record.getMessage() for record in caplog.records if record.name == "prefect.task_runs"]
    lines = sorted(line for line in found if line.startswith("[engine "))
    said = Counter(line.partition("] ")[2] for line in lines)

    each = {"once": 1, "map": 1, "each": 2, "async once": 1, "async map": 1, "async each": 2}
    assert said == (Counter(each) if wanted else Counter())
    if wanted:
        assert {"[engine 0] each", "[engine 1] each"} <= set(lines)


def test_a_flood_is_in_the_log_of_the_run_in_part() -> None:
    """So many lines at once, then so many a second; the rest is counted."""
    budget = output.Budget(at_once=3, per_second=2)
    first = [budget.take(10.0) for _ in range(5)]
    second = [budget.take(11.0) for _ in range(3)]
    late = [budget.take(100.0) for _ in range(4)]

    assert first == [True, True, True, False, False]
    assert second == [True, True, False]
    assert late == [True, True, True, False]
    assert budget.dropped == 4


def test_async_flows_have_twins(cluster: ClusterHandle, tmp_path: Path) -> None:
    """Of each, with the same behaviour."""

    def sometimes(folder: str, item: int) -> int:
        square = note_and_square(folder, item)
        if item == 1 and len((Path(folder) / "1").read_text()) == 1:
            raise RuntimeError("the first time")
        return square

    @flow
    async def working() -> tuple[int, list[int], list[int]]:
        mapped = amap_on_cluster.with_options(retries=1, retry_delay_seconds=0)
        return (
            await arun_on_cluster(cluster, pow, 2, 3),
            await mapped(cluster, functools.partial(sometimes, str(tmp_path)), range(4)),
            await arun_spmd(cluster, abs, -1),
        )

    assert asyncio.run(working()) == (8, [0, 1, 4, 9], [1, 1])
    assert calls(tmp_path) == {0: 1, 1: 2, 2: 1, 3: 1}


@pytest.mark.parametrize("step", [arun_on_cluster, arun_spmd], ids=["once", "on each engine"])
def test_an_async_call_that_takes_too_long_is_stopped(cluster: ClusterHandle, step: Task[..., Any]) -> None:
    """On the engines too."""

    @flow
    async def calling() -> str:
        limited = step.with_options(timeout_seconds=1)
        state: State[Any] = await limited(cluster, time.sleep, 60, return_state=True)
        return str(state.name)

    assert asyncio.run(calling()) == "TimedOut"
    steps.wait_until(lambda: not sum(_tasks().values()), 10)
