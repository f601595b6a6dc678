"""When a client that waits for engines is answered, and with what: pure decisions on a cluster's life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ClusterError, ClusterTimeout, LaunchError
from .lifecycle import ClusterLife
from .roster import EngineState

__all__ = ["Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A client that waits until `n` engines are up, or until each of some is up in a later incarnation than it was."""

    client: int
    until: float
    n: int = 0
    was: Mapping[int, int] = field(default_factory=dict)

    def answer(self, life: ClusterLife, title: str, now: float) -> Mapping[str, Any] | ClusterError | None:
        """Return the answer or the refusal for the client; None while the outcome is not certain, and there is time."""
        up, reachable = life.count(EngineState.UP), life.possible()
        have = f"{up} of {self.n} engines of {title} are up"
        reasons = "\n".join(life.reasons())
        late = [engine for engine, was in self.was.items() if not _is_up_again(life, engine, was)]
        failed = [e for e in late if e not in life.engines or life.engines[e].state is EngineState.FAILED]
        if up >= self.n and not late:
            return {"up": up}
        if failed and life.over is None:
            return LaunchError(f"engines {failed} of {title} did not come back\n{reasons}".rstrip())
        if life.over is None and reachable < self.n:
            why = reasons or f"it has a size of {sum(life.sets.values())}: scale it first"
            return LaunchError(f"{have}, and no more than {reachable} can be: {why}")
        if now >= self.until:
            what = f"engines {late} of {title} are not up again" if late else have
            return ClusterTimeout(f"{what}\n{reasons}".rstrip())
        return None


def _is_up_again(life: ClusterLife, engine: int, was: int) -> bool:
    found = life.engines.get(engine)
    return found is not None and found.state is EngineState.UP and found.incarnation > was
