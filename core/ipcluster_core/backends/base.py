"""The contract of a backend: the parts that a nanny runs, and the way to a client."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

from ..errors import ClusterError
from ..record import Record
from ..store import Store

__all__ = ["Backend", "get_backend"]

#: Entry-point group for backends of other packages.
GROUP = "ipcluster_core.backends"


class Backend(Protocol):
    """Says what the head job runs, and connects to it."""

    def roles(self) -> Mapping[str, str]:
        """Return the parts that the nanny forks: "controller", "broker", "engine" to ``module:function``."""

    def client(self, store: Store, record: Record, *, timeout: float) -> Any:
        """Connect a client of the backend's own kind."""

    def executor(self, store: Store, record: Record, *, timeout: float) -> Executor:
        """Connect a `concurrent.futures.Executor`."""


def get_backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises
    ------
    ClusterError
        There is none, or it cannot be imported; the message says why.
    """
    if name == "native":
        from .native import NativeBackend

        return NativeBackend()
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names | {"native"}))
        raise ClusterError(f"there is no backend {name!r}; there are: {known}")
    try:
        backend: Backend = found[name].load()()
    except Exception as error:
        raise ClusterError(f"backend {name!r} ({found[name].value}) cannot be loaded: {error!r}") from error
    return backend
