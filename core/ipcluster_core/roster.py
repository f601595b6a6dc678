r"""An engine id through all its incarnations, and the states that it goes through.

::

    starting --up--> up --scaled down--> retiring --idle, or late--> stopping --dead--> (removed)
     ^ |  \           | \--restart, or it leaves as its policy wants--> restarting --dead--> starting
       |   died       died
       |      \      /
       |       waiting  --pause over--> starting      (same id, next incarnation)
       +-- died so often in a row that its policy gives it up --> failed

The ranks of an MPI set are one such life under several ids: it is up when the last rank is, and dead when one is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["COMING", "COUNTED", "HOPED_FOR", "SERVING", "Engine", "EngineState"]


class EngineState(enum.StrEnum):
    """See the drawing above."""

    STARTING = "starting"
    UP = "up"
    RETIRING = "retiring"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    WAITING = "waiting"
    FAILED = "failed"


#: Engines that count towards the number asked for.
COUNTED = frozenset(
    {EngineState.STARTING, EngineState.UP, EngineState.RESTARTING, EngineState.WAITING, EngineState.FAILED}
)

#: Engines that are on their way up.
COMING = frozenset({EngineState.STARTING, EngineState.RESTARTING})

#: Engines that may yet come up.
HOPED_FOR = COMING | {EngineState.WAITING}

#: Engines that have registered and may run tasks.
SERVING = frozenset({EngineState.UP, EngineState.RETIRING})


@dataclass(slots=True)
class Engine:
    """One engine, or the ranks of an MPI set. Times are monotonic seconds.

    `id` is the first of its `ranks` ids; `pids` has the process of each id that has one, `hosts` where each is that is
    up, `registered` those ids that are up in this incarnation.
    """

    id: int
    set: str
    ranks: int = 1
    incarnation: int = 0
    state: EngineState = EngineState.STARTING
    since: float = 0.0
    pids: dict[int, int] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    registered: frozenset[int] = frozenset()
    quick_deaths: int = 0
    failed_starts: int = 0
    verdict: str = ""
    cause: str = ""
    tail: str = ""

    @property
    def ids(self) -> range:
        """Its id, or those of its ranks in their order."""
        return range(self.id, self.id + self.ranks)

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"engine {self.id}" if self.ranks == 1 else f"MPI set {self.set!r}"

    def ends(self, cause: str, tail: str) -> None:
        """Note that its process is gone, or all of its ranks are."""
        self.pids.clear()
        self.hosts.clear()
        self.registered = frozenset()
        self.cause, self.tail = cause, tail
