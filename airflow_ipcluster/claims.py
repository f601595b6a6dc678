"""The claims of DAG runs: found in a store, and given up when their run is over.

A claim is given up with the counter that was seen before the run's state was asked for: a run that was cleared and has
taken its claim again meanwhile keeps its cluster. So any number of these may act at once, and late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .logs import Log

if TYPE_CHECKING:
    from ipcluster_core import ClusterManager, TeardownReport

__all__ = ["Claim", "claim_of", "find", "give_up", "give_up_all", "run_of"]

#: How the claims of DAG runs begin.
PREFIX = "airflow/"


class Claim(NamedTuple):
    """One claim on one incarnation of a cluster, as it was when it was seen."""

    claim: str
    counter: int
    name: str
    incarnation: int


def claim_of(dag_id: str, run_id: str) -> str:
    """Return the claim that stands for a DAG run."""
    return f"{PREFIX}{dag_id}/{run_id}"


def run_of(claim: str) -> tuple[str, str] | None:
    """Return DAG id and run id of a claim, None if it is not that of a DAG run. DAG ids have no slash, run ids may."""
    dag_id, slash, run_id = claim.removeprefix(PREFIX).partition("/")
    return (dag_id, run_id) if claim.startswith(PREFIX) and slash else None


def find(manager: ClusterManager, claim: str | None = None) -> list[Claim]:
    """Return the claims of DAG runs on living clusters, or only those of one run."""
    return [
        Claim(held, counter, summary.name, summary.incarnation)
        for summary in manager.list_sync()
        for held, counter in sorted(summary.counters.items())
        if (run_of(held) is not None if claim is None else held == claim)
    ]


def give_up(manager: ClusterManager, seen: Claim, *, timeout: float) -> TeardownReport | None:
    """Give up a claim, if it is still the one that was seen; the cluster ends when it was the last.

    Returns
    -------
    TeardownReport or None
        None when the cluster is over or has come anew meanwhile.
    """
    from ipcluster_core import Cluster
    from ipcluster_core.errors import ClusterBroken, ClusterEnded, ClusterNotFound

    try:
        handle = Cluster.connect_sync(seen.name, store=manager.store, timeout=timeout).handle
    except (ClusterNotFound, ClusterEnded):
        return None
    except ClusterBroken:  # nothing of it can be attached to: by its name it is cleaned up
        return manager.teardown_sync(seen.name, claim=seen.claim, counter=seen.counter, timeout=timeout)
    if handle.incarnation != seen.incarnation:
        return None
    return manager.teardown_sync(handle.model_dump(), claim=seen.claim, counter=seen.counter, timeout=timeout)


def give_up_all(manager: ClusterManager, claim: str, log: Log, *, timeout: float = 30.0) -> list[str]:
    """Give up every claim of one run; a failure of one does not keep the others from it.

    Returns
    -------
    list of str
        What was done, a line for each cluster.
    """
    from ipcluster_core.errors import ClusterError

    done = []
    for seen in find(manager, claim):
        try:
            report = give_up(manager, seen, timeout=timeout)
        except ClusterError as error:
            log.warning("the claim %r on cluster %r could not be given up: %s", claim, seen.name, error)
        else:
            if report is not None:
                done.append(report.message)
                log.info("claim %r: %s", claim, report.message)
    return done
