"""How a cluster is, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .record import ClusterState, Record

__all__ = ["NO_ANSWER_SECONDS", "ClusterEvent", "ClusterStatus", "EngineStatus"]

#: Seconds after which it is worth a note that an engine with tasks has said nothing.
NO_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine.

    `tasks` is the number it holds; `seconds` how long it is in its state; `host` where it runs, empty until it is up. A
    `pid` is of that host.

    `silent_seconds` is for how long it has said nothing while it holds tasks, None while it holds none. That is for
    information: an engine is lost when its process ends, and never because it is busy, stopped or slow.
    """

    id: int
    set: str
    state: str
    incarnation: int
    pid: int | None
    tasks: int
    seconds: float
    silent_seconds: float | None = None
    host: str = ""

    @property
    def note(self) -> str:
        """What is worth knowing of it, such as ``"busy, no answer for 40 s"``; empty while it answers."""
        silent = self.silent_seconds or 0.0
        return f"busy, no answer for {silent:.0f} s" if self.state == "up" and silent >= NO_ANSWER_SECONDS else ""


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One thing that happened in a cluster's life.

    `at` is UTC in ISO 8601; `kind` one of "created", "running", "scaled", "adapted", "engine started", "engine up",
    "engine died", "engine recycled", "engine restarted", "engine stopped", "engine failed", "tasks refused",
    "tasks accepted", "ending"; `engine` the id of the engine, if it is about one.
    """

    at: str
    kind: str
    engine: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """How a cluster is.

    `sets` has the number of engines wanted by set, `adapting` the least and the most of each set that is sized by its
    load; `tasks` has the keys queued, running, settled; `reasons` says what is wrong or how it ended; `ends_in` the
    seconds until a limit ends it, by limit; `idle_seconds` for how long there was nothing to do, None when there is.
    """

    name: str
    incarnation: int
    state: ClusterState
    sets: Mapping[str, int] = field(default_factory=dict)
    engines: tuple[EngineStatus, ...] = ()
    tasks: Mapping[str, int] = field(default_factory=dict)
    clients: int = 0
    reasons: tuple[str, ...] = ()
    ends_in: Mapping[str, float] = field(default_factory=dict)
    idle_seconds: float | None = None
    adapting: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, record: Record, answer: Mapping[str, Any]) -> ClusterStatus:
        """Return what a controller answered when it was asked for the status of its cluster."""
        return cls(
            name=record.name,
            incarnation=record.incarnation,
            state=ClusterState(answer["state"]),
            sets=answer["sets"],
            engines=tuple(EngineStatus(**engine) for engine in answer["engines"]),
            tasks=answer["tasks"],
            clients=answer["clients"],
            reasons=tuple(answer["reasons"]),
            ends_in=answer["ends_in"],
            idle_seconds=answer.get("idle_seconds"),
            adapting={name: (least, most) for name, (least, most) in answer["adapting"].items()},
        )

    @property
    def up(self) -> int:
        """Number of engines that are up."""
        return sum(engine.state == "up" for engine in self.engines)
