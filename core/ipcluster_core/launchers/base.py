"""The contract of a launcher: run a nanny detached, find it again, stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..record import Job, Liveness

__all__ = ["Launcher"]


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
        ...

    def poll(self, job: Job) -> Liveness:
        """Tell whether the job's nanny lives."""
        ...

    async def wait(self, job: Job, *, timeout: float) -> bool:
        """Wait until the job's nanny is gone; return whether it is, after at most `timeout` seconds."""
        ...

    async def stop(self, job: Job | None, tag: str, *, timeout: float) -> list[str]:
        """End a job and everything that carries its tag. Idempotent; `job` is None when none was recorded.

        Returns
        -------
        list of str
            What could not be ended within `timeout` seconds.
        """
        ...
