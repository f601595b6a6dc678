"""What has happened in a cluster's life: the newest events, kept by its controller."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from .roster import EngineState

__all__ = ["EventKind", "EventLog", "kind_of_death"]

#: Events kept; older ones are forgotten.
KEPT = 1000

#: Characters kept of an event's text.
LONGEST_TEXT = 2000


class EventKind(enum.StrEnum):
    """What happened."""

    CREATED = "created"
    RUNNING = "running"
    SCALED = "scaled"
    ADAPTED = "adapted"
    STARTED = "engine started"
    UP = "engine up"
    DIED = "engine died"
    RECYCLED = "engine recycled"
    RESTARTED = "engine restarted"
    STOPPED = "engine stopped"
    FAILED = "engine failed"
    REFUSING = "tasks refused"
    ACCEPTING = "tasks accepted"
    ENDING = "ending"


class EventLog:
    """The newest `KEPT` events, as plain data."""

    def __init__(self) -> None:
        self._events: deque[Mapping[str, Any]] = deque(maxlen=KEPT)

    def add(self, now: float, kind: EventKind, text: str, engine: int | None = None) -> None:
        """Note an event; `now` is in seconds of Unix time."""
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        self._events.append({"at": at, "kind": str(kind), "engine": engine, "text": text[:LONGEST_TEXT]})

    def tail(self, count: int) -> list[Mapping[str, Any]]:
        """Return the newest events, the newest last."""
        return list(self._events)[-count:] if count > 0 else []


def kind_of_death(state: EngineState, *, recycled: bool) -> EventKind | None:
    """Return what the end of an engine's process means that was in a state; None for one whose restart was told."""
    if state in (EngineState.RETIRING, EngineState.STOPPING):
        return EventKind.STOPPED
    if recycled:
        return EventKind.RECYCLED
    return None if state is EngineState.RESTARTING else EventKind.DIED
