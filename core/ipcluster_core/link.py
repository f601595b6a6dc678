"""How the parts of a cluster on one host talk: pipes between relatives."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from .channel import Channel

__all__ = ["Link", "link_pair"]

#: Seconds for which a partner may take nothing of a message.
_PATIENCE = 10.0


class Link:
    """One end of a pipe between two parts: JSON messages, each with optional bytes behind it.

    The other part's end, however it came, reads as end of file.
    """

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._channel.fileno()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> bool:
        """Send a message.

        A partner that has not taken it within `_PATIENCE` seconds is cut off: half a message may have gone, and nobody
        may wait for a frozen process.

        Returns
        -------
        bool
            False when the partner is gone or was cut off.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        if not self._channel.send((text, blob)) or not self._channel.flush(_PATIENCE):
            return False
        if self._channel.waiting:
            self._channel.shut()
            return False
        return True

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Read what is there, without waiting, and yield the messages that are complete.

        Yields
        ------
        tuple
            A message and its bytes.

        Raises
        ------
        EOFError
            The partner is gone; its last messages were yielded before.
        """
        for text, blob in self._channel.receive():
            yield json.loads(bytes(text)), bytes(blob)

    def close(self) -> None:
        """Close this end."""
        self._channel.close()


def link_pair() -> tuple[Link, Link]:
    """Return the two ends of a new link."""
    left, right = socket.socketpair()
    return Link(left), Link(right)
