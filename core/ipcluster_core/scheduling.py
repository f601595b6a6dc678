"""Which task goes to which engine: pure state, no bytes, no clock, no sockets.

A client's submit is a `Work`: a run of tasks of one function. Engines take it in slices (chunks). A chunk is as
large as ten milliseconds of work by the function's measured mean, but no more than keeps all engines busy; a
function that was never measured goes one task at a time. An engine holds at most two chunks, and the second only
behind one that is known to be short: so a slow task never sits in front of quick ones.

Each task is queued, held by one engine, or settled; a task is settled exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Assignment", "Load", "Lost", "Scheduler", "Slice", "Work"]

#: Largest number of tasks in a chunk.
MOST_TASKS = 256

#: Seconds of work that a chunk aims at.
CHUNK_SECONDS = 0.010

#: An engine gets a second chunk behind one that is estimated to take less than this, in seconds.
SHORT_SECONDS = 0.020

#: Weight of the newest measurement in a function's mean.
_NEWEST = 0.3

_QUEUED, _HELD, _SETTLED = 0, 1, 2


@dataclass(slots=True, eq=False)
class Work:
    """A run of `count` tasks of one function, numbered from `base` by their client.

    `engines` limits it to those; `retries` is how often one of its tasks may be run again after it was lost
    together with its engine.
    """

    client: Hashable
    base: int
    count: int
    function: Hashable
    engines: frozenset[int] | None = None
    retries: int = 0
    losses: dict[int, int] = field(default_factory=dict)
    state: bytearray = field(default_factory=bytearray)
    unsettled: int = 0

    def __post_init__(self) -> None:
        self.state = bytearray(self.count)
        self.unsettled = self.count


@dataclass(frozen=True, slots=True)
class Slice:
    """Tasks ``start .. stop`` of a work, by index."""

    work: Work
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Send this slice to that engine as its chunk of that number."""

    engine: int
    chunk: int
    slice: Slice


@dataclass(frozen=True, slots=True)
class Lost:
    """A task that will not come back: it had begun on an engine that died, or no engine can take it any more."""

    work: Work
    index: int
    engine: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """How busy it all is, in tasks."""

    queued: int
    running: int
    settled: int


@dataclass(slots=True)
class _Held:
    slice: Slice
    settled: int
    seconds: float | None


@dataclass(slots=True)
class _Seat:
    """An engine as the scheduler sees it."""

    chunks: dict[int, _Held] = field(default_factory=dict)
    next_chunk: int = 0
    retiring: bool = False

    @property
    def hungry(self) -> bool:
        if self.retiring or len(self.chunks) > 1:
            return False
        return all(held.seconds is not None and held.seconds < SHORT_SECONDS for held in self.chunks.values())


class Scheduler:
    """Decides; whoever drives it tells it what happened and performs the assignments it returns."""

    def __init__(self) -> None:
        self._seats: dict[int, _Seat] = {}
        self._queues: dict[frozenset[int] | None, deque[tuple[int, Slice]]] = {}
        # Engines that can take a chunk: those with none, then those with one short one.
        self._hungry: tuple[dict[int, None], dict[int, None]] = ({}, {})
        self._means: dict[Hashable, float] = {}
        self._works: dict[Hashable, dict[int, Work]] = {}
        self._arrivals = 0
        self._queued = 0
        self._running = 0
        self._settled = 0

    @property
    def load(self) -> Load:
        """Tasks queued, with engines, and settled so far."""
        return Load(self._queued, self._running, self._settled)

    @property
    def engines(self) -> dict[int, int]:
        """Engines that are seated, with the number of tasks that each holds."""
        return {
            engine: sum(held.slice.stop - held.slice.start - held.settled for held in seat.chunks.values())
            for engine, seat in self._seats.items()
        }

    def submit(self, work: Work) -> None:
        """Queue a work."""
        self._works.setdefault(work.client, {})[work.base] = work
        self._queued += work.count
        self._arrivals += 1
        self._queue(work).append((self._arrivals, Slice(work, 0, work.count)))

    def engine_up(self, engine: int) -> None:
        """Seat an engine that can take work."""
        self._seats[engine] = _Seat()
        self._note_hunger(engine)

    def assign(self) -> list[Assignment]:
        """Hand out what can be handed out now."""
        made = []
        progress = True
        while progress and self._queued:
            progress = False
            for engine in [*self._hungry[0], *self._hungry[1]]:
                if not self._queued:
                    break
                piece = self._take(engine)
                if piece is not None:
                    made.append(self._seat_chunk(engine, piece))
                    progress = True
        return made

    def done(self, engine: int, chunk: int, count: int, seconds: float) -> Slice | None:
        """Settle the next `count` tasks of a chunk, which took `seconds` together.

        Returns
        -------
        Slice or None
            Those tasks; None when the engine holds no such chunk (it was given up before).
        """
        seat = self._seats.get(engine)
        held = seat.chunks.get(chunk) if seat else None
        if seat is None or held is None:
            return None
        start = held.slice.start + held.settled
        count = min(count, held.slice.stop - start)
        held.settled += count
        self._settle(held.slice.work, start, start + count)
        if count and seconds >= 0:
            self._measure(held.slice.work.function, seconds / count)
        if held.slice.start + held.settled == held.slice.stop:
            del seat.chunks[chunk]
        self._note_hunger(engine)
        return Slice(held.slice.work, start, start + count)

    def settled(self, engine: int, chunk: int) -> int | None:
        """Return how many tasks of a chunk are settled; None when the engine holds no such chunk."""
        seat = self._seats.get(engine)
        held = seat.chunks.get(chunk) if seat else None
        return None if held is None else held.settled

    def engine_lost(self, engine: int, begun: Mapping[int, int]) -> list[Lost]:
        """Unseat an engine that died. Tell the tasks that it had finished by `done` before.

        Parameters
        ----------
        engine
            Its id.
        begun
            By chunk, how many tasks had begun.

        Returns
        -------
        list of Lost
            Tasks that had begun and may not be tried again. Those not begun are queued again, in front.
        """
        seat = self._seats.pop(engine, None)
        self._note_hunger(engine)
        lost: list[Lost] = []
        if seat is None:
            return lost
        for number in sorted(seat.chunks, reverse=True):
            held = seat.chunks[number]
            work, first = held.slice.work, held.slice.start + held.settled
            untouched = max(first, held.slice.start + begun.get(number, 0))
            self._requeue(work, untouched, held.slice.stop)
            for index in range(untouched - 1, first - 1, -1):
                work.losses[index] = work.losses.get(index, 0) + 1
                if work.losses[index] <= work.retries:
                    self._requeue(work, index, index + 1)
                    continue
                self._settle(work, index, index + 1)
                lost.append(Lost(work, index, engine))
        return lost

    def engine_gone(self, engine: int, expected: Iterable[int]) -> list[Lost]:
        """Give up the queued tasks that only engines could take which will not come (back).

        `expected` are the engines that are up or on their way, `engine` the one that left for good.
        """
        possible = set(expected) | set(self._seats)
        possible.discard(engine)
        lost = []
        for key in [key for key in self._queues if key is not None and not key & possible]:
            for _, piece in self._queues.pop(key):
                for index in range(piece.start, piece.stop):
                    if piece.work.state[index] == _QUEUED:
                        self._queued -= 1
                        self._running += 1
                        self._settle(piece.work, index, index + 1)
                        lost.append(Lost(piece.work, index, None))
        return lost

    def cancel(self, client: Hashable, number: int) -> bool:
        """Settle a task that is still queued; False if an engine has it, it is over, or it is unknown."""
        for work in self._works.get(client, {}).values():
            index = number - work.base
            if 0 <= index < work.count:
                if work.state[index] != _QUEUED:
                    return False
                self._queued -= 1
                self._running += 1
                self._settle(work, index, index + 1)
                return True
        return False

    def retire(self, engines: Iterable[int], count: int) -> list[int]:
        """Choose `count` of the engines to leave, idle ones first; they get nothing new.

        Returns
        -------
        list of int
            The chosen. Each may be stopped once `is_idle` holds for it.
        """
        able = [engine for engine in engines if engine in self._seats and not self._seats[engine].retiring]
        able.sort(key=lambda engine: (bool(self._seats[engine].chunks), self.engines[engine], -engine))
        for engine in able[:count]:
            self._seats[engine].retiring = True
            self._note_hunger(engine)
        return able[:count]

    def is_idle(self, engine: int) -> bool:
        """Tell whether the engine holds no task."""
        seat = self._seats.get(engine)
        return seat is None or not seat.chunks

    def _note_hunger(self, engine: int) -> None:
        for group in self._hungry:
            group.pop(engine, None)
        seat = self._seats.get(engine)
        if seat is not None and seat.hungry:
            self._hungry[len(seat.chunks)][engine] = None

    def _queue(self, work: Work) -> deque[tuple[int, Slice]]:
        return self._queues.setdefault(work.engines, deque())

    def _requeue(self, work: Work, start: int, stop: int) -> None:
        if start < stop:
            work.state[start:stop] = bytes(stop - start)
            self._queued += stop - start
            self._running -= stop - start
            self._queue(work).appendleft((0, Slice(work, start, stop)))

    def _settle(self, work: Work, start: int, stop: int) -> None:
        work.state[start:stop] = bytes((_SETTLED,)) * (stop - start)
        work.unsettled -= stop - start
        self._running -= stop - start
        self._settled += stop - start
        if work.unsettled == 0:
            works = self._works[work.client]
            works.pop(work.base, None)
            if not works:
                del self._works[work.client]

    def _measure(self, function: Hashable, seconds: float) -> None:
        mean = self._means.get(function)
        self._means[function] = seconds if mean is None else mean + _NEWEST * (seconds - mean)

    def _size(self, work: Work) -> int:
        mean = self._means.get(work.function)
        if mean is None:
            return 1
        fair = self._queued // (2 * max(1, len(self._seats)))
        return max(1, min(MOST_TASKS, fair, int(CHUNK_SECONDS / max(mean, 1e-9))))

    def _take(self, engine: int) -> Slice | None:
        """Cut the next slice for an engine off the oldest queue that it may take from."""
        while True:
            best: deque[tuple[int, Slice]] | None = None
            for key, queue in self._queues.items():
                if (key is None or engine in key) and queue and (best is None or queue[0][0] < best[0][0]):
                    best = queue
            if best is None:
                return None
            arrival, piece = best.popleft()
            work = piece.work
            # Cancelled tasks leave holes: begin behind one, end in front of the next.
            start = work.state.find(_QUEUED, piece.start, piece.stop)
            if start >= 0:
                hole = work.state.find(_SETTLED, start, piece.stop)
                stop = min(start + self._size(work), piece.stop if hole < 0 else hole)
                if stop < piece.stop:
                    best.appendleft((arrival, Slice(work, stop, piece.stop)))
                elif not best and work.engines is not None:
                    del self._queues[work.engines]
                return Slice(work, start, stop)
            if not best and work.engines is not None:
                del self._queues[work.engines]

    def _seat_chunk(self, engine: int, piece: Slice) -> Assignment:
        seat = self._seats[engine]
        count = piece.stop - piece.start
        piece.work.state[piece.start : piece.stop] = bytes((_HELD,)) * count
        self._queued -= count
        self._running += count
        mean = self._means.get(piece.work.function)
        number = seat.next_chunk
        seat.next_chunk += 1
        seat.chunks[number] = _Held(piece, 0, None if mean is None else mean * count)
        self._note_hunger(engine)
        return Assignment(engine, number, piece)
