r"""What became of interrupts: whoever asked for some is answered when each is certain, or after a moment.

::

    a task runs --note what runs, signal--> it ended in time --interrupted here--> "interrupted"
         |                                          \--else (it was at its end)--> "idle"
         none: "idle"                       it did not --> "goes on", its engine died --> "not up"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .interrupts import Outcome, Why
from .journal import Journal

__all__ = ["PATIENCE_SECONDS", "Pursuits", "Target"]

#: Seconds that a task has to come to its end after it was interrupted.
PATIENCE_SECONDS = 1.0

#: Seconds between two looks at whether it has: memory cannot be waited for.
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Target:
    """An engine whose running task is to be interrupted; without a journal it is not up."""

    engine: int
    journal: Journal | None


@dataclass(slots=True)
class _Pursuit:
    until: float
    running: dict[int, tuple[Journal, tuple[int, int]]] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class Pursuits:
    """The wishes to interrupt that are not answered yet, by the number of who asked."""

    def __init__(self) -> None:
        self._open: dict[int, _Pursuit] = {}

    def begin(self, request: int, targets: Iterable[Target], now: float) -> list[int]:
        """Name what runs on each engine now as what is to be interrupted, and nothing that comes after it.

        Returns
        -------
        list of int
            The engines to signal.
        """
        pursuit = self._open[request] = _Pursuit(now + PATIENCE_SECONDS)
        for target in targets:
            task = None if target.journal is None else target.journal.running()
            if target.journal is None:
                pursuit.outcomes[target.engine] = Outcome.NOT_UP
            elif task is None:
                pursuit.outcomes[target.engine] = Outcome.IDLE
            else:
                # Without room for it the engine reads none at all; so it will not end.
                target.journal.interrupts.add(*task, Why.INTERRUPT)
                pursuit.running[target.engine] = (target.journal, task)
        return sorted(pursuit.running)

    def lost(self, journal: Journal) -> None:
        """Note that an engine has died; its journal is read no more."""
        for pursuit in self._open.values():
            for engine in [engine for engine, (of, _) in pursuit.running.items() if of is journal]:
                del pursuit.running[engine]
                pursuit.outcomes[engine] = Outcome.NOT_UP

    def settle(self, now: float) -> dict[int, Mapping[int, Outcome]]:
        """Return the answers that are complete, by the number of who asked."""
        answers: dict[int, Mapping[int, Outcome]] = {}
        for request, pursuit in list(self._open.items()):
            for engine, (journal, task) in list(pursuit.running.items()):
                outcome = self._outcome(journal, task, late=now >= pursuit.until)
                if outcome is not None:
                    del pursuit.running[engine]
                    pursuit.outcomes[engine] = outcome
            if not pursuit.running:
                answers[request] = self._open.pop(request).outcomes
        return answers

    @staticmethod
    def _outcome(journal: Journal, task: tuple[int, int], *, late: bool) -> Outcome | None:
        if journal.running() != task:
            return Outcome.INTERRUPTED if journal.interrupts.noted(*task) else Outcome.IDLE
        return Outcome.GOES_ON if late else None

    def deadline(self, now: float) -> float | None:
        """Return when to call `settle`; None: never."""
        return now + _LOOK_SECONDS if self._open else None
