"""Who is connected to a broker as a client: names, processes, and what they leave in shared memory."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .hub import Hub
from .process import Identity, liveness
from .record import Liveness
from .segments import remove

__all__ = ["Clients"]


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    pidfd: int | None  # None when its process cannot be watched from here


class Clients:
    """Clients by partner's number. A client gives itself a name, which is in its tasks' ids.

    Parameters
    ----------
    hub
        Watches their processes: a connection may outlive its process, in a child that was forked from it.
    segments
        Folder of the cluster's segments.
    """

    def __init__(self, hub: Hub, segments: str) -> None:
        self._hub = hub
        self._segments = segments
        self._clients: dict[int, _Client] = {}
        self._prefixes: dict[str, str] = {}  # of segments, until neither the client nor its tasks are there

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._clients))

    def __contains__(self, partner: int) -> bool:
        return partner in self._clients

    def name(self, partner: int) -> str:
        """Return the name of one that is connected."""
        return self._clients[partner].name

    def join(self, partner: int, hello: Mapping[str, Any]) -> str:
        """Take a client that was let in; return its name."""
        name = str(hello["client"])
        self._clients[partner] = _Client(name, self._watch(hello["process"]))
        self._prefixes[name] = str(hello["segments"])
        return name

    def _watch(self, data: Mapping[str, Any]) -> int | None:
        who = Identity.from_dict(data)
        try:
            pidfd = os.pidfd_open(who.pid)
        except OSError:
            return None
        if liveness(who) is not Liveness.ALIVE:
            os.close(pidfd)
            return None
        self._hub.watch(pidfd)
        return pidfd

    def ended(self, readable: Container[int]) -> list[int]:
        """Return those whose processes are gone, by the descriptors that can be read."""
        return [p for p, client in self._clients.items() if client.pidfd is not None and client.pidfd in readable]

    def leave(self, partner: int) -> str | None:
        """Forget the connection of a client; return its name, None if it is forgotten already."""
        client = self._clients.pop(partner, None)
        if client is None:
            return None
        if client.pidfd is not None:
            self._hub.unwatch(client.pidfd)
            os.close(client.pidfd)
        return client.name

    def clean(self, name: str) -> None:
        """Remove what a client has left in shared memory, once it is gone and its last task is settled."""
        if name in self._prefixes:
            remove(self._segments, self._prefixes.pop(name))
