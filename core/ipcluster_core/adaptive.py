"""How many engines a set should have for its load: pure state, the clock passed in.

::

    need above what is wanted  --> wanted grows at once
    need below for `patience`  --> wanted shrinks to the most that was needed meanwhile
    starts fail                --> no more of them until a pause is over, which grows from round to round

The need is one engine for each that is busy, and one for each waiting task; of tasks whose duration is known, so many
that each engine gets some time's worth. Whoever performs it ends idle engines only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["PATIENCE", "REFUSING_ROUNDS", "RETRY_PAUSES", "Adaptive", "Decision", "Demand"]

#: Seconds for which fewer engines must have been enough before one is taken away.
PATIENCE = 30.0

#: Seconds of waiting work that are worth the start of an engine.
WORTH_SECONDS = 0.25

#: Seconds before engines that could not be started are tried again, by how many rounds in a row have failed.
RETRY_PAUSES = (5.0, 15.0, 60.0, 300.0)

#: After so many rounds without a single engine, tasks are not kept waiting for the next one.
REFUSING_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits and what works.

    `tasks` wait for any engine; `unmeasured` of them are of functions whose duration is not known, the others are
    estimated to take `seconds` together. `busy` are the ids of the engines that hold tasks.
    """

    tasks: int = 0
    unmeasured: int = 0
    seconds: float = 0.0
    busy: frozenset[int] = field(default_factory=frozenset)

    @property
    def useful(self) -> int:
        """How many more engines the waiting tasks could keep busy."""
        measured = self.tasks - self.unmeasured
        return self.unmeasured + min(measured, math.ceil(self.seconds / WORTH_SECONDS))


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of engines wanted and why; `retry` gives engines that have failed another chance."""

    wanted: int
    why: str
    retry: bool = False


@dataclass(slots=True)
class Adaptive:
    """Bounds of one engine set, and what has to be remembered to size it by load."""

    minimum: int
    maximum: int
    patience: float = PATIENCE
    retry_at: float | None = None
    _rounds: int = 0
    _below_since: float | None = None
    _peak: int = 0

    def clamp(self, n: int) -> int:
        """Return the number within the bounds that is next to `n`."""
        return max(self.minimum, min(self.maximum, n))

    def decide(self, *, wanted: int, need: int, coming: int, failed: int, now: float) -> Decision:
        """Size the set.

        Parameters
        ----------
        wanted
            Engines wanted until now.
        need
            Engines that the load could keep busy, whatever the bounds.
        coming
            Engines on their way up, or waiting for their next start.
        failed
            Engines that could not be started.
        now
            Monotonic seconds.

        Returns
        -------
        Decision
            What is wanted from now on.
        """
        goal = self.clamp(need)
        if self._is_blocked(coming=coming, failed=failed, now=now):
            # What cannot be started is not asked for; what is not needed any more may still go.
            goal = min(goal, wanted)
        elif failed and not coming and goal > wanted - failed:
            self.retry_at = None
            return Decision(max(wanted, goal), "engines that could not be started are tried again", retry=True)
        if goal >= wanted:
            self._below_since, self._peak = None, 0
            return Decision(goal, "more engines are needed")
        if self._below_since is None:
            self._below_since = now
        self._peak = max(self._peak, goal)
        if now - self._below_since < self.patience:
            return Decision(wanted, "fewer engines are needed, but not for long enough")
        peak, self._below_since, self._peak = self._peak, now, goal
        return Decision(peak, f"no more than {peak} were needed for {self.patience:g} s")

    def _is_blocked(self, *, coming: int, failed: int, now: float) -> bool:
        """Tell whether starts are to be left alone for now; a round that has failed begins the pause."""
        if coming:
            return False
        if failed and self.retry_at is None:
            self._rounds += 1
            self.retry_at = now + self._pause
        elif not failed and self.retry_at is None:
            self._rounds = 0
        if self.retry_at is None or now >= self.retry_at:
            if not failed:
                self.retry_at = None
            return False
        return True

    @property
    def _pause(self) -> float:
        return RETRY_PAUSES[min(self._rounds, len(RETRY_PAUSES)) - 1]

    def refuses(self, now: float) -> bool:
        """Tell whether no task is to wait for engines of this set: several rounds brought none, the next is far."""
        return self._rounds >= REFUSING_ROUNDS and self.retry_at is not None and now < self.retry_at

    def reason(self) -> str:
        """Say what keeps the set from its size; empty when nothing does."""
        if self.retry_at is None or not self._rounds:
            return ""
        return f"engines could not be started; attempt {self._rounds + 1} comes after {self._pause:g} s"
