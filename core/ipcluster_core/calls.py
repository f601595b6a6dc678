"""Calls that are made for many items, or once on each of several engines, and the wait for what comes of them."""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from . import errors
from .connection import Connection, Options
from .futures import TaskFuture
from .namespaces import namespace

__all__ = ["call_each", "collect", "engine_ids", "hold", "results_of", "submit_chunks", "take", "value_of"]

T = TypeVar("T")

#: Seconds for the broker to say which engines are up, where the caller sets no limit.
_ANSWER_SECONDS = 10.0

#: Numbers the calls of this process that belong together.
_gangs = itertools.count()


class _ApplyToAll:
    """One task for many calls, given by columns: they pickle in a fraction of the time that tuples take."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *columns: list[Any]) -> list[Any]:
        return list(map(self._function, *columns))


def submit_chunks(
    connection: Connection, options: Options, fn: Callable[..., T], iterables: Sequence[Iterable[Any]], size: int
) -> list[TaskFuture[list[T]]]:
    """Submit the calls of a map, so many in one task; the shortest of the iterables sets their number."""
    whole, iterators = _ApplyToAll(fn), [iter(items) for items in iterables]
    futures: list[TaskFuture[list[T]]] = []
    length = size if iterators else 0
    while length == size:
        columns = [list(itertools.islice(items, size)) for items in iterators]
        length = min(map(len, columns))
        if length:
            columns = [column[:length] for column in columns]
            futures.append(connection.submit(whole, tuple(columns), {}, options))
    return futures


def results_of(connection: Connection, futures: Iterable[TaskFuture[T]], deadline: float | None) -> Iterator[T]:
    """Yield the results in turn; whoever reads no further has the rest cancelled."""
    waiting = deque(futures)
    try:
        while waiting:
            yield value_of(connection, waiting.popleft(), deadline)
    finally:
        connection.cancel_all(waiting)


def engine_ids(connection: Connection, engines: str | Sequence[int], timeout: float | None) -> Sequence[int]:
    """Return the ids of engines that are given so, or as the name of a set, or as ``"all"``."""
    if not isinstance(engines, str):
        return engines
    name = None if engines == "all" else engines
    found = connection.ask_engines(name, _ANSWER_SECONDS if timeout is None else timeout)
    if not found:
        raise errors.ClusterError(f"no engine of {connection.record.title} is up: wait for one, or scale it")
    return found


def call_each(
    connection: Connection,
    options: Options,
    call: tuple[Callable[..., T], tuple[Any, ...], Mapping[str, Any]],
    ids: Sequence[int],
) -> dict[int, TaskFuture[T]]:
    """Make one call on each engine, as `Client.run` promises it; return the futures by engine."""
    gang = (next(_gangs), len(ids))
    several = [options._replace(engines=(engine,), gang=gang) for engine in ids]
    return dict(zip(ids, connection.submit_each(*call, several), strict=True))


def collect(connection: Connection, futures: Mapping[int, TaskFuture[T]], deadline: float | None) -> dict[int, T]:
    """Wait for the results of calls, or for the first that fails; return them by engine."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    concurrent.futures.wait(futures.values(), left, concurrent.futures.FIRST_EXCEPTION)
    failed = [future for future in futures.values() if future.done() and not _succeeded(future)]
    if failed:
        _raise_with_note(failed[0], [engine for engine, future in futures.items() if not future.done()])
    return {engine: value_of(connection, future, deadline) for engine, future in futures.items()}


def _succeeded(future: concurrent.futures.Future[Any]) -> bool:
    return not future.cancelled() and future.exception() is None


def _raise_with_note(failed: concurrent.futures.Future[Any], busy: Sequence[int]) -> None:
    """Raise what a call raised, and tell which engines run theirs still."""
    try:
        failed.result()
    except BaseException as error:
        if busy:
            still = ", ".join(map(str, busy))
            error.add_note(f"engines {still} are still busy with their part of this call: interrupt or restart them")
        raise


def value_of(connection: Connection, future: TaskFuture[T], deadline: float | None) -> T:
    """Return the result of a task; ClusterTimeout, with what is known of the reason, when it does not come in time."""
    if deadline is None:
        return future.result()
    try:
        return future.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        if future.done():
            raise  # the task's own
        text = f"results of cluster {connection.record.name!r} did not come in time{connection.why_late()}"
        raise errors.ClusterTimeout(text) from None


# what engines run for `Client.push` and `Client.pull`


def hold(values: Mapping[str, Any]) -> None:
    """Keep values on the engine that runs this."""
    namespace().update(values)


def take(names: str | Sequence[str]) -> Any:  # noqa: ANN401 - whatever it keeps
    """Return the value of a name on the engine that runs this, or the values of several by name."""
    held = namespace()
    return held[names] if isinstance(names, str) else {name: held[name] for name in names}
