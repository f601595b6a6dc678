"""One map over many items: cut into chunks, sent to a cluster, collected, and continued when its task is retried.

::

    attempt 1:  begin(client) -> pending -> a chunk fails: the others are finished, or go on on the cluster
    attempt 2:  begin(client) -> finished ones are kept, running ones found by task id, the failed one is sent anew

Between the attempts of a task run its map is kept in this process, under the id of the task run.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ipcluster_core import Client
from ipcluster_core.errors import ClusterError

from .applied import Apply

__all__ = ["ChunkedMap", "forget", "recall", "remember", "size_of"]

#: Most chunks of a map whose chunk size is not given: enough to spread the load and to tell the progress.
MOST_CHUNKS = 1000

#: Most maps that are kept for a further attempt; the oldest is given up.
MOST_KEPT = 16

_CANCELLED = "a chunk of the map was cancelled by another step: map again, or retry the task"

_kept: OrderedDict[str, ChunkedMap] = OrderedDict()


@dataclass(slots=True, eq=False)
class _Chunk:
    """A part of the items. `fetched` tells that its future is of a task that an earlier attempt has sent."""

    columns: tuple[list[Any], ...]
    task_id: str = ""
    future: Future[list[Any]] | None = None
    fetched: bool = False

    @property
    def error(self) -> BaseException | None:
        """What it failed with; None if it has not."""
        if self.future is None or not self.future.done():
            return None
        return ClusterError(_CANCELLED) if self.future.cancelled() else self.future.exception()

    @property
    def finished(self) -> bool:
        """Whether its results are here."""
        return self.future is not None and self.future.done() and self.error is None


class ChunkedMap:
    """The chunks of one map, and what has become of each.

    Parameters
    ----------
    function, keep_errors
        As for `Apply`.
    iterables
        Read to the end at once; the shortest sets the length.
    chunksize
        Items in a chunk; default: so many that there are at most 1000 chunks.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        iterables: Iterable[Iterable[Any]],
        *,
        chunksize: int | None = None,
        keep_errors: bool = False,
    ) -> None:
        columns = [list(items) for items in iterables]
        self.total = min(map(len, columns), default=0)
        size = size_of(self.total, chunksize)
        self._apply = Apply(function, keep_errors=keep_errors)
        self._chunks = [
            _Chunk(tuple(column[start : min(start + size, self.total)] for column in columns))
            for start in range(0, self.total, size)
        ]

    def begin(self, client: Client) -> None:
        """Send what is not finished, but for the chunks that an earlier attempt has sent and that did not fail."""
        for chunk in self._chunks:
            if chunk.finished:
                continue
            if chunk.task_id and chunk.error is None:
                chunk.future, chunk.fetched = client.future(chunk.task_id), True
            else:
                self._send(client, chunk)

    def _send(self, client: Client, chunk: _Chunk) -> None:
        future = client.submit(self._apply, *chunk.columns)
        chunk.future, chunk.task_id, chunk.fetched = future, future.task_id, False

    def pending(self, client: Client) -> list[Future[list[Any]]]:
        """Return what has to be waited for.

        A chunk of an earlier attempt that has failed since, or whose result is not kept any more, is sent anew.

        Returns
        -------
        list of Future
            Empty when all results are here.

        Raises
        ------
        Exception
            Whatever a chunk has failed with.
        """
        waiting = []
        for chunk in self._chunks:
            if chunk.fetched and chunk.error is not None:
                self._send(client, chunk)
            if chunk.error is not None:
                raise chunk.error
            if chunk.future is not None and not chunk.future.done():
                waiting.append(chunk.future)
        return waiting

    def park(self) -> None:
        """Forget the futures of what is not over: their client is about to go, their tasks go on."""
        for chunk in self._chunks:
            if chunk.future is not None and not chunk.future.done():
                chunk.future = None

    @property
    def unfinished(self) -> list[str]:
        """Ids of the tasks that were sent and are not over."""
        return [chunk.task_id for chunk in self._chunks if chunk.future is not None and not chunk.future.done()]

    @property
    def percent(self) -> float:
        """How much of it is finished."""
        done = sum(chunk.finished for chunk in self._chunks)
        return 100.0 * done / len(self._chunks) if self._chunks else 100.0

    def results(self) -> list[Any]:
        """Return all results, in the order of the items."""
        return list(chain.from_iterable(chunk.future.result() for chunk in self._chunks if chunk.future is not None))


def size_of(total: int, chunksize: int | None) -> int:
    """Return the number of items in a chunk; ValueError when one is asked for that is not positive."""
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"a chunk has at least one item, not {chunksize}")
    return chunksize or max(1, math.ceil(total / MOST_CHUNKS))


def recall(run_id: str | None) -> ChunkedMap | None:
    """Return the map that an earlier attempt of this task run has kept."""
    return None if run_id is None else _kept.pop(run_id, None)


def remember(run_id: str, kept: ChunkedMap) -> None:
    """Keep a map for the next attempt of its task run."""
    _kept[run_id] = kept
    while len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)


def forget() -> None:
    """Give up all maps that are kept."""
    _kept.clear()
