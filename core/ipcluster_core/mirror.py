"""A rank's journal on its own host, and the copy of it at the head: what has to be carried over. Pure but for memory.

::

    the rank writes, and reads interrupts        the nanny reads, and writes interrupts
              its journal      --- Mirror.news --->      the copy
                               <-- Wishes.news ---

What counts is written last, on both sides: the copy never says that something had finished whose outcome it lacks.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from . import interrupts, journal
from .trunk import Write

__all__ = ["Mirror", "Wishes", "carry_out"]


class Mirror:
    """Sees what a rank writes into its journal."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._halves = [_Half(memory, base) for base in (0, journal.HALF_BYTES)]
        self._page = _page(memory)

    def news(self) -> list[Write]:
        """Return what has changed since the last call, to be carried out in this order."""
        # Read before what they count, and written after it.
        progress = [write for half in self._halves for write in half.news()]
        page, before = _page(self._memory), self._page
        self._page = page
        return [_write(page, place) for place in interrupts.answered(page, before)] + progress

    @property
    def is_busy(self) -> bool:
        """Whether a task runs, as far as is known: then something will change."""
        return any(half.begun > half.finished for half in self._halves)


class _Half:
    def __init__(self, memory: mmap.mmap, base: int) -> None:
        self._memory = memory
        self._base = base
        self._head = b""
        self._chunk = -1
        self._end = 0  # of the entries that are known
        self.begun = self.finished = 0

    def news(self) -> list[Write]:
        head, (chunk, begun, finished) = journal.read_head(self._memory, self._base)
        if head == self._head:
            return []
        if chunk != self._chunk or finished < self.finished:
            self._end = self.finished = 0
        start = self._end or journal.skip_entries(self._memory, self._base, 0, 0)
        self._end = journal.skip_entries(self._memory, self._base, start, finished - self.finished)
        self._head, self._chunk, self.begun, self.finished = head, chunk, begun, finished
        entries = [Write(start, self._memory[start : self._end])] if self._end > start else []
        return [*entries, Write(self._base, head)]


class Wishes:
    """Sees which interrupts the nanny writes into the copy of a journal."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._written = 0

    def news(self) -> list[Write]:
        """Return what has changed since the last call, to be carried out in this order."""
        page = _page(self._memory)
        places, self._written = interrupts.asked(page, self._written)
        return [_write(page, place) for place in places]


def carry_out(memory: mmap.mmap, writes: Iterable[Write]) -> None:
    """Make the other side's writes here; those outside of the memory are none of ours."""
    for offset, content in writes:
        if offset + len(content) <= len(memory):
            memory[offset : offset + len(content)] = content


def _page(memory: mmap.mmap) -> bytes:
    return memory[journal.INTERRUPTS_AT : journal.INTERRUPTS_AT + interrupts.BYTES]


def _write(page: bytes, place: slice) -> Write:
    return Write(journal.INTERRUPTS_AT + place.start, page[place])
