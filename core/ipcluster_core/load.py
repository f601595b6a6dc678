"""What the broker tells the controller of its load, and when: pure decisions, the clock passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .adaptive import Demand
from .scheduling import Scheduler

__all__ = ["LoadReport", "demand_of"]


@dataclass(slots=True)
class LoadReport:
    """Since when nothing is queued or running, and since when no client is connected; None while it is not so.

    The controller asks. Without being asked it is told what it could not know: that it is over, once it was told of
    work or of clients; and, while a set `adapts` to the load, that tasks begin to wait.
    """

    idle_since: float | None
    alone_since: float | None
    adapts: bool = False
    _busy_told: bool = False
    _attended_told: bool = False
    _waiting: bool = False

    def note(self, scheduler: Scheduler, clients: int, now: float) -> bool:
        """Note how it is now, when what can be handed out has been; return whether the controller is to be told."""
        load = scheduler.load
        self.idle_since = _since(self.idle_since, now, holds=not load.queued and not load.running)
        self.alone_since = _since(self.alone_since, now, holds=not clients)
        waited, self._waiting = self._waiting, load.queued > 0
        return (
            (self._busy_told and self.idle_since is not None)
            or (self._attended_told and self.alone_since is not None)
            or (self.adapts and self._waiting and not waited)
        )

    def touch(self, now: float) -> None:
        """Note that something is arriving: idle time begins anew, and begins for good when nothing more comes."""
        if self.idle_since is not None:
            self.idle_since = now

    def tell(self, scheduler: Scheduler, clients: int) -> Mapping[str, Any]:
        """Return what the controller is told."""
        self._busy_told, self._attended_told = self.idle_since is None, self.alone_since is None
        load = scheduler.load
        backlog = scheduler.backlog() if self.adapts else None
        return {
            "queued": load.queued,
            "running": load.running,
            "settled": load.settled,
            "clients": clients,
            "engines": {str(engine): tasks for engine, tasks in scheduler.engines.items()},
            "idle_since": self.idle_since,
            "alone_since": self.alone_since,
            "backlog": None if backlog is None else (backlog.tasks, backlog.unmeasured, backlog.seconds),
        }


def demand_of(told: Mapping[str, Any]) -> Demand | None:
    """Return the demand for engines in what the controller was told; None when no set adapted when it was told."""
    if told["backlog"] is None:
        return None
    tasks, unmeasured, seconds = told["backlog"]
    busy = frozenset(int(engine) for engine, held in told["engines"].items() if held)
    return Demand(int(tasks), int(unmeasured), float(seconds), busy)


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before
