"""The log files in an incarnation's folder: each has a bound, and can be followed while it is written.

A log that is full is renamed, over the older half that was there, and begun anew: ``engine-3.log``, ``engine-3.log.1``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from .incarnation import older_log
from .output import LONGEST_LINE_BYTES, LineSplitter

__all__ = ["LogFollower", "LogWriter", "PartHandler", "line_buffer", "open_log", "redirect"]

#: Bytes of one file of an engine's log; there are two.
ENGINE_LOG_BYTES = 4 << 20

#: Bytes of one file of another part's log; there are two.
PART_LOG_BYTES = 4 << 20

#: Line by line, see setvbuf(3); the value is that of both glibc and musl.
_IOLBF = 1


def open_log(path: str) -> int:
    """Open a log to add to it; return the descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def redirect(fd: int) -> None:
    """Send standard output and error of this process, of Python and of C, to a descriptor, line by line."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    line_buffer()


def line_buffer() -> None:
    """Have standard output and error, of Python and of C, written line by line, so that last words are not lost."""
    import ctypes

    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115 - lives on
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115 - lives on
    library = ctypes.CDLL(None)
    with suppress(ValueError):  # a C library that names it otherwise
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


class PartHandler(logging.StreamHandler[TextIO]):
    """Writes records to standard error, and begins the log anew when it is full.

    So each part but the engines bounds its own log, also after its nanny has died.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        super().emit(record)
        # A fork that became an engine has a pipe there, whose size is 0.
        with suppress(OSError):
            if os.fstat(2).st_size > PART_LOG_BYTES:
                self._begin_anew(os.readlink("/proc/self/fd/2"))

    @staticmethod
    def _begin_anew(path: str) -> None:
        os.replace(path, older_log(path))
        fd = open_log(path)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


class LogWriter:
    """Adds lines to a log, and begins it anew when it is full.

    A disk that is full costs lines, which are counted, and never the process.
    """

    def __init__(self, path: str, most: int = ENGINE_LOG_BYTES) -> None:
        self._path = path
        self._most = most
        self._lost = 0
        self._fd = open_log(path)
        self._size = os.fstat(self._fd).st_size

    def write(self, lines: Sequence[bytes]) -> None:
        """Add lines."""
        data = b"".join([line + b"\n" for line in lines])
        try:
            if self._size and self._size + len(data) > self._most:
                self._begin_anew()
            if self._lost:
                self._write(f"[ipcluster] {self._lost} lines could not be written to the log\n".encode())
                self._lost = 0
            self._write(data)
        except OSError:
            self._lost += len(lines)

    def _begin_anew(self) -> None:
        with suppress(FileNotFoundError):  # it was renamed before, and there was no room for a new one
            os.replace(self._path, older_log(self._path))
        self._size = self._most  # so that each write tries again, until there is room
        fd = open_log(self._path)
        os.close(self._fd)
        self._fd, self._size = fd, 0

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.write(self._fd, left)
            self._size += written
            left = left[written:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class LogFollower:
    """Reads a log from its beginning, older half first, and goes on as it grows and begins anew."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = LineSplitter(2 * LONGEST_LINE_BYTES)  # a line that was cut has a note behind it
        self._fd = -1
        for half in (older_log(path), path):
            with suppress(FileNotFoundError):
                self._fd = os.open(half, os.O_RDONLY | os.O_CLOEXEC)
                break

    def read(self) -> list[str]:
        """Return the lines that were added since the last call; what has no end yet comes with its end."""
        begun = self._inode_at_path()
        # Read after that look: if another file was at the path by then, this one grows no more and is read to its end.
        lines = self._rest()
        if begun not in (None, self._inode()):
            with suppress(FileNotFoundError):
                fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self.close()
                self._fd = fd
                lines += self._rest()
        return [line.decode(errors="replace") for line in lines]

    def _inode_at_path(self) -> int | None:
        try:
            return os.stat(self._path).st_ino
        except FileNotFoundError:  # gone, or it is being begun anew
            return None

    def _inode(self) -> int | None:
        return os.fstat(self._fd).st_ino if self._fd >= 0 else None

    def _rest(self) -> list[bytes]:
        lines: list[bytes] = []
        while self._fd >= 0 and (data := os.read(self._fd, 1 << 20)):
            lines += self._lines.feed(data)
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
