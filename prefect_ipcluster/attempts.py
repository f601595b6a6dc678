"""One attempt of a task that works on a cluster: what is kept when it fails, and stopped when it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.context import TaskRunContext
from prefect.utilities.annotations import BaseAnnotation, opaque

from ipcluster_core import Client
from ipcluster_core.errors import ClusterError, ClusterTimeout

from .chunks import ChunkedMap, recall, remember
from .reports import run_logger

__all__ = ["MapTask", "a_map", "attempt", "left_of"]

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
def attempt(client: Client, unfinished: Callable[[], list[str]]) -> Generator[None]:
    """Cancel on the cluster what is not finished when the block is left by an exception."""
    try:
        yield
    except BaseException:
        _cancel(client, unfinished())
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


def left_of(deadline: float | None, most: float, work: ChunkedMap, client: Client) -> float:
    """Return how many seconds to wait at a time; ClusterTimeout when a deadline has passed."""
    if deadline is None:
        return most
    left = deadline - time.monotonic()
    if left <= 0:
        raise ClusterTimeout(
            f"a map over {work.total} items on cluster {client.name!r} was not done in time: {work.percent:.0f}% are"
        )
    return min(most, left)


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
