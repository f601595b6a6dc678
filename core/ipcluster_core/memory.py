"""How much memory processes hold, and which of them hold too much."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .policy import EnginePolicy

__all__ = ["MemoryWatch", "resident_bytes"]

#: Seconds between two looks at the memory of engines that have a limit.
LOOK_SECONDS = 0.25

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes(pid: int | str) -> int:
    """Return the resident memory of a process, its second number in ``/proc/<pid>/statm`` (proc(5)); 0 when gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class MemoryWatch:
    """Looks at processes now and then; does nothing where the policy has no memory limit."""

    def __init__(self, policy: EnginePolicy) -> None:
        self._policy = policy
        self._next: float | None = None if policy.max_memory_bytes is None else 0.0

    def deadline(self, pids: Iterable[int]) -> float | None:
        """Return when to look at the processes again, None if never; monotonic seconds."""
        return self._next if any(True for _ in pids) else None

    def condemned(self, pids: Iterable[int], now: float) -> dict[int, str]:
        """Return the processes that are to be killed, each with the reason, if it is time to look."""
        if self._next is None or now < self._next:
            return {}
        self._next = now + LOOK_SECONDS
        found = {pid: self._policy.death_sentence(resident_bytes(pid)) for pid in pids}
        return {pid: why for pid, why in found.items() if why}
