"""When an engine leaves by itself, is killed, is started again, or is given up: pure decisions.

::

    tasks run >= max_tasks, or resident > max_memory_bytes, between two tasks   --> it leaves, the next one starts
    resident > 2 * max_memory_bytes, at any time                                --> it is killed
    it died soon after it was up, for the (max_restarts + 1)th time in a row    --> it is given up
    it died `START_TRIES` times in a row without ever being up                  --> it is given up
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PAUSES", "START_TRIES", "STEADY_SECONDS", "EnginePolicy", "pause_after", "policy_of"]

#: How often an engine that dies before it is up is started before it is given up.
START_TRIES = 3

#: Seconds before the next start of an engine that died at once, by how often it did so in a row.
PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)

#: An engine that was up for so many seconds did not die at once.
STEADY_SECONDS = 10.0

#: An engine is killed above so many times its memory limit: one task must not take the machine.
KILL_FACTOR = 2


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """What the spec says of each engine; None means no limit."""

    max_tasks: int | None = None
    max_memory_bytes: int | None = None
    max_restarts: int = 10

    def farewell(self, tasks: int, resident_bytes: int) -> str:
        """Say why an engine that has run so many tasks, and is between two, is to make room for the next one.

        Returns
        -------
        str
            Empty when it may stay.
        """
        if self.max_tasks is not None and tasks >= self.max_tasks:
            return f"it has run {tasks} tasks (max_tasks is {self.max_tasks})"
        if self.max_memory_bytes is not None and resident_bytes > self.max_memory_bytes:
            limit = megabytes(self.max_memory_bytes)
            return f"it holds {megabytes(resident_bytes)} of memory (max_memory_bytes is {limit})"
        return ""

    def death_sentence(self, resident_bytes: int) -> str:
        """Say why an engine is to be killed, whatever it does; empty when it is not."""
        limit = self.max_memory_bytes
        if limit is None or resident_bytes <= KILL_FACTOR * limit:
            return ""
        return f"memory limit: it held {megabytes(resident_bytes)}, more than twice max_memory_bytes={megabytes(limit)}"

    def gives_up(self, *, quick_deaths: int, failed_starts: int) -> str:
        """Say what became of an engine that died so often in a row; empty when it is to be started again."""
        if self.max_restarts == 0 and not failed_starts:
            return "ended and is not replaced, as max_restarts is 0"
        if failed_starts >= min(START_TRIES, self.max_restarts + 1):
            return "could not be started"
        if quick_deaths > self.max_restarts:
            return f"died {quick_deaths} times in a row soon after its start, and is not started again"
        return ""


def pause_after(quick_deaths: int) -> float:
    """Return the seconds before the next start of an engine that died at once so often in a row."""
    return PAUSES[min(quick_deaths, len(PAUSES)) - 1] if quick_deaths else 0.0


def policy_of(spec: Mapping[str, object]) -> EnginePolicy:
    """Return the policy in a spec's plain data; what is absent has its default."""
    found = {name: spec.get(name) for name in ("max_tasks", "max_memory_bytes", "max_restarts")}
    return EnginePolicy(**{name: value for name, value in found.items() if isinstance(value, int)})


def megabytes(size_bytes: int) -> str:
    """Return a size as a person reads it."""
    return f"{size_bytes / 1e6:.0f} MB"
