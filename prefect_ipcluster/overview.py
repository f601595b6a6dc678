"""One cluster as it is, as Prefect tasks: its status, and the restart of its engines; with twins for async flows."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import Cluster, ClusterHandle, ClusterManager, ClusterStatus, ClusterSummary
from ipcluster_core.errors import ClusterBroken, ClusterEnded

from .artifacts import ashow_engines, show_engines
from .notices import atell, tell
from .options import TAGS, Named
from .reports import AnyCluster, describe, name_of, run_logger, store_of

__all__ = ["acluster_status", "arestart_engines", "cluster_status", "restart_engines"]


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("restart engines of", "cluster"))
def restart_engines(
    cluster: AnyCluster,
    engines: str | Sequence[int] | None = None,
    *,
    store: str | None = None,
    timeout: float = 60.0,
) -> ClusterHandle:
    """Start engines anew under their ids, and wait until they are up; what they hold is lost, tasks that wait are not.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    engines
        Ids, or the name of a set; default all. One that was given up gets another chance.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.
    timeout
        Seconds until they must be up.

    Returns
    -------
    ClusterHandle
        What other tasks and flows need to find it.

    Raises
    ------
    ClusterNotFound, ClusterEnded, StaleHandle, ClusterBroken
        See `connect_cluster`.
    LaunchError, ClusterTimeout
        An engine did not come back, or not in time.
    """
    found = Cluster.connect_sync(cluster, store=store, timeout=timeout)
    found.restart_sync(engines, timeout=timeout)
    tell("restarted", found.status_sync())
    return found.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("restart engines of", "cluster"))
async def arestart_engines(
    cluster: AnyCluster,
    engines: str | Sequence[int] | None = None,
    *,
    store: str | None = None,
    timeout: float = 60.0,
) -> ClusterHandle:
    """Start engines anew under their ids; twin of `restart_engines`."""
    found = await Cluster.connect(cluster, store=store, timeout=timeout)
    await found.restart(engines, timeout=timeout)
    await atell("restarted", await found.status())
    return found.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("look at", "cluster"))
def cluster_status(
    cluster: AnyCluster, *, artifact: bool = False, store: str | None = None, timeout: float = 10.0
) -> ClusterStatus:
    """Tell how a cluster is. One that has ended or is broken has a status too, with the reason.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    artifact
        Whether to show its engines as an artifact.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.
    timeout
        Seconds for it to answer.

    Returns
    -------
    ClusterStatus
        State, engines, tasks, reasons, and what will end it when.

    Raises
    ------
    ClusterNotFound, StaleHandle
        There is no such cluster, or the handle is of an earlier incarnation.
    """
    try:
        status = Cluster.connect_sync(cluster, store=store, timeout=timeout).status_sync(timeout=timeout)
    except (ClusterEnded, ClusterBroken) as error:
        status = _over(ClusterManager(store or store_of(cluster)).get_sync(name_of(cluster)), error)
    run_logger().info("%s", describe(status))
    if artifact:
        show_engines(status)
    return status


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("look at", "cluster"))
async def acluster_status(
    cluster: AnyCluster,
    *,
    artifact: bool = False,
    store: str | None = None,
    timeout: float = 10.0,
) -> ClusterStatus:
    """Tell how a cluster is; twin of `cluster_status`."""
    try:
        status = await (await Cluster.connect(cluster, store=store, timeout=timeout)).status(timeout=timeout)
    except (ClusterEnded, ClusterBroken) as error:
        status = _over(await ClusterManager(store or store_of(cluster)).get(name_of(cluster)), error)
    run_logger().info("%s", describe(status))
    if artifact:
        await ashow_engines(status)
    return status


def _over(summary: ClusterSummary, error: Exception) -> ClusterStatus:
    """Return the status of a cluster that cannot be asked any more."""
    reason = summary.reason or str(error)
    return ClusterStatus(summary.name, summary.incarnation, summary.state, summary.sets, reasons=(reason,))
