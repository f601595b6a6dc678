"""Where a cluster's processes run."""

from __future__ import annotations

from collections.abc import Callable

from .. import plugins
from .base import Launcher

__all__ = ["REGISTERED", "Launcher", "get_launcher"]

#: Launchers of this process by name, before all others; tests put theirs here.
REGISTERED: dict[str, Callable[[], Launcher]] = {}

_OWN = {"local": "ipcluster_core.launchers.local:LocalLauncher"}


def get_launcher(name: str) -> Launcher:
    """Return a new launcher of that name; ClusterError if there is none, or it cannot be imported."""
    launcher: Launcher = REGISTERED[name]() if name in REGISTERED else plugins.load("launcher", name, _OWN)()
    return launcher
