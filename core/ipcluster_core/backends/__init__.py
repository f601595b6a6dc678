"""What runs the tasks of a cluster."""

from __future__ import annotations

from ..errors import ClusterError
from .base import Backend

__all__ = ["Backend", "get_backend"]

#: Entry-point group for backends of other packages.
GROUP = "ipcluster_core.backends"


def get_backend(name: str) -> Backend:
    """Return the backend of that name.

    Returns
    -------
    Backend
        A new one; it holds nothing open.

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
