"""The nanny's side of what engines print: one pipe for each engine, read as it fills.

    engine and its children --pipe--> Capture --lines--> log file, last words, whoever listens

Reading never waits, whatever an engine does: one that is frozen sends nothing, one that floods is slowed by its pipe
and has lines dropped, and a child that outlives its engine keeps its end of the pipe to itself.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from .incarnation import log_path
from .logs import LogWriter
from .output import LineLimit, LineSplitter

__all__ = ["Capture", "Captures"]

#: Bytes that are read at once: what a pipe holds (pipe(7)).
_READ_BYTES = 64 * 1024

#: How much of an engine's output is quoted when it has died.
_LAST_LINES = 20
_LAST_BYTES = 4096


class Capture:
    """What one incarnation of an engine prints."""

    def __init__(self, fd: int, writer: LogWriter, publish: Callable[[Sequence[bytes]], None]) -> None:
        self._fd = fd
        self._writer = writer
        self._publish = publish
        self._splitter = LineSplitter()
        self._limit = LineLimit(time.monotonic())
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._fd

    def pump(self) -> bool:
        """Read once, without waiting; return False when nobody has the other end any more."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._take(self._splitter.feed(data))
        return bool(data)

    def drain(self) -> None:
        """Read what is in the pipe by now, and no more: a child may go on to write. Tell what is missing."""
        size = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, size)
        left = size[0]
        while left > 0 and (data := os.read(self._fd, min(left, _READ_BYTES))):
            left -= len(data)
            self._take(self._splitter.feed(data))
        self._pass_on(self._limit.flush())

    def _take(self, lines: Sequence[bytes]) -> None:
        # Last words are kept also when they come at the end of a flood, and are dropped from the log.
        self._last.extend(lines[-_LAST_LINES:])
        self._pass_on(self._limit.admit(lines, time.monotonic()))

    def _pass_on(self, lines: Sequence[bytes]) -> None:
        if lines:
            self._writer.write(lines)
            self._publish(lines)

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, in monotonic time; None: never."""
        return self._limit.deadline

    def tick(self, now: float) -> None:
        """Tell that lines were dropped, if it is time."""
        self._pass_on(self._limit.admit([], now))

    def last_words(self) -> str:
        """Return the last lines, also if they have no end."""
        return b"\n".join(self._last)[-_LAST_BYTES:].decode(errors="replace")

    def finish(self) -> str:
        """Take what is there, when the engine is dead; return its last words."""
        self.drain()
        self._take(self._splitter.finish())
        self._pass_on(self._limit.flush())
        return self.last_words()

    def close(self) -> None:
        """Close pipe and log."""
        os.close(self._fd)
        self._writer.close()


class Captures:
    """What all engines print. Poll `fileno` and call `serve`.

    Parameters
    ----------
    folder
        Of the incarnation, for the logs.
    publish
        Gets an engine's id and lines.
    """

    def __init__(self, folder: str, publish: Callable[[int, Sequence[bytes]], None]) -> None:
        self._folder = folder
        self._publish = publish
        self._epoll = select.epoll()
        self._open: dict[int, Capture] = {}

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._epoll.fileno()

    def open(self, engine: int, fifo: str | None = None) -> tuple[Capture, int]:
        """Begin to capture an engine; return what does, and the descriptor to which the engine is to write."""
        # An engine that is no child here opens `fifo`, a path, by itself; the descriptor keeps that from its end.
        writer = LogWriter(log_path(self._folder, f"engine-{engine}"))
        if fifo is None:
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
        else:
            os.mkfifo(fifo, 0o600)
            read = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            write = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)
        capture = Capture(read, writer, lambda lines: self._publish(engine, lines))
        self._open[read] = capture
        self._epoll.register(read, select.EPOLLIN)
        return capture, write

    def serve(self) -> None:
        """Read once from each pipe that has something, and give the notices whose time has come."""
        for fd, _ in self._epoll.poll(0):
            if not self._open[fd].pump():
                # The engine has closed its output, and may live on: the end of its process is told otherwise.
                self._epoll.unregister(fd)
        now = time.monotonic()
        for capture in self._open.values():
            if capture.deadline is not None and now >= capture.deadline:
                capture.tick(now)

    def deadline(self) -> float | None:
        """When to call `serve` although no pipe has anything; None: never."""
        times = [capture.deadline for capture in self._open.values()]
        return min((time for time in times if time is not None), default=None)

    def drain(self) -> None:
        """Take all that engines have written by now."""
        for capture in self._open.values():
            capture.drain()

    def close(self, capture: Capture) -> None:
        """Finish capturing an engine that is dead."""
        capture.finish()
        if self._open.pop(capture.fileno(), None) is not None:
            with suppress(FileNotFoundError):  # its pipe had come to its end
                self._epoll.unregister(capture.fileno())
            capture.close()

    def end(self) -> None:
        """Finish capturing all engines: what is left of them is dead."""
        for capture in list(self._open.values()):
            self.close(capture)
        self._epoll.close()
