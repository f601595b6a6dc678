"""Which engines a verb is for: all, some by id, or a set by name. Pure, so that each mistake has its message."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ClusterError
from .lifecycle import ClusterLife

__all__ = ["choose", "launchers_of", "log_parts"]


def choose(life: ClusterLife, engines: str | Sequence[int] | None, title: str) -> list[int]:
    """Return the ids of the engines that are meant.

    Parameters
    ----------
    life
        The cluster's.
    engines
        Ids; or the name of a set; or None for all.
    title
        How messages name the cluster.

    Returns
    -------
    list of int
        In the order given, else sorted.

    Raises
    ------
    ClusterError
        There is no such engine or set; the message names those that there are.
    """
    if engines is None:
        return sorted(life.engines)
    if isinstance(engines, str):
        if engines not in life.sets:
            known = ", ".join(sorted(life.sets))
            raise ClusterError(f"{title} has no engine set {engines!r}; it has: {known}")
        return sorted(number for number, engine in life.engines.items() if engine.set == engines)
    wanted = [int(engine) for engine in engines]
    unknown = [engine for engine in wanted if engine not in life.engines]
    if unknown:
        raise ClusterError(f"{title} has no engine {unknown}; it has: {sorted(life.engines)}")
    return wanted


def launchers_of(life: ClusterLife, engines: Sequence[int], title: str) -> list[str]:
    """Return the MPI sets of engines, each of which has its mpiexec.

    Returns
    -------
    list of str
        Their names, sorted.

    Raises
    ------
    ClusterError
        One of the engines is no rank of an MPI set.
    """
    sets = sorted({life.engines[engine].set for engine in engines})
    plain = [name for name in sets if name not in life.units]
    if plain:
        raise ClusterError(f"{title}: set {plain[0]!r} has no launcher of its own, as MPI sets have")
    return sets


def log_parts(life: ClusterLife, engines: str | Sequence[int] | None, title: str) -> list[str]:
    """Return the parts whose logs are meant: engines, also such that are gone; of sets also their mpiexec.

    Returns
    -------
    list of str
        As `incarnation.log_path` has them.

    Raises
    ------
    ClusterError
        There is no such set.
    """
    if engines is not None and not isinstance(engines, str):
        return [f"engine-{int(engine)}" for engine in engines]
    ids = choose(life, engines, title)
    firsts = [min(e for e in ids if life.engines[e].set == name) for name in units_among(life, ids)]
    head = ["nanny", "controller", "broker"] if engines is None else []
    return [*head, *(f"mpiexec-{first}" for first in firsts), *(f"engine-{engine}" for engine in ids)]


def units_among(life: ClusterLife, engines: Sequence[int]) -> list[str]:
    """Return the MPI sets of which some engines are, sorted."""
    return sorted({life.engines[engine].set for engine in engines} & life.units)
