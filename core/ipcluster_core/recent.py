"""Which functions the other side has: the same rule on both sides, so nobody has to ask."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["MOST", "Recent"]

#: Functions that one side remembers of another: a program that makes closures in a loop must not fill all memory.
MOST = 1024


class Recent:
    """Keys in the order in which they were sent; sender and receiver forget the oldest at the same moment."""

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._keys)

    def add(self, key: bytes) -> bytes | None:
        """Note a key that was sent; return the one that is forgotten for it, if any."""
        self._keys[key] = None
        if len(self._keys) <= MOST:
            return None
        oldest = next(iter(self._keys))
        del self._keys[oldest]
        return oldest
