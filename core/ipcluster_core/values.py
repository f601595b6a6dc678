"""Values that clients have put, kept by the broker until nobody needs them: pure bookkeeping.

A value is needed while its client has not dropped it, or a task that uses it is not settled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Values"]

C = TypeVar("C")


@dataclass(slots=True)
class _Entry(Generic[C]):
    content: C
    client: Hashable
    tasks: int = 0
    dropped: bool = False


class Values(Generic[C]):
    """Contents by key. Methods that may free values return the keys of those that are freed."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry[C]] = {}

    def put(self, key: bytes, client: Hashable, content: C) -> None:
        """Keep a value for a client; ValueError if there is one of that key."""
        if key in self._entries:
            raise ValueError("there is a value of that key already")
        self._entries[key] = _Entry(content, client)

    def content(self, key: bytes) -> C:
        """Return a value that is kept."""
        return self._entries[key].content

    def owner(self, key: bytes) -> Hashable:
        """Return the client of a value that is kept."""
        return self._entries[key].client

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the keys of those that are not kept."""
        return [key for key in keys if key not in self._entries]

    def take(self, keys: Iterable[bytes]) -> None:
        """Note that one more work uses the values."""
        for key in keys:
            self._entries[key].tasks += 1

    def give_back(self, keys: Iterable[bytes]) -> list[bytes]:
        """Note that a work does not use the values any more; return those that nobody needs now."""
        for key in keys:
            self._entries[key].tasks -= 1
        return self._unneeded(keys)

    def drop(self, keys: Iterable[bytes]) -> list[bytes]:
        """Note that their client gives up values; return those that nobody needs now."""
        known = [key for key in keys if key in self._entries]
        for key in known:
            self._entries[key].dropped = True
        return self._unneeded(known)

    def of_client(self, client: Hashable) -> list[bytes]:
        """Return the keys of a client's values."""
        return [key for key, entry in self._entries.items() if entry.client == client]

    def remove(self, key: bytes) -> None:
        """Forget a value."""
        del self._entries[key]

    def _unneeded(self, keys: Iterable[bytes]) -> list[bytes]:
        return [key for key in keys if self._entries[key].dropped and self._entries[key].tasks == 0]
