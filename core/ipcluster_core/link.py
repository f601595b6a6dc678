"""How the parts of a cluster on one host talk: pipes between relatives."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Link", "link_pair"]

#: Seconds for which a partner may take nothing of a message.
_PATIENCE = 10.0

#: Room for messages that the partner has not read yet, as far as the kernel grants it: for hundreds at least. Two parts
#: that both wait for the other to read would be cut off.
_ROOM_BYTES = 2 << 20

_HEADER = struct.Struct("<II")


class Link:
    """One end of a pipe between two parts: JSON messages, each with optional bytes behind it.

    The other part's end, however it came, reads as end of file.
    """

    def __init__(self, end: socket.socket) -> None:
        # The kernel calls a socket writable only while most of its room is free, so writing is tried first.
        end.settimeout(0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        self._socket = end
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> bool:
        """Send a message.

        A partner that takes nothing for `_PATIENCE` seconds is cut off: half a message may have gone, and nobody may
        wait for a frozen process.

        Returns
        -------
        bool
            False when the partner is gone or was cut off.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        try:
            self._send(_HEADER.pack(len(text), len(blob)) + text + blob)
        except TimeoutError:
            self._socket.shutdown(socket.SHUT_RDWR)
            return False
        except OSError:
            return False
        return True

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not writable.poll(_PATIENCE * 1000):
                    raise TimeoutError from None

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Read what is there, without waiting, and yield the messages that are complete.

        Yields
        ------
        tuple
            A message and its bytes.

        Raises
        ------
        EOFError
            The partner is gone; raised after its last messages were yielded.
        """
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self._received += data
        while len(self._received) >= _HEADER.size:
            text, blob = _HEADER.unpack_from(self._received)
            end = _HEADER.size + text + blob
            if len(self._received) < end:
                break
            message = json.loads(bytes(self._received[_HEADER.size : _HEADER.size + text]))
            payload = bytes(self._received[_HEADER.size + text : end])
            del self._received[:end]
            yield message, payload
        if not data:
            raise EOFError

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def link_pair() -> tuple[Link, Link]:
    """Return the two ends of a new link."""
    left, right = socket.socketpair()
    return Link(left), Link(right)
