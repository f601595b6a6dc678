"""What a cluster's life decides is to be done; the controller performs it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AcceptTasks",
    "Action",
    "Adapted",
    "AskLoad",
    "DropEngine",
    "End",
    "Ready",
    "RefuseTasks",
    "RestartEngine",
    "RetireEngines",
    "StartEngine",
    "StopEngine",
]


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start an engine; with more than one of `ranks`, an MPI set that has as many ids from this one on."""

    engine: int
    incarnation: int
    set: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class RetireEngines:
    """Have the broker choose `count` of the engines, idle ones first or only, and give them nothing new."""

    set: str
    engines: tuple[int, ...]
    count: int
    only_idle: bool = False


@dataclass(frozen=True, slots=True)
class StopEngine:
    """End an engine's process; `late` when it still had tasks after its time to drain."""

    engine: int
    late: bool = False


@dataclass(frozen=True, slots=True)
class RestartEngine:
    """End an engine's process, whatever it does; the next one is started when it is gone. `ranks` as at its start."""

    engine: int
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class DropEngine:
    """Tell the broker that the engine will not come back; `expected` are those that are there or will come.

    `why` is empty when it left because nobody wants it any more, else it tells what failed.
    """

    engine: int
    expected: tuple[int, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class RefuseTasks:
    """Have the broker fail the tasks that wait for any engine, and those to come: none is left, and none will come."""

    why: str


@dataclass(frozen=True, slots=True)
class AcceptTasks:
    """Have the broker keep tasks again: engines are given another chance."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """Note that the load has changed the number of engines wanted in a set."""

    set: str
    before: int
    after: int
    why: str


@dataclass(frozen=True, slots=True)
class AskLoad:
    """Find out how busy the broker is: a limit may have been reached, or an adaptive set have the wrong size."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Enough engines are up: the cluster is running."""


@dataclass(frozen=True, slots=True)
class End:
    """The cluster is to end now."""

    reason: str
    by: str
    tail: str = ""


Action = (
    StartEngine
    | RetireEngines
    | StopEngine
    | RestartEngine
    | DropEngine
    | RefuseTasks
    | AcceptTasks
    | Adapted
    | AskLoad
    | Ready
    | End
)
