"""Tasks that belong together: all are queued at once, so that every engine meets its part in the same order.

Two gangs on the ranks of an MPI set would otherwise wait for each other in a collective call, each on some of the
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from .works import Work

__all__ = ["Gangs"]


class Gangs:
    """Those whose members have not all come, by the client that sends them and its number for them."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], list[tuple[Work, str]]] = {}

    def join(self, client: int, gang: Sequence[int] | None, work: Work, refusal: str) -> list[tuple[Work, str]]:
        """Take the next member of a gang, which has a number and a size; None if it stands alone.

        Returns
        -------
        list of tuple
            The members, when all are here, each with the reason for which none may run; empty if they may.
        """
        if gang is None:
            return [(work, refusal)]
        key, size = (client, int(gang[0])), int(gang[1])
        members = self._waiting.setdefault(key, [])
        members.append((work, refusal))
        if len(members) < size:
            return []
        del self._waiting[key]
        reason = next((reason for _, reason in members if reason), "")
        return [(member, reason) for member, _ in members]

    def leave(self, client: int) -> list[Work]:
        """Forget a client that is gone; return the members of a gang that will not be whole."""
        keys = [key for key in self._waiting if key[0] == client]
        return [work for key in keys for work, _ in self._waiting.pop(key)]
