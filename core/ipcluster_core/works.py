"""Tasks as their clients send them: runs of one function, and where each task of a run stands."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable
from dataclasses import dataclass, field

__all__ = ["HELD", "QUEUED", "SETTLED", "Slice", "Work", "Works"]

#: Where a task stands: queued, held by one engine, or settled.
QUEUED, HELD, SETTLED = 0, 1, 2


@dataclass(slots=True, eq=False)
class Work:
    """A run of `count` tasks of one function, numbered from `base` by their client.

    `engines` limits it to those; `retries` is how often one of its tasks may be run again after it was lost
    together with its engine. With a `timeout`, in seconds, each of its tasks is alone on its engine.
    """

    client: Hashable
    base: int
    count: int
    function: Hashable
    engines: frozenset[int] | None = None
    retries: int = 0
    timeout: float | None = None
    name: str = ""
    arrival: int = 0
    losses: dict[int, int] = field(default_factory=dict)
    state: bytearray = field(default_factory=bytearray)
    unsettled: int = 0

    def __post_init__(self) -> None:
        self.state = bytearray(self.count)
        self.unsettled = self.count

    def told(self, message: str) -> str:
        """Return a message about one of its tasks, with their name if they have one."""
        return f"task {self.name!r}: {message}" if self.name else message


@dataclass(frozen=True, slots=True)
class Slice:
    """Tasks ``start .. stop`` of a work, by index."""

    work: Work
    start: int
    stop: int

    @property
    def age(self) -> tuple[int, int]:
        """Sorts the older work, and the earlier task of a work, to the front."""
        return self.work.arrival, self.start

    @property
    def queued(self) -> int:
        """How many of the tasks are queued."""
        return self.work.state.count(QUEUED, self.start, self.stop)


class Works:
    """The works of one client that are not over, found by the number of any of their tasks."""

    def __init__(self) -> None:
        self._by_base: dict[int, Work] = {}
        self._bases: list[int] = []  # sorted; holds some that are over

    def __bool__(self) -> bool:
        return bool(self._by_base)

    def add(self, work: Work) -> None:
        """Add a work; ValueError when one begins with that number already."""
        if work.base in self._by_base:
            raise ValueError(f"task {work.base} of this client is there already")
        self._by_base[work.base] = work
        insort(self._bases, work.base)

    def remove(self, work: Work) -> None:
        """Forget a work that is over."""
        del self._by_base[work.base]
        if len(self._bases) > 2 * len(self._by_base):
            self._bases = sorted(self._by_base)

    def find(self, number: int) -> Work | None:
        """Return the work that a task belongs to, None when it is over or unknown."""
        at = bisect_right(self._bases, number)
        work = self._by_base.get(self._bases[at - 1]) if at else None
        return work if work is not None and number < work.base + work.count else None
