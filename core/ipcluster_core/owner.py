"""The process whose end is the end of a cluster: that of the ``with`` block which owns it."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .process import Identity, liveness
from .record import Liveness

__all__ = ["OwnerWatch"]


class OwnerWatch:
    """Watches one process, or none. Its descriptor can be read when that process is gone."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._pidfd: int | None = None

    def fileno(self) -> int:
        """Return the descriptor, which stays the same whoever is watched."""
        return self._poll.fileno()

    def watch(self, owner: Mapping[str, Any] | None) -> bool:
        """Watch this process from now on, given as `Identity.to_dict` has it; None watches nobody.

        Returns
        -------
        bool
            False when it is gone, or cannot be seen from here. Then nobody is watched.
        """
        self._forget()
        if owner is None:
            return True
        known = Identity.from_dict(owner)
        with suppress(OSError):
            pidfd = os.pidfd_open(known.pid)
            if liveness(known) is Liveness.ALIVE:
                self._pidfd = pidfd
                self._poll.register(pidfd, select.EPOLLIN)
                return True
            os.close(pidfd)
        return False

    def take_end(self) -> bool:
        """Tell whether the process that was watched is gone; only once, for then nobody is watched any more."""
        if not self._poll.poll(0):
            return False
        self._forget()
        return True

    def close(self) -> None:
        """Watch nobody any more. Idempotent."""
        self._forget()
        self._poll.close()

    def _forget(self) -> None:
        if self._pidfd is not None:
            self._poll.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
