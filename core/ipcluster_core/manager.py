"""Many clusters: list them, get one, end one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from . import ending
from ._sync import synced
from .ending import TeardownReport
from .errors import ClusterNotFound, StaleHandle, StoreError
from .incarnation import find_record, resolve
from .record import ClusterState
from .store import Store, open_store

if TYPE_CHECKING:
    from .handle import ClusterHandle

__all__ = ["ClusterManager", "ClusterSummary"]


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One line of a list. `reason` says why it is broken, or how it ended; `ends` what will end it by itself.

    `engines` is the number wanted, `sets` the same by set; `adapting` has the least and the most of each set that is
    sized by its load.
    """

    name: str
    state: ClusterState
    incarnation: int = 0
    backend: str = ""
    launcher: str = ""
    engines: int = 0
    created: str = ""
    ends: str = ""
    reason: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    sets: Mapping[str, int] = field(default_factory=dict)
    adapting: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """The number of engines as a list shows it: ``"4"``, or ``"0..8"`` when it follows the load."""
        if not self.adapting:
            return str(self.engines)
        bounds = [self.adapting.get(name, (n, n)) for name, n in self.sets.items()]
        return f"{sum(low for low, _ in bounds)}..{sum(high for _, high in bounds)}"


#: What `list` returns: the class's own method hides the name `list` from its annotations.
_Summaries: TypeAlias = list[ClusterSummary]


class ClusterManager:
    """The clusters of one store.

    Parameters
    ----------
    store
        Store or its URL; default as `open_store` has it.
    """

    def __init__(self, store: str | Store | None = None) -> None:
        self._store = open_store(store) if store is None or isinstance(store, str) else store

    @property
    def store(self) -> Store:
        """The store."""
        return self._store

    async def list(self, labels: Mapping[str, str] | None = None, *, all: bool = False) -> _Summaries:  # noqa: A002 - as on the command line
        """Return the clusters, by name.

        Parameters
        ----------
        labels
            Only those that have all of these labels.
        all
            Ended ones too.

        Returns
        -------
        list of ClusterSummary
            A broken or unreadable one is in it, with the reason.
        """
        return await asyncio.to_thread(self._list, labels or {}, everything=all)

    def _list(self, labels: Mapping[str, str], *, everything: bool) -> _Summaries:
        found = []
        for name in self._store.keys("record"):
            summary = self._summary(name)
            if summary is None or (summary.state is ClusterState.ENDED and not everything):
                continue
            if labels.items() <= summary.labels.items():
                found.append(summary)
        return found

    async def get(self, name: str) -> ClusterSummary:
        """Return one cluster's line, ended or not.

        Returns
        -------
        ClusterSummary
            From the record and from what is known here of its processes; the cluster itself is not asked.

        Raises
        ------
        ClusterNotFound
            There is none of that name.
        """
        summary = await asyncio.to_thread(self._summary, name)
        if summary is None:
            raise ClusterNotFound(f"there is no cluster {name!r} in {self._store.url}")
        return summary

    def _summary(self, name: str) -> ClusterSummary | None:
        try:
            found = find_record(self._store, name)
            if found is None:
                return None
            record = found[0]
            state, reason = record.state, "" if record.ended is None else f"{record.ended.reason} ({record.ended.at})"
            if ending.is_broken(record):
                state, reason = ClusterState.BROKEN, f"its processes are gone; it was {record.state}"
        except (StoreError, KeyError, TypeError, ValueError) as error:
            return ClusterSummary(name, ClusterState.BROKEN, reason=str(error))
        limits = [("idle", "idle_timeout"), ("lifetime", "lifetime"), ("no client", "no_client_timeout")]
        ends = [f"{word} {record.spec[key]:g} s" for word, key in limits if record.spec.get(key) is not None]
        return ClusterSummary(
            name=name,
            state=state,
            incarnation=record.incarnation,
            backend=record.backend,
            launcher=record.launcher,
            engines=sum(record.sets.values()),
            created=record.created,
            ends=", ".join(ends) if state is not ClusterState.ENDED else "",
            reason=reason,
            labels=record.labels,
            sets=record.sets,
            adapting={name: (low, high) for name, (low, high) in record.adapting.items()},
            claims=tuple(sorted(record.claims)),
        )

    async def teardown(
        self,
        cluster: str | Mapping[str, object] | ClusterHandle,
        *,
        claim: str | None = None,
        counter: int | None = None,
        force: bool = False,
        timeout: float = 30.0,
    ) -> TeardownReport:
        """End a cluster, or give up a claim on it. Idempotent; "already gone" is success.

        Parameters
        ----------
        cluster
            Name, handle, dict or JSON. A handle ends its own incarnation only: a newer one is left alone.
        claim
            The claim to give up; the cluster ends when it was the last.
        counter
            The claim's counter, as it was when it was taken; with an older one nothing is given up.
        force
            End it although others hold claims.
        timeout
            Seconds.

        Returns
        -------
        TeardownReport
            What was done, and what could not be ended.

        Raises
        ------
        ClusterNotFound
            There never was a cluster of that name.
        ClusterInUse
            Others hold claims, none was given, and `force` is not set.
        """
        try:
            store, record = resolve(cluster, self._store if isinstance(cluster, str) else None)
        except StaleHandle as error:
            return TeardownReport(str(cluster), "already gone", str(error))
        return await ending.teardown(store, record, claim=claim, counter=counter, force=force, timeout=timeout)

    list_sync = synced(list)  # noqa: A003 - the method above
    get_sync = synced(get)
    teardown_sync = synced(teardown)
