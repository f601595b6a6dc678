"""What an engine has begun and finished, in memory that outlives it.

The engine writes here before and after each task; the nanny reads it when the engine has died. So it is known for
certain which tasks of a chunk had begun (they are lost), which had finished (their results are here, even if they
were never sent), and which may still run elsewhere.

An engine that leaves by itself says why behind the halves.

Two halves, used in turn: chunk k writes half k % 2. A half is free again when chunk k + 2 comes, because the broker
keeps at most two chunks with an engine.

::

    half: | chunk u32 | begun u32 | finished u32 | entries ... |
    entry: | status u8 | size u32 | payload |       size 0xffffffff: too large, was sent at once
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

from . import interrupts
from .interrupts import Interrupts

__all__ = [
    "HALF_BYTES",
    "INTERRUPTS_AT",
    "Finished",
    "Journal",
    "Progress",
    "make_file",
    "make_memory",
    "map_file",
    "read_head",
    "skip_entries",
]

#: Bytes of one half. Larger results are sent at once and not kept here.
HALF_BYTES = 256 * 1024

#: Bytes for the reason for which an engine leaves, behind both halves.
FAREWELL_BYTES = 256

#: Where the page of interrupts begins.
INTERRUPTS_AT = 2 * HALF_BYTES + FAREWELL_BYTES

_SIZE_BYTES = INTERRUPTS_AT + interrupts.BYTES

_HEAD = struct.Struct("<III")
_COUNTS = struct.Struct("<II")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<BI")
_TOO_LARGE = 0xFFFFFFFF
_NO_CHUNK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Finished:
    """A task that had finished; `payload` is None when it was too large to keep."""

    status: int
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one chunk had come: number of tasks begun, and what came of those finished."""

    chunk: int
    begun: int
    finished: tuple[Finished, ...]


def make_file(path: str) -> int:
    """Return a descriptor of a new file for a journal, for an engine that inherits none; whoever asked closes it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, _SIZE_BYTES)
    return fd


def make_memory() -> int:
    """Return a descriptor of new memory for a journal; whoever asked closes it."""
    fd = os.memfd_create("ipcluster-journal", os.MFD_CLOEXEC)
    os.ftruncate(fd, _SIZE_BYTES)
    return fd


class Journal:
    """Shared memory between an engine (writes) and its nanny (reads). Make it before the fork.

    Parameters
    ----------
    fd
        Descriptor of memory from `make_memory`, for an engine that is executed anew; -1 for memory that forks share.

    Attributes
    ----------
    interrupts : Interrupts
        The other way: what the nanny asks the engine to leave.
    """

    def __init__(self, fd: int = -1) -> None:
        self._map = mmap.mmap(fd, _SIZE_BYTES)
        self.interrupts = Interrupts(self._map, INTERRUPTS_AT)
        self._base = 0
        self._used = 0
        self._finished = 0
        for half in (0, HALF_BYTES):
            _HEAD.pack_into(self._map, half, _NO_CHUNK, 0, 0)

    def open_chunk(self, chunk: int) -> None:
        """Begin a chunk."""
        self._base = HALF_BYTES * (chunk % 2)
        self._used = _HEAD.size
        self._finished = 0
        # The number is written last: a half that is read in between must not say that tasks of this chunk had begun.
        _COUNTS.pack_into(self._map, self._base + _COUNT.size, 0, 0)
        _COUNT.pack_into(self._map, self._base, chunk)

    def begin(self, index: int) -> None:
        """Note that task `index` of the chunk begins."""
        _COUNT.pack_into(self._map, self._base + 4, index + 1)

    def finish(self, status: int, payload: bytes, *, keep: bool = True) -> bool:
        """Note that the task begun last has finished; return whether its payload was kept."""
        size = len(payload)
        at = self._base + self._used
        kept = keep and self._used + _ENTRY.size + size <= HALF_BYTES
        if not kept and self._used + _ENTRY.size > HALF_BYTES:
            return False
        if kept:
            _ENTRY.pack_into(self._map, at, status, size)
            self._map[at + _ENTRY.size : at + _ENTRY.size + size] = payload
            self._used += _ENTRY.size + size
        else:
            _ENTRY.pack_into(self._map, at, status, _TOO_LARGE)
            self._used += _ENTRY.size
        self._finished += 1
        # The count is written last: an entry counts once it is whole.
        _COUNT.pack_into(self._map, self._base + 8, self._finished)
        return kept

    def leave(self, why: str) -> None:
        """Note that the engine leaves between two tasks, for the next one to take its place."""
        text = why.encode()[:FAREWELL_BYTES]
        self._map[2 * HALF_BYTES : 2 * HALF_BYTES + len(text)] = text

    def farewell(self) -> str:
        """Return why the engine left; empty when it did not leave by itself."""
        return self._map[2 * HALF_BYTES :].rstrip(b"\0").decode(errors="replace")

    def read(self) -> list[Progress]:
        """Return what the chunks in both halves had come to, older chunk first.

        User code may have written over this memory before it crashed: what cannot be read is left out.

        Returns
        -------
        list of Progress
            At most two.
        """
        found = []
        for base in (0, HALF_BYTES):
            chunk, begun, finished = _HEAD.unpack_from(self._map, base)
            if chunk != _NO_CHUNK:
                found.append(Progress(chunk, begun, self._entries(base, finished)))
        return sorted(found, key=lambda progress: progress.chunk)

    def _entries(self, base: int, count: int) -> tuple[Finished, ...]:
        at, end = base + _HEAD.size, base + HALF_BYTES
        entries: list[Finished] = []
        while len(entries) < count and at + _ENTRY.size <= end:
            status, size = _ENTRY.unpack_from(self._map, at)
            at += _ENTRY.size
            kept = size != _TOO_LARGE
            if kept and at + size > end:
                break
            entries.append(Finished(status, self._map[at : at + size] if kept else None))
            at += size if kept else 0
        return tuple(entries)

    def running(self) -> tuple[int, int] | None:
        """Return chunk and index of the task that runs; None between two tasks, or without any."""
        heads = [_HEAD.unpack_from(self._map, base) for base in (0, HALF_BYTES)]
        chunk, begun, finished = max((head for head in heads if head[0] != _NO_CHUNK), default=(0, 0, 0))
        return (chunk, begun - 1) if begun > finished else None

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()


# for copies of this memory on two hosts


def map_file(path: str) -> mmap.mmap:
    """Map the file of a journal, as it is."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, _SIZE_BYTES)
    finally:
        os.close(fd)


def read_head(memory: mmap.mmap, base: int) -> tuple[bytes, tuple[int, int, int]]:
    """Return the head of a half: its bytes, and what they say (chunk, begun, finished)."""
    head = memory[base : base + _HEAD.size]
    return head, _HEAD.unpack(head)


def skip_entries(memory: mmap.mmap, base: int, at: int, count: int) -> int:
    """Return where the next entry of a half begins, `count` entries after the one at `at`; 0 means the first."""
    at, end = at or base + _HEAD.size, base + HALF_BYTES
    for _ in range(count):
        if at + _ENTRY.size > end:
            break
        _, size = _ENTRY.unpack_from(memory, at)
        at += _ENTRY.size + (0 if size == _TOO_LARGE else size)
    return min(at, end)
