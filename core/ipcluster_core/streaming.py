"""Engines' output, line by line, in the processes that ask for it.

The nanny, which reads what engines write, serves a Unix socket in the incarnation's folder. What passes is lines::

    reader                                nanny
      | <secret>               ------------>  |
      |  <--------------- ready | refused     |
      |  <--------------- <engine> <text>     |   each line that any engine writes from now on
      | sync <n>               ------------>  |   takes what is in the engines' pipes by now
      |  <--------------- synced <n>          |   behind all of it

A reader that is slow costs the nanny a bounded amount of memory: lines are dropped for it, counted, and it is told.
"""

from __future__ import annotations

import itertools
import logging
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from .aftermath import known_end
from .channel import connect, listen
from .errors import ClusterBroken, ClusterError, ClusterTimeout, NotAuthorized
from .incarnation import require_here, secret_of
from .output import LONGEST_LINE_BYTES, LineSplitter, notice_of
from .record import Record
from .store import Store

__all__ = ["Backlog", "OutputStream", "Publisher"]

logger = logging.getLogger("ipcluster.output")

#: Name of the socket in an incarnation's folder.
OUTPUT = "output"

#: Bytes that may wait for a reader.
BACKLOG_BYTES = 4 << 20

#: Readers at a time: each holds a descriptor of the nanny's.
_MOST_READERS = 100

#: Longest line that a reader may send, in bytes.
_LONGEST_REQUEST = 4096

#: Seconds that the nanny, at its end, waits for readers to take the last lines.
_FAREWELL_SECONDS = 0.5

#: Seconds that the end of a stream waits for the thread that delivers.
_JOIN_SECONDS = 5.0

_TOO_SLOW = ": this reader was too slow"


class Backlog:
    """What one reader has not taken yet: bounded, in order, with a notice where lines are missing."""

    def __init__(self, most: int = BACKLOG_BYTES) -> None:
        self._most = most
        self._waiting = bytearray()
        self._dropped: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, engine: int, lines: Sequence[bytes]) -> None:
        """Take an engine's lines, or count them."""
        for line in lines:
            # Once something was dropped, all is until there is much room: so that notices are few.
            if self._dropped or len(self._waiting) + len(line) > self._most:
                self._dropped[engine] += 1
            else:
                self._waiting += b"%d %s\n" % (engine, line)

    def say(self, answer: bytes) -> None:
        """Take an answer, which is never dropped."""
        self._tell_dropped()
        self._waiting += answer + b"\n"

    def next(self) -> bytes:
        """Return what to send next."""
        return bytes(self._waiting[: 1 << 18])

    def sent(self, size: int) -> None:
        """Note that so much of it was sent."""
        del self._waiting[:size]
        if len(self._waiting) <= self._most // 2:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        for engine, count in self._dropped.items():
            self._waiting += b"%d %s\n" % (engine, notice_of(count, _TOO_SLOW))
        self._dropped.clear()


class _Reader:
    """The nanny's side of one reader."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.requests = LineSplitter(_LONGEST_REQUEST)
        self.backlog = Backlog()
        self.admitted = False
        self.refused = False


class Publisher:
    """The nanny's side. Poll `fileno` and call `serve`; nothing in it waits for a reader.

    Parameters
    ----------
    folder
        Of the incarnation, which only its user may enter.
    authorize
        Tells whether what a reader shows is the secret.
    drain
        Publishes what engines have written by now.
    """

    def __init__(self, folder: str, authorize: Callable[[bytes], bool], drain: Callable[[], None]) -> None:
        self._authorize = authorize
        self._drain = drain
        self._readers: dict[int, _Reader] = {}
        self._listener = listen(folder, OUTPUT)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._epoll.fileno()

    def publish(self, engine: int, lines: Sequence[bytes]) -> None:
        """Send an engine's lines to all readers."""
        for reader in list(self._readers.values()):
            if reader.admitted:
                reader.backlog.add(engine, lines)
                self._send(reader)

    def serve(self, timeout: float = 0.0) -> None:
        """Accept readers, answer them, and send what they take."""
        for fd, events in self._epoll.poll(timeout):
            reader = self._readers.get(fd)
            if fd == self._listener.fileno():
                self._accept()
            elif reader is not None:
                if events & ~select.EPOLLOUT:
                    self._receive(reader)
                self._send(reader)

    def _accept(self) -> None:
        with suppress(OSError):  # it has gone again, or no descriptor is to be had
            connection, _ = self._listener.accept()
            if len(self._readers) >= _MOST_READERS:
                connection.close()
                return
            connection.settimeout(0)
            self._readers[connection.fileno()] = _Reader(connection)
            self._epoll.register(connection, select.EPOLLIN)

    def _receive(self, reader: _Reader) -> None:
        try:
            data = reader.connection.recv(_LONGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(reader)
            return
        for request in reader.requests.feed(data):
            self._answer(reader, request)
        if len(reader.backlog) > 2 * BACKLOG_BYTES:  # it asks and asks, and takes no answer
            self._forget(reader)

    def _answer(self, reader: _Reader, request: bytes) -> None:
        if reader.refused:
            return
        if not reader.admitted:
            reader.admitted = self._authorize(request)
            reader.refused = not reader.admitted
            reader.backlog.say(b"ready" if reader.admitted else b"refused")
        elif request.startswith(b"sync "):
            self._drain()
            reader.backlog.say(b"synced " + request[5:])

    def _send(self, reader: _Reader) -> None:
        """Send what the reader takes now; see to being called again when it takes more."""
        fd = reader.connection.fileno()
        if fd not in self._readers:
            return
        try:
            while reader.backlog:
                reader.backlog.sent(reader.connection.send(reader.backlog.next()))
        except BlockingIOError:
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            self._forget(reader)
        else:
            self._epoll.modify(fd, select.EPOLLIN)
            if reader.refused:
                self._forget(reader)

    def _forget(self, reader: _Reader) -> None:
        fd = reader.connection.fileno()
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            reader.connection.close()

    def close(self) -> None:
        """Give readers a moment to take the last lines, and hang up."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while any(reader.backlog for reader in self._readers.values()) and time.monotonic() < deadline:
            self.serve(max(0.0, deadline - time.monotonic()))
        for reader in list(self._readers.values()):
            self._forget(reader)
        self._epoll.close()
        self._listener.close()


class OutputStream:
    """Delivers each line that engines write, from now until it is closed; leaving its ``with`` block closes it.

    Made by `Client.stream_output`. A thread of this process calls `callback`, one line at a time, in the order in which
    each engine wrote them.
    """

    def __init__(
        self, store: Store, record: Record, callback: Callable[[int, str], object] | None, timeout: float
    ) -> None:
        self._title = record.title
        self._callback = callback or _log
        self._splitter = LineSplitter(2 * LONGEST_LINE_BYTES)
        self._marks: dict[bytes, threading.Event] = {}
        self._numbers = itertools.count()
        self._over = False
        self._failed = False
        over = known_end(store, record)
        if over is not None:
            raise over
        require_here(record)
        try:
            self._connection = connect(record.folder, OUTPUT)
        except OSError as error:
            raise _no_output(store, record, error.strerror or str(error)) from error
        try:
            received = self._greet(store, record, timeout)
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(
            target=self._serve, args=(received,), name=f"ipcluster-output-{record.name}", daemon=True
        )
        self._thread.start()

    def _greet(self, store: Store, record: Record, timeout: float) -> bytes:
        """Show the secret; return what came behind the answer."""
        secret = secret_of(store, record.tag)
        self._connection.settimeout(max(0.001, timeout))
        received = b""
        try:
            self._connection.sendall(secret.encode() + b"\n")
            while b"\n" not in received and (data := self._connection.recv(1 << 16)):
                received += data
        except TimeoutError:
            raise ClusterTimeout(
                f"the nanny of {self._title} did not answer a reader of output within {timeout:g} s"
            ) from None
        except OSError as error:
            raise _no_output(store, record, error.strerror or str(error)) from error
        answer, _, received = received.partition(b"\n")
        if answer == b"refused":
            raise NotAuthorized(f"the nanny of {self._title} refused the secret")
        if answer != b"ready":
            raise _no_output(store, record, "its nanny hung up: it is ending, or has too many readers")
        self._connection.settimeout(None)
        return received

    def _serve(self, received: bytes) -> None:
        with suppress(OSError):
            while True:
                for line in self._splitter.feed(received):
                    self._on_line(line)
                received = self._connection.recv(1 << 18)
                if not received:
                    break
        self._over = True
        for mark in list(self._marks.values()):
            mark.set()

    def _on_line(self, line: bytes) -> None:
        first, _, text = line.partition(b" ")
        if first == b"synced":
            if text in self._marks:
                self._marks.pop(text).set()
            return
        try:
            self._callback(int(first), text.decode(errors="replace"))
        except Exception:
            # Whatever a callback raises, the lines that follow are delivered; it is told once.
            if not self._failed:
                self._failed = True
                logger.exception("the callback for the output of %s failed; it is called again", self._title)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that engines have written by now was delivered: so all lines of tasks that have finished.

        Parameters
        ----------
        timeout
            Seconds to wait.

        Returns
        -------
        bool
            False when it was not delivered in time, or the cluster has ended before.

        Raises
        ------
        RuntimeError
            It is called by the callback, for which it would wait.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("the callback for engines' output cannot wait for output")
        number, mark = b"%d" % next(self._numbers), threading.Event()
        self._marks[number] = mark
        try:
            self._connection.sendall(b"sync " + number + b"\n")
        except OSError:
            return False
        if self._over:
            return False
        return mark.wait(timeout) and number not in self._marks

    def close(self, timeout: float = 10.0) -> None:
        """Deliver what engines have written by now, and stop. Idempotent.

        Parameters
        ----------
        timeout
            Seconds to wait for that; a warning tells when lines may be missing.
        """
        if self._connection.fileno() < 0:
            return
        by_callback = threading.current_thread() is self._thread
        if not by_callback and not self.flush(timeout) and not self._over:
            logger.warning("output of %s was not delivered within %g s: lines may be missing", self._title, timeout)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if not by_callback:
            self._thread.join(_JOIN_SECONDS)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._title}{', closed' if self._connection.fileno() < 0 else ''}>"


def _log(engine: int, line: str) -> None:
    logger.info("[engine %d] %s", engine, line)


def _no_output(store: Store, record: Record, why: str) -> ClusterError:
    return known_end(store, record) or ClusterBroken(
        f"the output of {record.title} cannot be had: {why}; its nanny is gone, or its launcher serves no output"
    )
