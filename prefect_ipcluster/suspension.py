"""The cluster of a ``with`` block while its flow run is suspended: kept, and found again when the run is resumed.

::

    suspended   marked with a claim of its own, then disowned: the flow's process may go
    resumed     found by that mark, owned by the new process, the mark given up

Its limits go on, so a run that is suspended for longer than 30 minutes (`idle_timeout`) gets a new one. A process that
is killed between the two steps takes its cluster along.
"""

from __future__ import annotations

from ipcluster_core import Cluster, ClusterManager, ClusterState, ClusterSummary
from ipcluster_core.errors import ClusterEnded, ClusterError, ClusterNotFound

from .reports import Logger
from .runs import Plan, suspended

__all__ = ["akeep", "atake_up", "keep", "take_up"]

_KEPT = "cluster %r is kept while the run is suspended, but for its limits"
_UNKEPT = "cluster %r is not kept while the run is suspended: %s"


def keep(cluster: Cluster, claim: str | None, log: Logger) -> bool:
    """Have a cluster outlive its block and this process, for when the run with that claim is resumed.

    Returns
    -------
    bool
        False when there is no claim, or the cluster does not answer: it is then to be ended.
    """
    if claim is None:
        return False
    try:
        Cluster.connect_sync(cluster.handle, claim=suspended(claim))
        cluster.disown_sync()
    except ClusterError as error:
        log.warning(_UNKEPT, cluster.name, error)
        return False
    log.info(_KEPT, cluster.name)
    return True


async def akeep(cluster: Cluster, claim: str | None, log: Logger) -> bool:
    """Have a cluster outlive its block and this process; twin of `keep`."""
    if claim is None:
        return False
    try:
        await Cluster.connect(cluster.handle, claim=suspended(claim))
        await cluster.disown()
    except ClusterError as error:
        log.warning(_UNKEPT, cluster.name, error)
        return False
    log.info(_KEPT, cluster.name)
    return True


def take_up(wanted: Plan, store: str | None) -> Cluster | None:
    """Own the cluster again that this run has kept.

    Returns
    -------
    Cluster or None
        Connected; None when there is none, or it has ended.
    """
    manager = ClusterManager(store)
    try:
        if wanted.claim is None or not _is_kept(manager.get_sync(wanted.name), wanted.claim):
            return None
        found = Cluster.connect_sync(wanted.name, store=store, claim=wanted.claim)
        found.own_sync()
        manager.teardown_sync(found.handle, claim=suspended(wanted.claim))
    except (ClusterNotFound, ClusterEnded):
        return None
    return found


async def atake_up(wanted: Plan, store: str | None) -> Cluster | None:
    """Own the cluster again that this run has kept; twin of `take_up`."""
    manager = ClusterManager(store)
    try:
        if wanted.claim is None or not _is_kept(await manager.get(wanted.name), wanted.claim):
            return None
        found = await Cluster.connect(wanted.name, store=store, claim=wanted.claim)
        await found.own()
        await manager.teardown(found.handle, claim=suspended(wanted.claim))
    except (ClusterNotFound, ClusterEnded):
        return None
    return found


def _is_kept(summary: ClusterSummary, claim: str) -> bool:
    return summary.state is ClusterState.RUNNING and suspended(claim) in summary.claims
