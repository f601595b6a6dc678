"""Where a cluster's processes run."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ClusterError
from .base import Launcher

__all__ = ["REGISTERED", "Launcher", "get_launcher"]

#: Launchers of this process by name, before those of installed packages; tests put theirs here.
REGISTERED: dict[str, Callable[[], Launcher]] = {}

#: Entry-point group for launchers of other packages.
GROUP = "ipcluster_core.launchers"


def get_launcher(name: str) -> Launcher:
    """Return the launcher of that name.

    Returns
    -------
    Launcher
        A new one; it holds nothing open.

    Raises
    ------
    ClusterError
        There is none, or it cannot be imported; the message says why.
    """
    if name in REGISTERED:
        return REGISTERED[name]()
    if name == "local":
        from .local import LocalLauncher

        return LocalLauncher()
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names | {"local"}))
        raise ClusterError(f"there is no launcher {name!r}; there are: {known}")
    try:
        launcher: Launcher = found[name].load()()
    except Exception as error:
        raise ClusterError(f"launcher {name!r} ({found[name].value}) cannot be loaded: {error!r}") from error
    return launcher
