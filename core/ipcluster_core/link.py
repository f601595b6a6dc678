"""How the processes of one host reach each other: named sockets in a private folder, and pipes between relatives."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Link", "endpoint", "link_pair"]

#: Longest path that fits a sockaddr_un with its final NUL, less what zmq may add (unix(7)).
_LONGEST = 100

#: Seconds that a partner may take to accept a message.
_PATIENCE = 10.0

_HEADER = struct.Struct("<II")


def endpoint(folder: str, name: str) -> tuple[str, int | None]:
    """Return the zmq endpoint of a socket in a folder, and a descriptor to keep open while it is used.

    A path too long for a socket address is reached through the folder's descriptor, so sockets need no short
    temporary folder.

    Returns
    -------
    tuple
        Endpoint, and descriptor or None.
    """
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) <= _LONGEST:
        return f"ipc://{path}", None
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"ipc:///proc/self/fd/{fd}/{name}", fd


class Link:
    """One end of a pipe between two parts: JSON messages, each with optional bytes behind it.

    The other part's end, however it came, reads as end of file.
    """

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(_PATIENCE)
        self._socket = end
        self._received = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> bool:
        """Send a message; return False when the partner is gone, or takes nothing for `_PATIENCE` seconds.

        One that takes nothing is cut off: half a message may have gone, and nobody may wait for a frozen process.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        try:
            self._socket.sendall(_HEADER.pack(len(text), len(blob)) + text + blob)
        except TimeoutError:
            self._socket.shutdown(socket.SHUT_RDWR)
            return False
        except OSError:
            return False
        return True

    def receive(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Read once and yield the messages that are complete.

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
