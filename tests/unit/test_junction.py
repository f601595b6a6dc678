"""Two junctions with a wire between them: what is written at one end of a stream is read at the other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ipcluster_core.junction import END_OF_FILE, Junction
from ipcluster_core.trunk import SILENCE_SECONDS, WINDOW_BYTES, Event, Opened, Told, Trunk, Write

#: Seconds after which what should have come has not.
LIMIT = 10.0


class Wire:
    """Two junctions, turned in one thread."""

    def __init__(self) -> None:
        self.ends = socket.socketpair()
        self.asked = 0
        for end in self.ends:
            end.settimeout(0)
        head, outpost = (end.fileno() for end in self.ends)
        #: Called when the outpost is told what has changed in a rank's memory.
        self.poked: Callable[[int, Sequence[Write]], None] = lambda rank, writes: None
        trunks = Trunk(time.monotonic(), first=1), Trunk(time.monotonic(), first=2)
        self.head = Junction(trunks[0], head, head, before=self._ask, poked=self._on_poked)
        self.outpost = Junction(trunks[1], outpost, outpost, before=lambda: None, poked=self._on_poked)

    def _on_poked(self, rank: int, writes: Sequence[Write]) -> None:
        self.poked(rank, writes)

    def _ask(self) -> None:
        self.asked += 1

    def turn(self) -> tuple[list[Event], list[Event]]:
        """Turn both once, without waiting; return what each was told."""
        return self.head.turn((), 0.0)[1], self.outpost.turn((), 0.0)[1]

    def turn_until_opened(self) -> int:
        """Turn until the outpost is told of a stream; return its number."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for event in self.turn()[1]:
                if isinstance(event, Opened):
                    return event.number
        raise AssertionError("no stream was opened")

    def stream(self) -> tuple[socket.socket, socket.socket]:
        """Open a stream; return the sockets that it connects, one on each side."""
        near, here = socket.socketpair()
        far, there = socket.socketpair()
        for end in (near, here, far, there):
            end.settimeout(0)
        fd = here.detach()
        self.head.open("task", reading=fd, writing=fd)
        number, fd = self.turn_until_opened(), there.detach()
        self.outpost.accept(number, reading=fd, writing=fd)
        return near, far

    def read(self, end: socket.socket, size: int) -> bytes:
        """Turn until so many bytes have come to a socket, or its end has."""
        found, deadline = b"", time.monotonic() + LIMIT
        while len(found) < size and time.monotonic() < deadline:
            self.turn()
            with suppress(BlockingIOError):
                data = end.recv(1 << 16)
                found += data
                if not data:
                    break
        return found

    def close(self) -> None:
        """Close what is left."""
        for junction in (self.head, self.outpost):
            for number in list(junction.numbers()):
                junction.refuse(number)
        for end in self.ends:
            end.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A new one."""
    made = Wire()
    yield made
    made.close()


def test_bytes_pass_in_both_directions(wire: Wire) -> None:
    """And whoever is to be asked before anything is sent on is asked."""
    near, far = wire.stream()
    with near, far:
        near.send(b"there")
        there = wire.read(far, 5)
        far.send(b"and back")

        assert (there, wire.read(near, 8)) == (b"there", b"and back")
        assert wire.asked == 1


def test_what_changed_in_a_ranks_memory_is_told_before_what_was_said_after_it(wire: Wire) -> None:
    """Also when both come at once: a rank is signalled when it can read what for."""
    near, far = wire.stream()
    with near, far:
        seen: list[object] = []

        def look(rank: int, writes: Sequence[Write]) -> None:
            with pytest.raises(BlockingIOError):
                far.recv(100)
            seen.append((rank, writes))

        wire.poked = look
        near.send(b"signal")
        wire.head.trunk.poke(1, [Write(4, b"wish")])
        found = wire.read(far, 6)

        assert seen == [(1, [Write(4, b"wish")])]
        assert found == b"signal"


def test_the_end_of_one_side_is_the_end_of_the_other_behind_all_that_was_said(wire: Wire) -> None:
    """Descriptors are closed with the stream."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    near, far = wire.stream()
    with near, far:
        near.send(b"last words")
        near.close()

        assert wire.read(far, 100) == b"last words"
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 1


def test_what_comes_before_a_stream_is_taken_waits_for_that(wire: Wire) -> None:
    """Its opener need not wait, and may be gone again by then."""
    near, here = socket.socketpair()
    far, there = socket.socketpair()
    with near, far:
        for end in (here, far, there):
            end.settimeout(0)
        near.send(b"order")
        near.close()
        fd = here.detach()
        wire.head.open("errand", reading=fd, writing=fd)
        number, fd = wire.turn_until_opened(), there.detach()
        for _ in range(3):
            wire.turn()
        wire.outpost.accept(number, reading=fd, writing=fd)

        assert wire.read(far, 100) == b"order"


def test_a_stream_that_leads_nowhere_ends(wire: Wire) -> None:
    """At its opener."""
    near, here = socket.socketpair()
    with near:
        near.settimeout(0)
        here.settimeout(0)
        fd = here.detach()
        wire.head.open("nothing", reading=fd, writing=fd)
        wire.outpost.refuse(wire.turn_until_opened())

        assert wire.read(near, 1) == b""
        assert list(wire.head.numbers()) == []


def test_who_takes_nothing_holds_up_nobody_else(wire: Wire) -> None:
    """What waits for it is bounded; when it reads on, all comes."""
    slow, idle = wire.stream()
    near, far = wire.stream()
    data = os.urandom(4 * WINDOW_BYTES)
    with slow, idle, near, far:
        left = memoryview(data)
        stuck = 0
        while stuck < 100:
            with suppress(BlockingIOError):
                left, stuck = left[slow.send(left[: 1 << 16]) :], -1
            stuck += 1
            wire.turn()
        near.send(b"quick")
        quick = wire.read(far, 5)
        found = b""
        while left:
            with suppress(BlockingIOError):
                left = left[slow.send(left[: 1 << 16]) :]
            found += wire.read(idle, 1)
        found += wire.read(idle, len(data) - len(found))

        assert quick == b"quick"
        assert found == data


def test_the_end_of_the_way_is_known_when_all_was_read(wire: Wire) -> None:
    """Also by a side that had something to say itself: that is in vain, and no reason not to listen."""
    near, far = wire.stream()
    with near, far:
        far.send(b"result")
        wire.outpost.trunk.tell({"gone": []})
        wire.outpost.turn((), 0.0)
        wire.ends[1].close()
        wire.head.trunk.tell({"do": "end"})
        told: list[Event] = []
        while not wire.head.lost:
            told += wire.head.turn((), 0.0)[1]
        wire.head.finish(LIMIT)

        assert told == [Told({"gone": []})]
        assert near.recv(100) == b"result"
        assert wire.head.lost == END_OF_FILE


def test_silence_is_the_loss_of_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless something has come meanwhile that was not read yet: then it was this side that did not listen."""
    wire = Wire()
    start = time.monotonic()
    wire.outpost.trunk.tell({"ready": True})
    wire.outpost.turn((), 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: start + 10 * SILENCE_SECONDS)
    wire.head.turn((), 0.0)
    heard = wire.head.lost
    monkeypatch.setattr(time, "monotonic", lambda: start + 20 * SILENCE_SECONDS)
    wire.head.turn((), 0.0)
    wire.close()

    assert (heard, wire.head.lost) == ("", "no word for 10 s")
