"""Outcomes of settled tasks, kept by task id for whoever asks later: pure bookkeeping, the clock passed in.

What its client has got is kept as long as there is room for it, in case that client died before it used it. What no
client has got is kept longer: it goes first when its time is over, then, oldest first, when there is no room.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Archive", "Entry"]

C = TypeVar("C")

#: Bytes of outcomes that their clients have got, and of those that nobody has got.
_DELIVERED_BYTES = 32 << 20
_MOST_BYTES = 1 << 30

#: What an entry takes besides its content, about.
_ENTRY_BYTES = 500


@dataclass(slots=True, eq=False)
class Entry(Generic[C]):
    """Outcomes of the tasks ``base .. base + count`` of a client."""

    client: str
    base: int
    count: int
    content: C
    size: int
    until: float


class Archive(Generic[C]):
    """Contents by client and task number. Methods that drop entries return them, so that what they hold is freed.

    Parameters
    ----------
    seconds
        How long an outcome is kept.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._entries: dict[str, dict[int, Entry[C]]] = {}
        self._bases: dict[str, list[int]] = {}
        # By age. In each all have the same time to live, so those in front are over first.
        self._delivered: OrderedDict[int, Entry[C]] = OrderedDict()
        self._undelivered: OrderedDict[int, Entry[C]] = OrderedDict()
        self._bytes = [0, 0]  # undelivered, delivered

    @property
    def size(self) -> int:
        """Bytes that are kept, about."""
        return sum(self._bytes)

    def keep(
        self, client: str, base: int, count: int, content: C, *, size: int, delivered: bool, now: float
    ) -> list[Entry[C]]:
        """Keep the outcomes of tasks that were settled together.

        Returns
        -------
        list of Entry
            What had to go.
        """
        before = self._entries.get(client, {}).get(base)
        replaced = [] if before is None else [self._remove(before)]
        entry = Entry(client, base, count, content, size + _ENTRY_BYTES, now + self._seconds)
        self._entries.setdefault(client, {})[base] = entry
        insort(self._bases.setdefault(client, []), base)
        (self._delivered if delivered else self._undelivered)[id(entry)] = entry
        self._bytes[delivered] += entry.size
        gone = replaced + self.expire(now)
        for group, limit in ((self._delivered, _DELIVERED_BYTES), (self._undelivered, _MOST_BYTES)):
            while group and self._bytes[group is self._delivered] > limit:
                gone.append(self._remove(next(iter(group.values()))))
        return gone

    def find(self, client: str, number: int) -> Entry[C] | None:
        """Return the entry that holds the outcome of a task, None when it is not kept."""
        bases = self._bases.get(client, ())
        at = bisect_right(bases, number)
        if at == 0:
            return None
        entry = self._entries[client][bases[at - 1]]
        return entry if number < entry.base + entry.count else None

    def remove(self, entry: Entry[C]) -> None:
        """Drop an entry that is of no use any more."""
        self._remove(entry)

    def expire(self, now: float) -> list[Entry[C]]:
        """Drop and return the entries whose time is over."""
        gone = []
        for group in (self._delivered, self._undelivered):
            while group and (oldest := next(iter(group.values()))).until <= now:
                gone.append(self._remove(oldest))
        return gone

    def deadline(self) -> float | None:
        """Return when `expire` has something to do, None if never."""
        oldest = [next(iter(group.values())).until for group in (self._delivered, self._undelivered) if group]
        return min(oldest, default=None)

    def _remove(self, entry: Entry[C]) -> Entry[C]:
        delivered = self._delivered.pop(id(entry), None) is not None
        if not delivered:
            del self._undelivered[id(entry)]
        self._bytes[delivered] -= entry.size
        mine, bases = self._entries[entry.client], self._bases[entry.client]
        del mine[entry.base]
        del bases[bisect_right(bases, entry.base) - 1]
        if not mine:
            del self._entries[entry.client], self._bases[entry.client]
        return entry
