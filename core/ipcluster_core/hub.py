"""One end of many connections: who comes, what they say, and what waits to be sent to them.

Partners are numbered in the order in which they come; a number never comes again. What is sent to one that is gone
goes nowhere, which is no error.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import suppress

from .channel import Channel, listen
from .wire import Buffer

__all__ = ["Hub"]

#: Longest message of a partner that has not shown the secret, in bytes.
_STRANGER_BYTES = 1 << 16

_EVERYTHING = 1 << 40


class Hub:
    """Listens under a name in a folder.

    Parameters
    ----------
    folder, name
        Where the socket stands.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._listener = listen(folder, name)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._channels: dict[int, Channel] = {}
        self._numbers: dict[int, int] = {}  # by descriptor
        self._paused: set[int] = set()
        self._next = 1

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading; then call `wait`."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Have `wait` tell also when this descriptor can be read."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Do not look at a descriptor any more."""
        self._epoll.unregister(fd)

    def wait(self, timeout: float | None = None) -> tuple[set[int], list[int]]:
        """Wait until there is something to read; accept partners and send what waits meanwhile.

        Returns
        -------
        tuple
            Watched descriptors that can be read, and the numbers of partners that have said something.
        """
        watched, speaking = set(), []
        for fd, events in self._epoll.poll(timeout):
            number = self._numbers.get(fd)
            if number is not None:
                if events & select.EPOLLOUT:
                    self._channels[number].flush()
                    self._note_interest(number)
                if events & ~select.EPOLLOUT:
                    speaking.append(number)
            elif fd == self._listener.fileno():
                self._accept()
            else:
                watched.add(fd)
        return watched, speaking

    def _accept(self) -> None:
        with suppress(OSError):  # none left, or no descriptor to be had: it goes on waiting
            while True:
                end, _ = self._listener.accept()
                self._channels[self._next] = Channel(end, limit=_STRANGER_BYTES)
                self._numbers[end.fileno()] = self._next
                self._epoll.register(end.fileno(), select.EPOLLIN)
                self._next += 1

    def trust(self, number: int) -> None:
        """Take messages of any length from a partner that has shown the secret."""
        self._channels[number].limit = _EVERYTHING

    def receive(self, number: int) -> list[list[memoryview]]:
        """Read messages of a partner, see `Channel.receive`; EOFError when it is gone."""
        channel = self._channels.get(number)
        if channel is None:
            raise EOFError
        return channel.receive()

    def send(self, number: int, frames: Sequence[Buffer]) -> None:
        """Send a message to a partner."""
        channel = self._channels.get(number)
        if channel is not None:
            waited = channel.waiting
            channel.send(frames)
            if channel.waiting != waited:
                self._note_interest(number)

    def is_behind(self, number: int) -> bool:
        """Tell whether a partner has not taken all that was sent to it."""
        channel = self._channels.get(number)
        return channel is not None and channel.waiting

    def pause(self, number: int, *, on: bool) -> None:
        """Leave in the socket what a partner says, so that it has to wait; or do so no more."""
        if number in self._channels and (number in self._paused) != on:
            (self._paused.add if on else self._paused.discard)(number)
            self._note_interest(number)

    def _note_interest(self, number: int) -> None:
        channel = self._channels[number]
        events = 0 if number in self._paused else select.EPOLLIN
        self._epoll.modify(channel.fileno(), events | (select.EPOLLOUT if channel.waiting else 0))

    def drop(self, number: int) -> None:
        """Close a partner's connection. Idempotent."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._paused.discard(number)
            del self._numbers[channel.fileno()]
            self._epoll.unregister(channel.fileno())
            channel.close()

    def close(self, linger: float) -> None:
        """Close everything; what waits to be sent gets `linger` seconds in all."""
        deadline = time.monotonic() + linger
        self._listener.close()
        for channel in self._channels.values():
            channel.flush(max(0.001, deadline - time.monotonic()))
            channel.close()
        self._channels.clear()
        self._epoll.close()
