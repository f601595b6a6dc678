"""Our own backend: broker and forked engines."""

from __future__ import annotations

from collections.abc import Mapping

from ..client import Client
from ..record import Record
from ..store import Store

__all__ = ["NativeBackend"]


class NativeBackend:
    """See `Backend` for the contract."""

    def roles(self) -> Mapping[str, str]:
        """Return the parts that the nanny forks."""
        return {
            "controller": "ipcluster_core.controller:run",
            "broker": "ipcluster_core.broker:run",
            "engine": "ipcluster_core.engine:run",
        }

    def client(self, store: Store, record: Record, *, timeout: float) -> Client:
        """Connect a native client."""
        return Client.connect(record.name, store=store, timeout=timeout)

    def executor(self, store: Store, record: Record, *, timeout: float) -> Client:
        """Connect an executor: the native client is one."""
        return self.client(store, record, timeout=timeout)
