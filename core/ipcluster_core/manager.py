"""Many clusters: list them, get one, end one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from . import ending, reaping
from ._sync import synced
from .cure import cure_record, cure_strays
from .ending import TeardownReport
from .errors import ClusterError, ClusterNotFound, StaleHandle, StoreDamaged
from .incarnation import Reference, find_record, refer, resolve
from .reaping import ReapResult, Rules
from .record import ClusterState, Liveness
from .store import Store, open_store
from .strays import Stray, find_strays, incarnation_of

if TYPE_CHECKING:
    from .handle import ClusterHandle

__all__ = ["ClusterManager", "ClusterSummary", "ReapResult"]


#: Seconds in which a record that was removed because it was damaged has its successor.
_CURE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One line of a list. `reason` says why it is broken, or how it ended; `ends` what will end it by itself.

    `engines` is the number wanted, `sets` the same by set; `adapting` has the least and the most of each set that is
    sized by its load; `counters` the counter of each claim, to guard its giving up.
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
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """The number of engines as a list shows it: ``"4"``, or ``"0..8"`` when it follows the load."""
        if not self.adapting:
            return str(self.engines)
        bounds = [self.adapting.get(name, (n, n)) for name, n in self.sets.items()]
        return f"{sum(low for low, _ in bounds)}..{sum(high for _, high in bounds)}"


#: What `list` returns: the class's own method hides the name `list` from its annotations.
_Summaries: TypeAlias = list[ClusterSummary]
_Strays: TypeAlias = list[Stray]
_Results: TypeAlias = list[ReapResult]


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
            A broken or unreadable one is in it, with the reason; and, unless labels are asked for, processes without
            a record, as a broken cluster of their name.
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
        if not labels:
            found += [_summary_of(stray) for stray in find_strays(self._store)]
        return sorted(found, key=lambda one: (one.name, one.incarnation))

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
            strays = await asyncio.to_thread(find_strays, self._store, name)
            summary = _summary_of(strays[-1]) if strays else None
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
            life = Liveness.ALIVE if record.state is ClusterState.ENDED else ending.life_of(record)
            if life is Liveness.GONE:
                reason = f"its processes are gone ({ending.fate_of(record)}); it was {record.state}"
                state = ClusterState.BROKEN
            elif life is Liveness.UNKNOWN:
                state, reason = ClusterState.UNKNOWN, ending.fate_of(record)
        except (ClusterError, KeyError, TypeError, ValueError) as error:
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
            counters=dict(record.claims),
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

        A record that cannot be read (damaged, half-made, of a newer version) is no hindrance: what carries the
        cluster's mark on this host is ended and removed, and so are processes of that name without a record.

        Parameters
        ----------
        cluster
            Name, handle, dict or JSON. A handle ends its own incarnation only: a newer one is left alone.
        claim
            The claim to give up; the cluster ends when it was the last.
        counter
            The claim's counter, as it was when it was taken; with an older one nothing is given up.
        force
            End it although others hold claims; and forget one that does not answer and whose processes, if there are
            any, cannot be seen from here: another host's, another container's.
        timeout
            Seconds.

        Returns
        -------
        TeardownReport
            What was done, and what could not be ended.

        Raises
        ------
        ClusterNotFound
            There never was a cluster of that name, and nothing of that name lives.
        ClusterInUse
            Others hold claims, none was given, and `force` is not set.
        ClusterBroken
            It runs on another host and does not answer from here; or may run there, and its record cannot be read.
        """
        store, who = refer(cluster, self._store if isinstance(cluster, str) else None)

        async def end() -> TeardownReport:
            _, record = await asyncio.to_thread(resolve, cluster, store)
            return await ending.teardown(
                store, record, claim=claim, counter=counter, force=force, timeout=timeout, unseen=force
            )

        try:
            report = await end()
        except StaleHandle as error:
            return TeardownReport(who.name, "already gone", str(error))
        except StoreDamaged:
            return await cure_record(store, who, claim=claim, force=force, timeout=timeout)
        except ClusterNotFound:
            strays = await self._strays(store, who)
            if strays:
                return await cure_strays(store, strays, timeout=timeout)
            # Somebody may be putting a readable record in the place of a damaged one: look again, once.
            await asyncio.sleep(_CURE_SECONDS)
            report = await end()
        strays = [] if report.outcome == "released" else await self._strays(store, who)
        if not strays:
            return report
        cured = await cure_strays(store, strays, timeout=timeout)
        both = f"{report.message}; {cured.message}"
        return TeardownReport(who.name, "ended", both, report.leftovers + cured.leftovers, cured=True)

    @staticmethod
    async def _strays(store: Store, who: Reference) -> _Strays:
        found = await asyncio.to_thread(find_strays, store, who.name)
        return [stray for stray in found if who.tag in (None, stray.tag)]

    async def reap(
        self,
        max_age: float | None = None,
        idle_for: float | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        broken: bool = True,
        dry_run: bool = False,
        timeout: float = 30.0,
    ) -> _Results:
        """End what nobody needs any more. Safe to repeat, and to run from cron.

        Claims do not protect a cluster from it; whoever still uses it is told that it was reaped, and why. One that
        is being created is left alone, unless it is broken; so is one whose record is of a newer version.

        Parameters
        ----------
        max_age
            End clusters that were created so many seconds ago.
        idle_for
            End clusters that have had nothing queued, running or starting for so many seconds. The cluster's
            controller is asked, and has the last word when work comes meanwhile.
        labels
            Only clusters that have all of these labels.
        broken
            Clean up broken clusters too; and, unless labels are asked for, records that cannot be read and processes
            without a record, which have none.
        dry_run
            Only say what would be ended.
        timeout
            Seconds for each cluster; many are asked and ended at one time.

        Returns
        -------
        list of ReapResult
            By name: what was ended or failed to, and why; empty when there was nothing to do. A failure of one does
            not keep the others from their end.

        Raises
        ------
        ValueError
            A number of seconds is negative.
        StoreError
            The store cannot be reached.
        """
        if min(max_age or 0, idle_for or 0) < 0:
            raise ValueError(f"max_age and idle_for are seconds from 0 on, not {max_age} and {idle_for}")
        rules = Rules(max_age, idle_for, dict(labels or {}), broken)
        return await reaping.reap(self._store, rules, dry_run=dry_run, timeout=timeout)

    list_sync = synced(list)  # noqa: A003 - the method above
    get_sync = synced(get)
    teardown_sync = synced(teardown)
    reap_sync = synced(reap)


def _summary_of(stray: Stray) -> ClusterSummary:
    return ClusterSummary(stray.name, ClusterState.BROKEN, incarnation_of(stray.tag), reason=stray.reason)
