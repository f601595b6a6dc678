"""What runs the tasks of a cluster."""

from __future__ import annotations

from .. import plugins
from .base import Backend

__all__ = ["Backend", "get_backend"]

_OWN = {"native": "ipcluster_core.backends.native:NativeBackend"}


def get_backend(name: str) -> Backend:
    """Return a new backend of that name; ClusterError if there is none, or it cannot be imported."""
    backend: Backend = plugins.load("backend", name, _OWN)()
    return backend
