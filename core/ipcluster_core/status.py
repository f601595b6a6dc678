"""How a cluster is, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .record import ClusterState

__all__ = ["ClusterStatus", "EngineStatus"]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine. `tasks` is the number it holds; `seconds` how long it is in its state."""

    id: int
    set: str
    state: str
    incarnation: int
    pid: int | None
    tasks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """How a cluster is.

    `tasks` has the keys queued, running, settled; `reasons` says what is wrong or how it ended; `ends_in` the seconds
    until a limit ends it, by limit; `idle_seconds` for how long there was nothing to do, None when there is.
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

    @property
    def up(self) -> int:
        """Number of engines that are up."""
        return sum(engine.state == "up" for engine in self.engines)
