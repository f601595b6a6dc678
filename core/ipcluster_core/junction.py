"""A trunk on its two descriptors, and what its streams lead to on this host: sockets and pipes.

Nothing here waits for anybody but in `turn`, which waits for all: who takes nothing holds up its own stream alone.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .trunk import SILENCE_SECONDS, Arrived, Closed, Event, Opened, Poked, Trunk, Write

__all__ = ["END_OF_FILE", "Junction"]

#: Why a junction is lost whose other side, or the way to it, is gone.
END_OF_FILE = "end of file"

#: Bytes that are read at once.
_READ_BYTES = 1 << 16

#: Pieces given to the kernel at once; it takes 1024 (IOV_MAX).
_MOST_PIECES = 512

_IN, _OUT = select.POLLIN, select.POLLOUT


@dataclass(slots=True)
class _End:
    """What a stream leads to: a descriptor to read, one to write, or one for both; neither is known at first."""

    reading: int | None = None
    writing: int | None = None
    unsent: deque[memoryview] = field(default_factory=deque)
    is_closing: bool = False


class Junction:
    """One side's end of the way to another host.

    Parameters
    ----------
    trunk
        What is said on it.
    reading, writing
        Its descriptors, which do not block; one for both if it is a socket.
    before
        Called before anything that was read here is sent on.
    poked
        Called with the rank and the writes that have come for it, before anything that came after them is passed on.

    Attributes
    ----------
    lost : str
        Why nothing more will come: empty as long as that is not so.
    """

    def __init__(
        self,
        trunk: Trunk,
        reading: int,
        writing: int,
        *,
        before: Callable[[], None],
        poked: Callable[[int, Sequence[Write]], None],
    ) -> None:
        self.trunk = trunk
        self.lost = ""
        self._reading, self._writing = reading, writing
        self._before, self._poked = before, poked
        self._ends: dict[int, _End] = {}

    def open(self, name: str, *, reading: int, writing: int | None = None) -> None:
        """Have descriptors lead to what has that name on the other side.

        They must not block, and are closed when the stream is.
        """
        self._ends[self.trunk.open(name)] = _End(reading, writing)

    def accept(self, number: int, *, writing: int, reading: int | None = None) -> None:
        """Have a stream that the other side has opened lead to descriptors, as `open` does."""
        end = self._ends.setdefault(number, _End(is_closing=True))  # it may be closed again by now
        end.reading, end.writing = reading, writing
        self._flush(number, end)

    def refuse(self, number: int) -> None:
        """Close a stream that the other side has opened, and that leads nowhere."""
        if number in self._ends:
            self._drop(number)

    def numbers(self) -> Iterable[int]:
        """Return the numbers of the streams that lead somewhere."""
        return tuple(self._ends)

    def turn(self, others: Iterable[int], timeout: float | None = None) -> tuple[set[int], list[Event]]:
        """Wait until something can be done, or for `timeout` seconds; do it.

        Parameters
        ----------
        others
            Descriptors whose readers are elsewhere.
        timeout
            Default: as long as the trunk allows.

        Returns
        -------
        tuple
            Which of the others can be read; what else the other side says: streams that it opens, and what it tells.
        """
        wanted = dict.fromkeys(others, _IN)
        mine = self._interest()
        seconds = self._seconds(timeout)
        poller = select.poll()
        for fd, events in itertools.chain(wanted.items(), mine.items()):
            poller.register(fd, events)
        ready = dict(poller.poll(seconds * 1000))
        found = self._receive() if self._reading in ready and not self.lost else []
        if any(end.reading in ready for end in self._ends.values() if end.reading is not None):
            self._before()
        for number, end in list(self._ends.items()):
            if end.writing in ready and end.unsent:
                self._flush(number, end)
            if end.reading in ready and number in self._ends:
                self._carry(number, end)
        now = time.monotonic()
        # After all that had come was read: this side may have been held up for long, and the other one not be silent.
        if not self.lost and self.trunk.is_silent(now):
            self.lost = f"no word for {SILENCE_SECONDS:g} s"
        self.trunk.tick(now)
        self._send()
        return {fd for fd in wanted if fd in ready}, found

    def _seconds(self, timeout: float | None) -> float:
        left = max(0.0, self.trunk.deadline() - time.monotonic()) + 0.001
        return left if timeout is None else min(left, timeout)

    def _interest(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for number, end in self._ends.items():
            if end.reading is not None and not end.is_closing and self.trunk.room(number):
                found[end.reading] = found.get(end.reading, 0) | _IN
            if end.writing is not None and end.unsent:
                found[end.writing] = found.get(end.writing, 0) | _OUT
        if not self.lost:
            found[self._reading] = found.get(self._reading, 0) | _IN
            if self.trunk.unsent:
                found[self._writing] = found.get(self._writing, 0) | _OUT
        return found

    # the trunk's side

    def _receive(self) -> list[Event]:
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:  # it is gone, and had not read all
            data = b""
        if not data:
            self.lost = END_OF_FILE
            return []
        return self.feed(data)

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes from the other side; return what is no stream's data."""
        try:
            events = self.trunk.feed(data, time.monotonic())
        except (ValueError, LookupError) as error:
            self.lost = f"what comes from there cannot be understood: {error}"
            return []
        found: list[Event] = []
        for event in events:
            match event:
                case Arrived(number, content):
                    self._pass_on(number, content)
                case Closed(number):
                    self._end(number)
                case Poked(rank, writes):
                    self._poked(rank, writes)
                case _:
                    if isinstance(event, Opened):
                        self._ends[event.number] = _End()
                    found.append(event)
        return found

    def _send(self) -> None:
        try:
            while not self.lost and self.trunk.unsent:
                size = os.writev(self._writing, list(itertools.islice(self.trunk.unsent, _MOST_PIECES)))
                self.trunk.sent(size, time.monotonic())
        except BlockingIOError:
            return
        except OSError:  # it is gone; what it had said before is still to be read
            self.trunk.fall_silent()

    # this host's side

    def _pass_on(self, number: int, content: bytes) -> None:
        end = self._ends[number]
        end.unsent.append(memoryview(content))
        self._flush(number, end)

    def _flush(self, number: int, end: _End) -> None:
        try:
            while end.unsent and end.writing is not None:
                size = os.write(end.writing, end.unsent[0])
                self.trunk.give_back(number, size)
                if size < len(end.unsent[0]):
                    end.unsent[0] = end.unsent[0][size:]
                else:
                    end.unsent.popleft()
        except BlockingIOError:
            return
        except OSError:  # nobody reads there any more
            self._drop(number)
            return
        if end.is_closing and not end.unsent:
            self._drop(number)

    def _carry(self, number: int, end: _End) -> None:
        """Send on what can be read, as far as there is room."""
        size = min(_READ_BYTES, self.trunk.room(number))
        if end.reading is None or end.is_closing or not size:
            return
        try:
            data = os.read(end.reading, size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.trunk.send(number, data)
        else:
            self._drop(number)

    def _end(self, number: int) -> None:
        """See to a stream that the other side has closed: what had come of it is still passed on."""
        end = self._ends[number]
        end.is_closing = True
        self._flush(number, end)

    def _drop(self, number: int) -> None:
        self.trunk.close(number)
        end = self._ends.pop(number)
        for fd in {end.reading, end.writing} - {None}:
            with suppress(OSError):
                os.close(fd)  # type: ignore[arg-type]

    # the end

    def has_more(self) -> bool:
        """Tell whether there is anything to be read from what streams lead to."""
        poller = select.poll()
        for end in self._ends.values():
            if end.reading is not None and not end.is_closing:
                poller.register(end.reading, _IN)
        return bool(poller.poll(0))

    def finish(self, timeout: float) -> bool:
        """Pass on what has come, and send what is to be sent, within `timeout` seconds; return whether all was."""
        deadline = time.monotonic() + timeout
        while self._is_unfinished():
            if time.monotonic() >= deadline:
                return False
            self.turn((), max(0.0, deadline - time.monotonic()))
        return True

    def _is_unfinished(self) -> bool:
        sending = bool(self.trunk.unsent) and not self.lost
        return sending or any(end.unsent for end in self._ends.values())
