"""What engines write, in the log of a run: line by line, within what Prefect can take.

Each line of a run's log is a row in Prefect's database, so a flood goes there in part only; the cluster's own logs have
more of it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from ipcluster_core import Client

from .reports import run_logger

__all__ = ["Budget", "logged_output"]


@dataclass(slots=True)
class Budget:
    """How many lines may be written: so many at once, and so many in each further second; what is too much is counted.

    Parameters
    ----------
    at_once, per_second
        Numbers of lines.
    """

    at_once: float = 2000.0
    per_second: float = 100.0
    spent: float = 0.0
    seen: float = 0.0
    dropped: int = 0

    def take(self, now: float) -> bool:
        """Take one line's worth, at a time in seconds; tell whether there was any left."""
        self.spent = max(0.0, self.spent - (now - self.seen) * self.per_second)
        self.seen = now
        if self.spent > self.at_once - 1.0:
            self.dropped += 1
            return False
        self.spent += 1.0
        return True


@contextmanager
def logged_output(client: Client, *, wanted: bool) -> Generator[None]:
    """Have what a cluster's engines write go to the current run's log until the block is left, if that is wanted."""
    if not wanted:
        yield
        return
    log, budget = run_logger(), Budget()

    def write(engine: int, line: str) -> None:
        if budget.take(time.monotonic()):
            log.info("[engine %d] %s", engine, line)

    try:
        with client.stream_output(write):
            yield
    finally:
        if budget.dropped:
            log.warning("%d lines of engines are not shown here: ipclusterctl logs %s", budget.dropped, client.name)
