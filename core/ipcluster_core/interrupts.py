"""Which tasks an engine shall leave, in memory that it shares with its nanny.

The nanny writes what is to be interrupted, and signals; the engine's handler reads it and raises in the user's code
only if exactly that task is running at that moment. So an interrupt that comes too late hits nobody, and one that comes
early (the task waits in a chunk) is remembered. What it has interrupted it notes, for the nanny to tell.

::

    | written u32 | read u32 | entry x 512 |       entry: | chunk u32 | index u32 | why u8 | interrupted u8 |
"""

from __future__ import annotations

import enum
import mmap
import signal
import struct

__all__ = ["BYTES", "SIGNAL", "Interrupts", "Outcome", "Why", "answered", "asked"]

#: Tells an engine to look here. A real-time signal: users' programs have their own plans for the others.
SIGNAL = signal.SIGRTMIN + 7

_COUNTS = struct.Struct("<II")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<IIBB")
_MOST = 512

#: Bytes of memory that it takes.
BYTES = _COUNTS.size + _MOST * _ENTRY.size


class Why(enum.IntEnum):
    """What becomes of an interrupted task."""

    INTERRUPT = 0  # its KeyboardInterrupt is its outcome
    CANCEL = 1  # it is cancelled


class Outcome(enum.StrEnum):
    """What became of the wish to interrupt what an engine runs."""

    INTERRUPTED = "interrupted"
    IDLE = "idle"  # nothing ran, or it came to its end by itself
    GOES_ON = "goes on: cannot be interrupted here, use restart"
    NOT_UP = "not up"  # there is no process, or it ended meanwhile


class Interrupts:
    """One page of shared memory.

    Parameters
    ----------
    memory
        Shared between the two processes.
    start
        Where it begins in the memory.
    """

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start

    def add(self, chunk: int, index: int, why: Why) -> bool:
        """Ask for an interrupt; return False when there is no room for it: the engine reads none at all."""
        written, read = _COUNTS.unpack_from(self._memory, self._start)
        if not 0 <= written - read < _MOST:
            return False
        _ENTRY.pack_into(self._memory, self._at(written), chunk, index, why, 0)
        # The count is written last: an entry counts once it is whole.
        _COUNT.pack_into(self._memory, self._start, written + 1)
        return True

    def take(self) -> dict[tuple[int, int], Why]:
        """Return what was added since the last call, by chunk and index."""
        written, read = _COUNTS.unpack_from(self._memory, self._start)
        found = {}
        for number in range(max(read, written - _MOST), written):
            chunk, index, why, _ = _ENTRY.unpack_from(self._memory, self._at(number))
            found[chunk, index] = Why.CANCEL if why == Why.CANCEL else Why.INTERRUPT
        _COUNT.pack_into(self._memory, self._start + _COUNT.size, written)
        return found

    def note(self, chunk: int, index: int) -> None:
        """Note that a task is interrupted now."""
        for number in self._entries():
            found, at, why, _ = _ENTRY.unpack_from(self._memory, self._at(number))
            if (found, at) == (chunk, index):
                _ENTRY.pack_into(self._memory, self._at(number), chunk, index, why, 1)

    def noted(self, chunk: int, index: int) -> bool:
        """Tell whether a task was interrupted."""
        entries = [_ENTRY.unpack_from(self._memory, self._at(number)) for number in self._entries()]
        return any((found, at) == (chunk, index) and done for found, at, _, done in entries)

    def _entries(self) -> range:
        (written,) = _COUNT.unpack_from(self._memory, self._start)
        return range(max(0, written - _MOST), written)

    def _at(self, number: int) -> int:
        return self._start + _COUNTS.size + number % _MOST * _ENTRY.size


# which side writes what, for copies of this memory on two hosts; places count from the beginning of the page


def asked(page: bytes, known: int) -> tuple[list[slice], int]:
    """Return what the nanny has written since it had written `known` entries, the count last; and how many it has."""
    (written,) = _COUNT.unpack_from(page)
    if written == known:
        return [], written
    starts = [_COUNTS.size + number % _MOST * _ENTRY.size for number in range(max(known, written - _MOST), written)]
    return [slice(start, start + _ENTRY.size) for start in starts] + [slice(0, _COUNT.size)], written


def answered(page: bytes, before: bytes) -> list[slice]:
    """Return where an engine has written since the page was as `before`: how many it has read, what it has noted."""
    if page == before:
        return []
    mine = [slice(_COUNT.size, _COUNTS.size)]
    mine += [slice(end - 1, end) for end in range(_COUNTS.size + _ENTRY.size, BYTES + 1, _ENTRY.size)]
    return [place for place in mine if page[place] != before[place]]
