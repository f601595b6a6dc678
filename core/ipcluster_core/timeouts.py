"""When a task has run for too long: pure state, the clock passed in.

A task with a limit is alone on its engine, so it begins when it is sent. When its time is over it is interrupted; when
that does not help, its engine has to go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["GRACE_SECONDS", "Overdue", "Timeouts"]

#: Seconds that an interrupted task has to come to its end.
GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Overdue:
    """A chunk whose task is to be interrupted; `stuck` when it was, in vain."""

    engine: int
    chunk: int
    seconds: float
    stuck: bool


@dataclass(slots=True)
class _Limit:
    seconds: float
    due: float
    interrupted: bool = False


class Timeouts:
    """Limits of the tasks that run, by engine and chunk."""

    def __init__(self) -> None:
        self._limits: dict[tuple[int, int], _Limit] = {}

    def start(self, engine: int, chunk: int, seconds: float, now: float) -> None:
        """Note that a task begins."""
        self._limits[engine, chunk] = _Limit(seconds, now + seconds)

    def stop(self, engine: int, chunk: int) -> float | None:
        """Note that a task has ended; return its limit if it was interrupted for that, else None."""
        limit = self._limits.pop((engine, chunk), None)
        return limit.seconds if limit is not None and limit.interrupted else None

    def lost(self, engine: int) -> float | None:
        """Note that an engine is gone; return the limit of its task if that was interrupted, else None."""
        found = [self.stop(*key) for key in list(self._limits) if key[0] == engine]
        return next((seconds for seconds in found if seconds is not None), None)

    def due(self, now: float) -> Iterator[Overdue]:
        """Yield what has to be done now. What is stuck is told of once."""
        for (engine, chunk), limit in list(self._limits.items()):
            if now >= limit.due:
                stuck = limit.interrupted
                limit.interrupted, limit.due = True, float("inf") if stuck else now + GRACE_SECONDS
                yield Overdue(engine, chunk, limit.seconds, stuck)

    def deadline(self) -> float | None:
        """Return when `due` has something to yield, None if never."""
        return min((limit.due for limit in self._limits.values() if limit.due != float("inf")), default=None)
