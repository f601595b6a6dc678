"""The contract of a backend: the parts that a nanny runs, and the way to a client."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

from ..record import Record
from ..store import Store

__all__ = ["Backend"]


class Backend(Protocol):
    """Says what the head job runs, and connects to it."""

    def roles(self) -> Mapping[str, str]:
        """Return the parts that the nanny forks: "controller", "broker", "engine" to ``module:function``."""
        ...

    def client(self, store: Store, record: Record, *, timeout: float) -> Any:  # noqa: ANN401 - each backend has its own
        """Connect a client of the backend's own kind."""

    def executor(self, store: Store, record: Record, *, timeout: float) -> Executor:
        """Connect a `concurrent.futures.Executor`."""
        ...
