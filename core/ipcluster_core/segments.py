"""Large buffers between processes of one host: shared-memory segments that are used again and again.

Touching fresh shared memory costs many times the copy itself, so a writer keeps its segments. A segment is a file in
the incarnation's folder in ``/dev/shm``; its first byte says whether it is busy. What travels in a message is a
reference to it. The reader copies out (into private, writable memory in huge pages), so nobody's lifetime depends on
anybody's arrays, and then the byte is cleared: for results by the reader, for arguments by the client when the task is
settled, because until then the task may have to be sent to another engine. Very large memory is given back then.

Where there is no such folder, or no room in it, buffers travel in the messages themselves.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

__all__ = ["SEGMENT_BYTES", "Copies", "Pool", "Reader", "folder_of", "is_reference", "remove"]

#: Buffers of at least so many bytes go through a segment.
SEGMENT_BYTES = 1 << 20

#: A buffer frame shorter than this is a reference: buffers this small are never sent out of band.
_LONGEST_REFERENCE = 1024

#: Most bytes of segments that one writer keeps.
_POOL_BYTES = 1 << 30

#: A segment of more bytes is not kept: whoever frees it gives its memory back, also that which others have mapped.
_LARGEST_KEPT_BYTES = 256 << 20

#: Data begins a page behind the flag, so that arrays are aligned.
_OFFSET = mmap.PAGESIZE

_FREE, _BUSY, _EMPTY = 0, 1, 2

_SHARED = "/dev/shm"  # noqa: S108 - the folder in it is private and has a random name

Buffer = bytes | bytearray | memoryview


def folder_of(uid: str) -> str:
    """Return the folder for the segments of an incarnation."""
    return os.path.join(_SHARED, f"ipcluster-{uid}")


def is_reference(buffer: Buffer) -> bool:
    """Tell whether a buffer of a message stands for a segment."""
    return len(buffer) < _LONGEST_REFERENCE


def remove(folder: str, prefix: str, *, free_only: bool = False) -> None:
    """Remove a writer's segments after it has gone; with `free_only`, those that nobody has yet to read."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(f"{prefix}-")]
    except FileNotFoundError:
        return
    for path in (os.path.join(folder, name) for name in names):
        with suppress(OSError), open(path, "rb") as file:
            if not free_only or file.read(1) != bytes((_BUSY,)):
                os.unlink(path)


class _Segment:
    """A mapped segment."""

    def __init__(self, path: str, size: int = 0) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if size else 0)
        fd = os.open(path, flags, 0o600)
        try:
            if size:
                # Reserved now: touching a page that a full file system cannot give would be a SIGBUS.
                os.posix_fallocate(fd, 0, _OFFSET + size)
            self.map = mmap.mmap(fd, 0)
        except OSError:
            if size:
                os.unlink(path)
            raise
        finally:
            os.close(fd)
        self.path = path
        self.size = len(self.map) - _OFFSET

    @property
    def busy(self) -> bool:
        return self.map[0] == _BUSY

    @property
    def empty(self) -> bool:
        return self.map[0] == _EMPTY

    def occupy(self) -> None:
        self.map[0] = _BUSY

    def free(self) -> None:
        if self.size <= _LARGEST_KEPT_BYTES:
            self.map[0] = _FREE
            return
        with suppress(OSError):
            os.truncate(self.path, _OFFSET)
        self.map[0] = _EMPTY

    def remove(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self.map.close()


class Pool:
    """A writer's segments. `prefix` is its name among the writers of the incarnation.

    A pool takes over the segments that an earlier process with its prefix has left. Its own never get the name of an
    earlier one: readers keep segments mapped by their names, also when these are gone.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._segments: dict[str, _Segment] = {}
        self._token = os.urandom(4).hex()
        self._made = 0
        self._lock = threading.Lock()
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(f"{prefix}-"):
                self._segments[name] = _Segment(os.path.join(folder, name))

    def share(self, buffers: Sequence[memoryview]) -> list[Buffer]:
        """Return buffers with references in place of those that are large, as far as there is room."""
        return [(buffer.nbytes >= SEGMENT_BYTES and self._write(buffer)) or buffer for buffer in buffers]

    def _write(self, buffer: memoryview) -> bytes | None:
        with self._lock:
            self._drop(lambda segment: segment.empty)
            fitting = [s for s in self._segments.values() if not s.busy and s.size >= buffer.nbytes]
            segment = min(fitting, key=lambda s: s.size, default=None) or self._make(buffer.nbytes)
            if segment is None:
                return None
            segment.occupy()
        segment.map[_OFFSET : _OFFSET + buffer.nbytes] = buffer.cast("B")
        return json.dumps({"segment": os.path.basename(segment.path), "bytes": buffer.nbytes}).encode()

    def _make(self, size: int) -> _Segment | None:
        for name, segment in list(self._segments.items()):
            if self._kept() + size <= _POOL_BYTES:
                break
            if not segment.busy:
                segment.remove()
                del self._segments[name]
        if self._kept() + size > _POOL_BYTES or not os.path.isdir(self._folder):
            return None
        self._made += 1
        name = f"{self._prefix}-{self._token}-{self._made}"
        with suppress(OSError):
            segment = self._segments[name] = _Segment(os.path.join(self._folder, name), size)
            return segment
        return None

    def _drop(self, is_useless: Callable[[_Segment], bool]) -> None:
        for name in [name for name, segment in self._segments.items() if is_useless(segment)]:
            self._segments.pop(name).remove()

    def _kept(self) -> int:
        return sum(segment.size for segment in self._segments.values())

    def release(self, buffers: Sequence[Buffer]) -> None:
        """Say that nobody needs what is referred to any more."""
        for buffer in buffers:
            if is_reference(buffer):
                segment = self._segments.get(json.loads(bytes(buffer))["segment"])
                if segment is not None:
                    segment.free()

    def close(self) -> None:
        """Remove the segments that are free. Busy ones stay for the tasks that need them."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for segment in self._segments.values():
            if segment.busy:
                segment.map.close()
            else:
                segment.remove()
        self._segments.clear()


class Reader:
    """Maps the segments of others, and copies out of them."""

    #: Segments kept mapped: mapping one again costs as much as copying it.
    _MOST = 16

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._segments: dict[str, _Segment] = {}

    def load(self, buffers: Sequence[Buffer], *, release: bool) -> list[Buffer]:
        """Return buffers with private copies in place of the references; with `release`, free their segments."""
        return [self._copy(buffer, release=release) if is_reference(buffer) else buffer for buffer in buffers]

    def _copy(self, reference: Buffer, *, release: bool) -> Buffer:
        found = json.loads(bytes(reference))
        segment, size = self._open(found["segment"]), int(found["bytes"])
        # Private: memory that forks could share gets no huge pages, and every page of it a fault.
        private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):
            private.madvise(mmap.MADV_HUGEPAGE)
        copy = memoryview(private)
        copy[:] = memoryview(segment.map)[_OFFSET : _OFFSET + size]
        if release:
            segment.free()
        return copy

    def release(self, buffers: Sequence[Buffer]) -> None:
        """Free the segments that are referred to, unread."""
        for buffer in buffers:
            if is_reference(buffer):
                with suppress(OSError):
                    self._open(json.loads(bytes(buffer))["segment"]).free()

    def _open(self, name: str) -> _Segment:
        segment = self._segments.get(name)
        if segment is None:
            if os.path.basename(name) != name:
                raise ValueError(f"{name!r} is not the name of a segment")
            while len(self._segments) >= self._MOST:
                self._segments.pop(next(iter(self._segments))).map.close()
            segment = self._segments[name] = _Segment(os.path.join(self._folder, name))
        return segment

    def close(self) -> None:
        """Unmap everything."""
        for segment in self._segments.values():
            segment.map.close()
        self._segments.clear()


class Copies:
    """Makes copies of shared buffers for those who cannot read segments, being on another host: one for all of them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._made: dict[bytes, Buffer] = {}

    def __call__(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return buffers with copies in place of references; those that cannot be read stay, and are an error there."""
        return [self._copy(buffer) if is_reference(buffer) else buffer for buffer in buffers]

    def _copy(self, buffer: Buffer) -> Buffer:
        reference = bytes(buffer)
        if reference not in self._made:
            with suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
                (self._made[reference],) = self._reader.load([reference], release=False)
        return self._made.get(reference, buffer)

    def forget(self) -> None:
        """Make new copies from now on: what stands behind a reference may have changed."""
        self._made.clear()
