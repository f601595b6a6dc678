"""Which engines are connected to the broker, and of which sets they are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .inventory import Shelf
from .wire import Buffer

__all__ = ["NAME_THE_RANKS", "Seat", "Seats"]

#: What to do where tasks that any engine might take have nowhere to go.
NAME_THE_RANKS = "name those that are to run a task: client.options(engines=[0]), client.run(..., engines='solver')"


@dataclass(slots=True)
class Seat:
    """An engine's connection. `partner` is its number with the hub, `ranks` the size of its MPI set if it has one.

    `silent_since` is when it was last heard of, or was given its first task after that; None while it holds none.
    """

    partner: int
    incarnation: int
    host: str
    set: str
    ranks: int | None
    shelf: Shelf
    silent_since: float | None = None


class Seats(dict[int, Seat]):
    """Engines that have registered, by id.

    Parameters
    ----------
    title
        How messages name the cluster.
    sets
        Names of the engine sets.
    inline
        Makes of shared buffers what engines on other hosts are sent.
    """

    def __init__(
        self, title: str, sets: Container[str], inline: Callable[[Sequence[Buffer]], Sequence[Buffer]] | None = None
    ) -> None:
        super().__init__()
        self._title = title
        self._sets = sets
        self._inline = inline
        self._engine_of: dict[int, int] = {}  # by partner

    def join(self, partner: int, hello: Mapping[str, Any]) -> tuple[int, Seat]:
        """Seat an engine; return its id and its seat."""
        engine, ranks = int(hello["engine"]), hello.get("ranks")
        seat = Seat(
            partner,
            int(hello["incarnation"]),
            str(hello["host"]),
            str(hello.get("set", "default")),
            None if ranks is None else int(ranks),
            Shelf(inline=self._inline if hello.get("inline") else None),
        )
        self[engine] = seat
        self._engine_of[partner] = engine
        return engine, seat

    def leave(self, engine: int) -> None:
        """Give up the seat of an engine that is dead."""
        del self._engine_of[self.pop(engine).partner]

    def silent(self, now: float) -> dict[str, float]:
        """Return for how many seconds each engine that holds tasks has said nothing, by its id as JSON has it."""
        since = ((str(engine), seat.silent_since) for engine, seat in self.items())
        return {engine: round(now - at, 3) for engine, at in since if at is not None}

    def engine_of(self, partner: int) -> int | None:
        """Return which engine a partner is, None if it is none."""
        return self._engine_of.get(partner)

    def have_ranks(self, engines: Iterable[int]) -> bool:
        """Tell whether any of some engines is a rank of an MPI set."""
        return any(engine in self and self[engine].ranks is not None for engine in engines)

    def answer(self, name: str | None, leaving: Container[int]) -> dict[str, object]:
        """Return which engines of a set (None: of all) can be given work now, or why the set can be given none."""
        mine = {engine: seat for engine, seat in self.items() if name in (None, seat.set) and engine not in leaving}
        sizes = {seat.ranks for seat in mine.values() if seat.ranks is not None}
        if name is not None and name not in self._sets:
            return {"error": f"{self._title} has no engine set {name!r}"}
        if name is not None and not mine:
            return {"error": f"no engine of set {name!r} of {self._title} is up"}
        if name is not None and sizes and len(mine) != max(sizes):
            text = f"{len(mine)} of the {max(sizes)} ranks of MPI set {name!r} of {self._title} are up: wait for all"
            return {"error": text}
        return {"engines": sorted(mine)}
