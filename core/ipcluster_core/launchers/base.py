"""The contract of a launcher: run a nanny detached, find it again, stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import ClusterError
from ..process import Liveness
from ..record import Job

__all__ = ["REGISTERED", "Launcher", "get_launcher"]

#: Launchers of this process by name, before those of installed packages; tests put theirs here.
REGISTERED: dict[str, Callable[[], Launcher]] = {}

#: Entry-point group for launchers of other packages.
GROUP = "ipcluster_core.launchers"


class Launcher(Protocol):
    """Starts and stops jobs. A job always holds one nanny; what it forks is no concern of the launcher."""

    async def start(self, boot: Mapping[str, Any], *, timeout: float) -> Mapping[str, Any]:
        """Start a nanny with a boot document, detached from this process in every way.

        Returns
        -------
        mapping
            The launcher's reference to the job, plain data for the record.

        Raises
        ------
        LaunchError
            It ended, or was not ready within `timeout` seconds; the message ends with its last output.
        """

    def poll(self, job: Job) -> Liveness:
        """Tell whether the job's nanny lives."""

    async def wait(self, job: Job, *, timeout: float) -> bool:
        """Wait until the job's nanny is gone; return whether it is, after at most `timeout` seconds."""

    async def stop(self, job: Job | None, tag: str, *, timeout: float) -> list[str]:
        """End a job and everything that carries its tag. Idempotent; `job` is None when none was recorded.

        Returns
        -------
        list of str
            What could not be ended within `timeout` seconds.
        """


def get_launcher(name: str) -> Launcher:
    """Return the launcher of that name.

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
