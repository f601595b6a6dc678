"""How processes of one host send each other messages: frames over a stream socket, without a thread in between.

::

    | frames u32 | bytes of each u64 ... | frame | frame | ...          little-endian

A message queue's own I/O threads stand between a message and whoever waits for it: a task went from client to engine
and back through fourteen wake-ups, and goes through five on plain sockets, in a third of the time.

Sending does not wait for the other end: what the kernel does not take is kept and sent by `flush`. On a blocking
channel (an engine's) it does wait, as does receiving.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from .wire import Buffer

__all__ = ["Channel", "connect", "listen"]

#: Bytes read at once. Less than what makes the allocator ask the kernel for each.
_READ_BYTES = 1 << 16

#: Bytes in the kernel that the other end has not read yet, as far as it grants them.
_ROOM_BYTES = 2 << 20

#: Messages of at most so many bytes are copied into one piece: cheaper than telling the kernel of many.
_SMALL_BYTES = 1 << 14

#: Pieces given to the kernel at once; it takes 1024 (IOV_MAX).
_MOST_PIECES = 512

#: Bytes and frames of a message beyond which it is none of ours.
_MOST_BYTES = 1 << 40
_MOST_FRAMES = 1 << 16

#: Longest path that fits a sockaddr_un with its final NUL (unix(7)).
_LONGEST_PATH = 107

#: Connections that wait to be accepted.
_BACKLOG = 1024

_COUNT = struct.Struct("<I")
_SIZE_BYTES = 8


class Channel:
    """One end. Not safe for two threads that send at once, or receive at once.

    Parameters
    ----------
    end
        A connected stream socket.
    blocking
        Whether sending and receiving wait.
    limit
        Bytes of the longest message that is taken; may be changed later.
    """

    def __init__(self, end: socket.socket, *, blocking: bool = False, limit: int = _MOST_BYTES) -> None:
        end.settimeout(None if blocking else 0)
        # The kernel calls a socket writable only while most of its room is free.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        self.limit = limit
        self._socket = end
        self._unsent: deque[Buffer] = deque()
        self._rest = b""
        self._large: bytearray | None = None  # a message that is coming in pieces
        self._filled = 0

    def fileno(self) -> int:
        """Return the descriptor, to poll."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent: poll for writing, and call `flush`."""
        return bool(self._unsent)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that are still to be sent."""
        return sum(len(piece) for piece in self._unsent)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a message; what is not taken at once is kept, not copied.

        Returns
        -------
        bool
            False when the other end is gone, which `receive` tells too.
        """
        if sum(map(len, frames)) <= _SMALL_BYTES:
            self._unsent.append(b"".join((_head(frames), *frames)))
        else:
            self._unsent.append(_head(frames))
            self._unsent.extend(frame for frame in frames if len(frame))
        return self.flush()

    def send_at_once(self, messages: Sequence[Sequence[Buffer]], taken: list[int]) -> None:
        """Send small messages whole, or not at all: then they are too large, or there is no room, or nobody any more.

        Parameters
        ----------
        messages
            What to send while nothing else is `waiting`.
        taken
            Gets one number if they were sent. That is certain even if a signal handler raises at any point of this.
        """
        if sum(len(frame) for frames in messages for frame in frames) > _SMALL_BYTES:
            return
        data = b"".join(piece for frames in messages for piece in (_head(frames), *frames))
        try:
            # From C to C: no handler runs between the sending and the note of it.
            taken.extend(map(self._socket.send, (data,)))
        except OSError:
            return
        finally:
            if taken and taken[0] < len(data):  # the kernel takes so little in one piece, but does not promise it
                self._unsent.append(memoryview(data)[taken[0] :])

    def flush(self, timeout: float = 0.0) -> bool:
        """Send what is kept, as far as it is taken within `timeout` seconds.

        Returns
        -------
        bool
            False when the other end is gone: nothing is kept for it.
        """
        deadline = time.monotonic() + timeout if timeout else 0.0
        try:
            while self._unsent and (self._write() or self._wait_writable(deadline - time.monotonic())):
                pass
        except OSError:
            self._unsent.clear()
            return False
        return True

    def _write(self) -> bool:
        """Send some of what is kept; return False when the kernel takes nothing."""
        try:
            if len(self._unsent) == 1:
                self._drop(self._socket.send(self._unsent[0]))
            else:
                self._drop(self._socket.sendmsg(list(itertools.islice(self._unsent, _MOST_PIECES))))
        except BlockingIOError:
            return False
        return True

    def _drop(self, sent: int) -> None:
        """Forget so many bytes of what is kept."""
        unsent = self._unsent
        while sent:
            size = len(unsent[0])
            if sent < size:
                unsent[0] = memoryview(unsent[0])[sent:]
                return
            sent -= size
            unsent.popleft()

    def _wait_writable(self, seconds: float) -> bool:
        if seconds <= 0:
            return False
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        return bool(poller.poll(seconds * 1000))

    def receive(self) -> list[list[memoryview]]:
        """Read until a message is complete, or nothing more is there.

        Returns
        -------
        list of list of memoryview
            Messages, each the list of its frames; empty when none is complete, which does not occur on a blocking
            channel.

        Raises
        ------
        EOFError
            The other end is gone. Whatever it had sent was returned before.
        ValueError
            This is no message of ours, or longer than the limit: nothing more can be read from here.
        """
        try:
            while True:
                found = self._read_large() if self._large is not None else self._read()
                if found:
                    return found
        except BlockingIOError:
            return []
        except ConnectionResetError:
            raise EOFError from None

    def _read(self) -> list[list[memoryview]]:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise EOFError
        if self._rest:
            data = self._rest + data
        found: list[list[memoryview]] = []
        at = 0
        view = memoryview(data)
        while (sizes := self._sizes(view, at)) is not None:
            start = at + _COUNT.size + _SIZE_BYTES * len(sizes)
            end = start + sum(sizes)
            if end - at > self.limit:
                raise ValueError(f"a message of {end - at} bytes, where at most {self.limit} are taken")
            if end > len(data):
                if end - at > _READ_BYTES:
                    self._begin_large(view[at:], end - at)
                    return found
                break
            found.append(_cut(view, start, sizes))
            at = end
        self._rest = data[at:]
        return found

    @staticmethod
    def _sizes(data: memoryview, at: int) -> tuple[int, ...] | None:
        """Read the sizes of a message's frames; None when they are not there yet."""
        if len(data) - at < _COUNT.size:
            return None
        (count,) = _COUNT.unpack_from(data, at)
        if not 0 < count <= _MOST_FRAMES:
            raise ValueError(f"a message of {count} frames is none of ours")
        if len(data) - at < _COUNT.size + _SIZE_BYTES * count:
            return None
        return struct.unpack_from(f"<{count}Q", data, at + _COUNT.size)

    def _begin_large(self, start: memoryview, size: int) -> None:
        self._rest = b""
        try:
            self._large, self._filled = bytearray(size), len(start)
        except MemoryError:
            raise ValueError(f"there is no memory for a message of {size} bytes") from None
        self._large[: len(start)] = start

    def _read_large(self) -> list[list[memoryview]]:
        whole = self._large or bytearray()
        with memoryview(whole) as view:
            got = self._socket.recv_into(view[self._filled :])
        if got == 0:
            raise EOFError
        self._filled += got
        if self._filled < len(whole):
            return []
        self._large = None
        view = memoryview(whole)
        sizes = self._sizes(view, 0) or ()
        return [_cut(view, _COUNT.size + _SIZE_BYTES * len(sizes), sizes)]

    def shut(self) -> None:
        """Let both ends see the end; safe from another thread, and repeatable."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close this end; what is kept is not sent."""
        self._unsent.clear()
        self._socket.close()


def _head(frames: Sequence[Buffer]) -> bytes:
    return struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))


def _cut(view: memoryview, start: int, sizes: Sequence[int]) -> list[memoryview]:
    frames = []
    for size in sizes:
        frames.append(view[start : start + size])
        start += size
    return frames


def listen(folder: str, name: str) -> socket.socket:
    """Return a listening socket of that name in a folder, which does not block."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _with_address(folder, name, listener.bind)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: str, name: str) -> socket.socket:
    """Return a blocking socket that is connected to the one of that name in a folder.

    Returns
    -------
    socket.socket
        Connected.

    Raises
    ------
    OSError
        It is not there, or nobody listens any more.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _with_address(folder, name, end.connect)
    except BaseException:
        end.close()
        raise
    return end


def _with_address(folder: str, name: str, use: Callable[[str], None]) -> None:
    """Use a socket's address; one too long is reached through its folder's descriptor, so no short folder is needed."""
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        use(path)
        return
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)
