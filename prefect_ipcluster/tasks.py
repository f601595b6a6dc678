"""The life of a cluster as Prefect tasks: create, connect, scale, teardown.

What passes between them is the handle: plain and public, a task's result or a flow's parameter (typed
``str | ClusterHandle``). Nothing is cached: an attempt always meets the cluster as it is now. Twins for async flows are
in `async_tasks`.
"""

from __future__ import annotations

from typing import Literal, Unpack

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import Cluster, ClusterHandle, ClusterManager, ClusterSpec, SpecFields, TeardownReport
from ipcluster_core.errors import ClusterNotFound

from .notices import conclude_and_tell, last_status, tell
from .options import PAUSES, TAGS, Named, worth_repeating
from .reports import AnyCluster, announce, conclude, describe, name_of, nothing_to_end, run_logger
from .runs import current_claim, current_name, plan

__all__ = ["connect_cluster", "create_cluster", "scale_cluster", "teardown_cluster"]


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("create", "name", current_name))
def create_cluster(
    name: str | None = None,
    spec: ClusterSpec | None = None,
    *,
    if_exists: Literal["attach", "fail", "replace"] = "attach",
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 60.0,
    **fields: Unpack[SpecFields],
) -> ClusterHandle:
    """Create a cluster that outlives this task, this flow and this process; `teardown_cluster` ends it.

    Safe to repeat: a retried task or flow finds the cluster that an earlier attempt has made.

    Parameters
    ----------
    name
        1 to 63 lower-case letters, digits and dashes. Default: the flow's name and the start of the flow run's id.
    spec
        What it is to be; or give its fields (``n=4, idle_timeout=600``, see `ClusterSpec`) as keywords. Default
        limits: 30 minutes idle, and a lifetime of 24 h. Labels tell flow and flow run.
    if_exists
        What to do when there is a living cluster of that name: "attach" to it as it is, "fail", or "replace" it.
    claim
        Name of the run that uses the cluster. Default: the flow run's, for a subflow its root's.
    store
        URL of the store; default as `ipcluster_core.open_store` has it.
    timeout
        Seconds until the engines must be up.

    Returns
    -------
    ClusterHandle
        What other tasks and flows need to find it.

    Raises
    ------
    LaunchError, ClusterTimeout
        It could not be started, or not in time. Nothing is left of it.
    ClusterExists
        There is one, and ``if_exists="fail"``.
    ValueError
        The name or the spec is not valid, or there is neither a name nor a flow run.
    """
    log, wanted = run_logger(), plan(name, spec, claim, fields)
    log.info("%s", announce(wanted.name, wanted.spec.total))
    cluster = Cluster.create_sync(
        wanted.name, wanted.spec, if_exists=if_exists, claim=wanted.claim, store=store, timeout=timeout
    )
    tell("ready", cluster.status_sync())
    return cluster.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("connect", "cluster"))
def connect_cluster(
    cluster: AnyCluster,
    *,
    n: int | None = None,
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 30.0,
) -> ClusterHandle:
    """Find a cluster that another step or another flow has made, and say how it is.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    n
        Engines to wait for; default: do not wait.
    claim
        Name of the run that uses the cluster from now on. Default: none, so that whoever made it may end it.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.
    timeout
        Seconds to wait for a cluster that is being created, and for its engines.

    Returns
    -------
    ClusterHandle
        What other tasks and flows need to find it.

    Raises
    ------
    ClusterNotFound
        There is no such cluster.
    ClusterEnded
        It has ended; the message says when, why and by whom.
    StaleHandle
        The handle is of an earlier incarnation.
    ClusterBroken
        Its processes are gone.
    ClusterTimeout
        It was not ready in time.
    """
    found = Cluster.connect_sync(cluster, claim=claim, store=store, timeout=timeout)
    if n is not None:
        found.wait_sync(n, timeout=timeout)
    run_logger().info("%s", describe(found.status_sync()))
    return found.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("scale", "cluster"))
def scale_cluster(
    cluster: AnyCluster,
    n: int,
    *,
    engines: str = "default",
    wait: bool = True,
    store: str | None = None,
    timeout: float = 60.0,
) -> ClusterHandle:
    """Set the number of engines. Absolute, so it is safe to repeat.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    n
        Number wanted. For fewer, idle engines leave first and busy ones finish what they have.
    engines
        Name of the engine set.
    wait
        Whether to return only when all engines that were asked for are up.
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
        The engines could not be started, or not in time.
    """
    found = Cluster.connect_sync(cluster, store=store, timeout=timeout)
    found.scale_sync(n, engines=engines)
    if wait:
        found.wait_sync(timeout=timeout)
    tell("scaled", found.status_sync())
    return found.handle


@task(
    cache_policy=NO_CACHE,
    tags=TAGS,
    task_run_name=Named("tear down", "cluster"),
    retries=len(PAUSES),
    retry_delay_seconds=list(PAUSES),
    retry_condition_fn=worth_repeating,
)
def teardown_cluster(
    cluster: AnyCluster | BaseException | None,
    *,
    claim: str | None = None,
    force: bool = False,
    store: str | None = None,
    timeout: float = 30.0,
) -> TeardownReport:
    """End a cluster, or give up this run's claim on it while others use it. Safe to repeat.

    A handle ends its own incarnation only: a newer cluster of the same name is left alone.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle. What `prefect.allow_failure` passes on when the cluster could not be
        made, an exception or None, is nothing to end.
    claim
        The claim to give up; the cluster ends when it was the last. Default: as for `create_cluster`.
    force
        End it although others hold claims.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.
    timeout
        Seconds until what is left is given up and named.

    Returns
    -------
    TeardownReport
        Its `outcome` is "ended", "already gone", or "released": others use the cluster, and it lives on.

    Raises
    ------
    ClusterInUse
        Outside a flow run: others hold claims, none was given, and `force` is not set.
    ClusterBroken
        Something is left that could not be ended.
    """
    log = run_logger()
    if cluster is None or isinstance(cluster, BaseException):
        return conclude(nothing_to_end(cluster), log)
    last = last_status(cluster, store)
    try:
        report = ClusterManager(store).teardown_sync(
            cluster, claim=claim or current_claim(), force=force, timeout=timeout
        )
    except ClusterNotFound as error:
        report = TeardownReport(name_of(cluster), "already gone", str(error))
    return conclude_and_tell(report, log, last)
