"""One attempt of a task that works on a cluster: what is kept when it fails, and stopped when it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.context import TaskRunContext
from prefect.utilities.annotations import BaseAnnotation, opaque

from ipcluster_core import Client
from ipcluster_core.errors import ClusterError, ClusterTimeout

from .chunks import ChunkedMap, recall, remember
from .options import function_name
from .output import logged_output
from .progress import SECONDS
from .reports import AnyCluster, run_logger

__all__ = [
    "MapTask",
    "a_map",
    "attempt",
    "attempt_on_each",
    "connected",
    "late_calls",
    "late_map",
    "results_of",
    "wait_for_a_turn",
]

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds for the cluster to cancel what is of no use any more.
_CANCEL_SECONDS = 3.0


class MapTask(Task[P, R]):
    """A task whose further arguments Prefect does not look into, which would take seconds for a million of items.

    A future among them is still waited for, and its result handed on; what is inside a list is left as it is.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Prefect has it
        """Run the task."""
        return super().__call__(*_covered(args), **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Prefect has it
        """Have the flow's task runner run the task."""
        return super().submit(*_covered(args), **kwargs)

    def with_options(self, *args: Any, **options: Any) -> MapTask[P, R]:
        """Return a task of this kind with other options, see `prefect.Task.with_options`."""
        changed = super().with_options(*args, **options)
        changed.__class__ = MapTask
        return changed  # type: ignore[return-value]


def _covered(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cover what stands behind the cluster and the function."""
    return *args[:2], *(arg if isinstance(arg, BaseAnnotation) else opaque(arg) for arg in args[2:])


@contextmanager
def connected(cluster: AnyCluster, store: str | None, *, log_output: bool) -> Generator[Client]:
    """Connect; in the block what engines write goes to the run's log, if that is wanted."""
    with Client.connect(cluster, store=store) as client, logged_output(client, wanted=log_output):
        yield client


def wait_for_a_turn(
    futures: Collection[Future[Any]], deadline: float | None = None, late: Callable[[], str] = str
) -> bool:
    """Wait for a moment: in turns, because Prefect's timeouts reach a thread only between two of them.

    Returns
    -------
    bool
        Whether all are over, or one has failed.

    Raises
    ------
    ClusterTimeout
        They are not, and the deadline has passed; it says what `late` returns.
    """
    left = SECONDS if deadline is None else min(SECONDS, deadline - time.monotonic())
    waited = wait(futures, max(0.0, left), FIRST_EXCEPTION)
    if not waited.not_done or any(map(_has_failed, waited.done)):
        return True
    if left <= 0:
        raise ClusterTimeout(late())
    return False


def late_calls(calls: Mapping[int, Future[Any]], function: object, client: Client) -> str:
    """Say which engines have not finished their call in time."""
    return f"{function_name(function)} was not done in time on engines {_busy(calls)} of cluster {client.name!r}"


def late_map(work: ChunkedMap, client: Client) -> str:
    """Say how far a map is that was not done in time."""
    return f"a map over {work.total} items on cluster {client.name!r} was not done in time: {work.percent:.0f}% are"


def results_of(calls: Mapping[int, Future[R]]) -> list[R]:
    """Return the results of calls, in the order of their engines; raise the exception of one that has failed."""
    for call in calls.values():
        if call.done() and _has_failed(call):
            call.result()
    return [calls[engine].result() for engine in sorted(calls)]


def _busy(calls: Mapping[int, Future[Any]]) -> str:
    """Return the engines whose calls are not over, as they are listed in messages."""
    return ", ".join(str(engine) for engine, call in sorted(calls.items()) if not call.done())


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


@contextmanager
def attempt(client: Client, futures: Collection[Future[Any]]) -> Generator[None]:
    """Cancel on the cluster what is not finished when the block is left by an exception."""
    try:
        yield
    except BaseException:
        _cancel(client, [future.task_id for future in futures if not future.done()])  # type: ignore[attr-defined]
        raise


@contextmanager
def attempt_on_each(client: Client, calls: Mapping[int, Future[Any]]) -> Generator[None]:
    """Do the same for calls by engine; a note tells which engines go on nevertheless."""
    try:
        with attempt(client, calls.values()):
            yield
    except Exception as error:
        if busy := _busy(calls):
            error.add_note(f"engines {busy} are still busy with their part of this call: restart them")
        raise


@contextmanager
def a_map(
    client: Client,
    fn: Callable[..., Any],
    iterables: Iterable[Iterable[Any]],
    *,
    chunksize: int | None,
    keep_errors: bool,
) -> Generator[ChunkedMap]:
    """Continue the map of the task run's earlier attempt, or cut a new one into chunks.

    When the block fails and another attempt will follow, the map is kept and its work goes on; else it is cancelled.

    Yields
    ------
    ChunkedMap
        Not begun yet.
    """
    run_id = _run_id()
    work = recall(run_id) or ChunkedMap(fn, iterables, chunksize=chunksize, keep_errors=keep_errors)
    try:
        yield work
    except BaseException as error:
        if run_id is not None and isinstance(error, Exception) and _is_repeated():
            work.park()
            remember(run_id, work)
        else:
            _cancel(client, work.unfinished)
        raise


def _cancel(client: Client, task_ids: list[str]) -> None:
    if not task_ids:
        return
    try:
        client.cancel(task_ids, timeout=_CANCEL_SECONDS)
    except (ClusterError, RuntimeError) as error:
        # Gone or out of reach; the task fails with what stopped it.
        run_logger().warning("what runs on cluster %r cannot be cancelled: %s", client.name, error)


def _run_id() -> str | None:
    context = TaskRunContext.get()
    return None if context is None else str(context.task_run.id)


def _is_repeated() -> bool:
    """Tell whether Prefect will run the current task again after it has failed."""
    context = TaskRunContext.get()
    return context is not None and context.task_run.run_count <= context.task.retries
