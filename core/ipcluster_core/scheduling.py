"""Which task goes to which engine: pure state, no bytes, no clock, no sockets.

A client's submit is a `Work`: a run of tasks of one function. Engines take it in slices (chunks). A chunk is as
large as ten milliseconds of work by the function's measured mean, but no more than keeps all engines busy; a
function that was never measured goes one task at a time. An engine holds at most two chunks, and the second only
behind one that is known to be short: so a slow task never sits in front of quick ones. An engine that is to leave
after so many tasks is given no more than those.

Each task is queued, held by one engine, or settled; a task is settled exactly once. Tasks are handed out in the
order in which they came, also those that come back from an engine that died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from .works import HELD, QUEUED, SETTLED, Slice, Work, Works

__all__ = ["Assignment", "Backlog", "Load", "Lost", "Scheduler", "Slice", "Work"]

#: Largest number of tasks in a chunk.
MOST_TASKS = 256

#: Seconds of work that a chunk aims at.
CHUNK_SECONDS = 0.010

#: Less work than this is not split among engines: a message costs about a quarter of it, in all processes.
LEAST_SECONDS = 0.0005

#: An engine gets a second chunk behind one that is estimated to take less than this, in seconds.
SHORT_SECONDS = 0.020

#: Works by which what is queued is estimated: a look must not hold up the tasks.
LOOKED_AT = 1000

#: Weight of the newest measurement in a function's mean.
_NEWEST = 0.3


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


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queued tasks that any engine may take: `unmeasured` ones, and how long the others take together, in seconds."""

    tasks: int
    unmeasured: int
    seconds: float


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
    suspended: bool = False
    named_only: bool = False  # takes what names it, and nothing else
    left: int | None = None  # tasks that it may still be given
    gone: frozenset[int] | None = None  # what else was expected when it was said to be gone, before it was lost

    @property
    def hungry(self) -> bool:
        if len(self.chunks) > 1 or self.suspended or self.left == 0:
            return False
        return all(held.seconds is not None and held.seconds < SHORT_SECONDS for held in self.chunks.values())


class Scheduler:
    """Decides; whoever drives it tells it what happened and performs the assignments it returns.

    An engine is given at most `max_tasks` tasks until it is seated anew; None means no limit.
    """

    def __init__(self, max_tasks: int | None = None) -> None:
        self._max_tasks = max_tasks
        self._seats: dict[int, _Seat] = {}
        # By the engines that may take from it, each ordered by age.
        self._queues: dict[frozenset[int] | None, deque[Slice]] = {}
        # Engines that can take a chunk: those with none, then those with one short one.
        self._hungry: tuple[dict[int, None], dict[int, None]] = ({}, {})
        self._means: dict[Hashable, float] = {}
        self._works: dict[Hashable, Works] = {}
        self._arrivals = 0
        self._queued = 0
        self._running = 0
        self._settled = 0

    @property
    def load(self) -> Load:
        """Tasks queued, with engines, and settled so far."""
        return Load(self._queued, self._running, self._settled)

    def backlog(self) -> Backlog:
        """Estimate what waits for any engine, by the oldest `LOOKED_AT` works."""
        queue = self._queues.get(None, deque())
        tasks = unmeasured = 0
        seconds = 0.0
        for piece in islice(queue, LOOKED_AT):
            count = piece.queued
            mean = self._means.get(piece.work.function)
            tasks += count
            unmeasured += count if mean is None else 0
            seconds += count * (mean or 0.0)
        scale = max(1.0, len(queue) / LOOKED_AT)
        return Backlog(int(tasks * scale), int(unmeasured * scale), seconds * scale)

    @property
    def engines(self) -> dict[int, int]:
        """Engines that are seated, with the number of tasks that each holds."""
        return {
            engine: sum(held.slice.stop - held.slice.start - held.settled for held in seat.chunks.values())
            for engine, seat in self._seats.items()
        }

    def submit(self, work: Work) -> None:
        """Queue a work.

        Raises
        ------
        ValueError
            The client has a task of that number already.
        """
        self._works.setdefault(work.client, Works()).add(work)
        self._queued += work.count
        self._arrivals += 1
        work.arrival = self._arrivals
        self._queue(work).append(Slice(work, 0, work.count))

    def has_work(self, client: Hashable) -> bool:
        """Tell whether any task of a client is not settled."""
        return client in self._works

    def engine_up(self, engine: int, *, named_only: bool = False) -> None:
        """Seat an engine that can take work; with `named_only`, such as names it (a rank of an MPI set)."""
        self._seats[engine] = _Seat(left=None if named_only else self._max_tasks, named_only=named_only)
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

    def task_at(self, engine: int, chunk: int, index: int) -> tuple[Hashable, int] | None:
        """Return client and number of a task that an engine has; None if it has no such task (any more)."""
        seat = self._seats.get(engine)
        held = seat.chunks.get(chunk) if seat else None
        if held is None or index >= held.slice.stop - held.slice.start:
            return None
        return held.slice.work.client, held.slice.work.base + held.slice.start + index

    def settled(self, engine: int, chunk: int) -> int | None:
        """Return how many tasks of a chunk are settled; None when the engine holds no such chunk."""
        seat = self._seats.get(engine)
        held = seat.chunks.get(chunk) if seat else None
        return None if held is None else held.settled

    def engine_lost(self, engine: int, begun: Mapping[int, int], *, all_begun: bool = False) -> list[Lost]:
        """Unseat an engine that died. Tell the tasks that it had finished by `done` before.

        Parameters
        ----------
        engine
            Its id.
        begun
            By chunk, how many tasks had begun.
        all_begun
            Whether those that had not are lost too.

        Returns
        -------
        list of Lost
            Tasks that had begun and may not be tried again. Those not begun are queued again, in their old place.
        """
        seat = self._seats.pop(engine, None)
        self._note_hunger(engine)
        lost: list[Lost] = []
        if seat is None:
            return lost
        for number in sorted(seat.chunks, reverse=True):
            held = seat.chunks[number]
            work, first, stop = held.slice.work, held.slice.start + held.settled, held.slice.stop
            untouched = stop if all_begun else min(stop, max(first, held.slice.start + begun.get(number, 0)))
            self._requeue(work, untouched, stop)
            for index in range(untouched - 1, first - 1, -1):
                work.losses[index] = work.losses.get(index, 0) + 1
                if work.losses[index] <= work.retries:
                    self._requeue(work, index, index + 1)
                    continue
                self._settle(work, index, index + 1)
                lost.append(Lost(work, index, engine))
        if seat.gone is not None:
            lost += self.engine_gone(engine, seat.gone)
        return lost

    def engine_gone(self, engine: int, expected: Iterable[int]) -> list[Lost]:
        """Give up the queued tasks that only engines could take which will not come (back).

        Parameters
        ----------
        engine
            The one that left for good. If its loss was not told yet, this takes effect together with it.
        expected
            Those that are up or on their way.

        Returns
        -------
        list of Lost
            The tasks given up.
        """
        seat = self._seats.get(engine)
        if seat is not None:
            seat.gone = frozenset(expected)
            return []
        possible = self._seats.keys() | set(expected)
        hopeless = [key for key in self._queues if key is not None and not key & possible]
        return [lost for key in hopeless for piece in self._queues.pop(key) for lost in self._give_up(piece)]

    def give_up_on(self, engines: Iterable[int]) -> list[Lost]:
        """Give up the queued tasks that only these engines could take.

        Returns
        -------
        list of Lost
            The tasks given up.
        """
        these = frozenset(engines)
        keys = [key for key in self._queues if key is not None and key <= these]
        return [lost for key in keys for piece in self._queues.pop(key) for lost in self._give_up(piece)]

    def give_up_waiting(self) -> list[Lost]:
        """Give up the queued tasks that any engine might take: none will come.

        Returns
        -------
        list of Lost
            The tasks given up.
        """
        return [lost for piece in self._queues.pop(None, ()) for lost in self._give_up(piece)]

    def cancel(self, client: Hashable, number: int) -> Work | None:
        """Settle a task that is still queued.

        Returns
        -------
        Work or None
            The work that it belongs to; None if an engine has it, it is over, or it is unknown.
        """
        work = self._find(client, number)
        if work is None or work.state[number - work.base] != QUEUED:
            return None
        self._settle_queued(work, number - work.base)
        return work

    def is_unsettled(self, client: Hashable, number: int) -> bool:
        """Tell whether a task is there and not settled."""
        work = self._find(client, number)
        return work is not None and work.state[number - work.base] != SETTLED

    def holder(self, client: Hashable, number: int) -> tuple[int, int, int] | None:
        """Return engine, chunk, and index in the chunk of a task that an engine has; None if none has it."""
        work = self._find(client, number)
        if work is None or work.state[number - work.base] != HELD:
            return None
        index = number - work.base
        for engine, seat in self._seats.items():
            for chunk, held in seat.chunks.items():
                if held.slice.work is work and held.slice.start <= index < held.slice.stop:
                    return engine, chunk, index - held.slice.start
        return None

    def _find(self, client: Hashable, number: int) -> Work | None:
        works = self._works.get(client)
        return works.find(number) if works else None

    def retire(self, engines: Iterable[int], count: int, *, only_idle: bool = False) -> list[int]:
        """Choose `count` of the engines to leave, idle ones first; they get nothing new that another may take.

        With `only_idle` those are left alone, and so fewer are chosen, that hold a task or are named by one.

        Returns
        -------
        list of int
            The chosen. Each may be stopped once `is_idle` holds for it.
        """
        held = self.engines
        able = [engine for engine in engines if engine in self._seats and not self._seats[engine].retiring]
        if only_idle:
            named = {
                engine
                for key, queue in self._queues.items()
                if key and any(piece.queued for piece in queue)
                for engine in key
            }
            able = [engine for engine in able if not self._seats[engine].chunks and engine not in named]
        able.sort(key=lambda engine: (not self.is_idle(engine), held[engine], -engine))
        for engine in able[:count]:
            self._seats[engine].retiring = True
        return able[:count]

    def suspend(self, engine: int) -> None:
        """Give an engine nothing more: its process is about to be replaced, and its own tasks wait for the next one."""
        if engine in self._seats:
            self._seats[engine].suspended = True
            self._note_hunger(engine)

    def is_idle(self, engine: int) -> bool:
        """Tell whether the engine holds no task, and none is queued that only this engine may take."""
        seat = self._seats.get(engine)
        if seat is None:
            return True
        own = self._queues.get(frozenset((engine,)), ())
        return not seat.chunks and not any(piece.queued for piece in own)

    def _note_hunger(self, engine: int) -> None:
        for group in self._hungry:
            group.pop(engine, None)
        seat = self._seats.get(engine)
        if seat is not None and seat.hungry:
            self._hungry[len(seat.chunks)][engine] = None

    def _queue(self, work: Work) -> deque[Slice]:
        return self._queues.setdefault(work.engines, deque())

    def _requeue(self, work: Work, start: int, stop: int) -> None:
        if start == stop:
            return
        work.state[start:stop] = bytes(stop - start)
        self._queued += stop - start
        self._running -= stop - start
        # Nothing older is queued but what came back as well: the place is near the front.
        queue, piece, older = self._queue(work), Slice(work, start, stop), deque[Slice]()
        while queue and queue[0].age < piece.age:
            older.appendleft(queue.popleft())
        queue.appendleft(piece)
        queue.extendleft(older)

    def _give_up(self, piece: Slice) -> Iterator[Lost]:
        for index in range(piece.start, piece.stop):
            if piece.work.state[index] == QUEUED:
                self._settle_queued(piece.work, index)
                yield Lost(piece.work, index, None)

    def _settle_queued(self, work: Work, index: int) -> None:
        self._queued -= 1
        self._running += 1
        self._settle(work, index, index + 1)

    def _settle(self, work: Work, start: int, stop: int) -> None:
        work.state[start:stop] = bytes((SETTLED,)) * (stop - start)
        work.unsettled -= stop - start
        self._running -= stop - start
        self._settled += stop - start
        if work.unsettled == 0:
            works = self._works[work.client]
            works.remove(work)
            if not works:
                del self._works[work.client]

    def _measure(self, function: Hashable, seconds: float) -> None:
        mean = self._means.get(function)
        self._means[function] = seconds if mean is None else mean + _NEWEST * (seconds - mean)

    def _size(self, work: Work) -> int:
        mean = self._means.get(work.function)
        if mean is None or work.timeout is not None:
            return 1
        fair = self._queued // (2 * max(1, len(self._seats)))
        worth_a_message = int(LEAST_SECONDS / max(mean, 1e-9))
        return max(1, min(MOST_TASKS, max(fair, worth_a_message), int(CHUNK_SECONDS / max(mean, 1e-9))))

    def _open_to(self, engine: int) -> list[deque[Slice]]:
        """Return the queues that an engine may take from: a retiring one only from its own."""
        if self._seats[engine].retiring:
            own = self._queues.get(frozenset((engine,)))
            return [own] if own else []
        any_too = not self._seats[engine].named_only
        return [queue for key, queue in self._queues.items() if queue and (any_too if key is None else engine in key)]

    def _take(self, engine: int) -> Slice | None:
        """Cut the next slice for an engine off the queue whose front is oldest."""
        while queues := self._open_to(engine):
            queue = min(queues, key=lambda queue: queue[0].age)
            if queue[0].work.timeout is not None and self._seats[engine].chunks:
                return None  # its time would run while it waits
            piece = queue.popleft()
            taken = self._cut(piece, self._seats[engine].left)
            if taken is not None and taken.stop < piece.stop:
                queue.appendleft(Slice(piece.work, taken.stop, piece.stop))
            if not queue and piece.work.engines is not None:
                del self._queues[piece.work.engines]
            if taken is not None:
                return taken
        return None

    def _cut(self, piece: Slice, most: int | None) -> Slice | None:
        """Return a chunk off the front of a slice: from behind the first hole (a cancelled task) up to the next."""
        work = piece.work
        start = work.state.find(QUEUED, piece.start, piece.stop)
        if start < 0:
            return None
        size = self._size(work)
        stop = min(start + (size if most is None else min(size, most)), piece.stop)
        hole = work.state.find(SETTLED, start, stop)
        return Slice(work, start, stop if hole < 0 else hole)

    def _seat_chunk(self, engine: int, piece: Slice) -> Assignment:
        seat = self._seats[engine]
        count = piece.stop - piece.start
        piece.work.state[piece.start : piece.stop] = bytes((HELD,)) * count
        self._queued -= count
        self._running += count
        mean = self._means.get(piece.work.function)
        number = seat.next_chunk
        seat.next_chunk += 1
        if seat.left is not None:
            seat.left -= count
        timed = piece.work.timeout is not None
        seat.chunks[number] = _Held(piece, 0, None if mean is None or timed else mean * count)
        self._note_hunger(engine)
        return Assignment(engine, number, piece)
