"""Twins of the tasks in `tasks` for async flows; those have the documentation.

They are tasks of their own: Prefect's dispatch by context would make plain functions of them, without ``submit`` and
``with_options``. A cancelled `acreate_cluster` leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Unpack

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import Cluster, ClusterHandle, ClusterManager, ClusterSpec, SpecFields, TeardownReport
from ipcluster_core.errors import ClusterNotFound

from .notices import aconclude_and_tell, alast_status, atell
from .options import PAUSES, TAGS, Named, worth_repeating
from .reports import AnyCluster, announce, conclude, describe, name_of, nothing_to_end, run_logger
from .runs import current_claim, current_name, plan

__all__ = ["aconnect_cluster", "acreate_cluster", "ascale_cluster", "ateardown_cluster"]


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("create", "name", current_name))
async def acreate_cluster(
    name: str | None = None,
    spec: ClusterSpec | None = None,
    *,
    if_exists: Literal["attach", "fail", "replace"] = "attach",
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 60.0,
    **fields: Unpack[SpecFields],
) -> ClusterHandle:
    """Create a cluster that outlives this task, this flow and this process; twin of `create_cluster`."""
    # In a thread, because in a subflow it asks the API.
    log, wanted = run_logger(), await asyncio.to_thread(plan, name, spec, claim, fields)
    log.info("%s", announce(wanted.name, wanted.spec.total))
    cluster = await Cluster.create(
        wanted.name, wanted.spec, if_exists=if_exists, claim=wanted.claim, store=store, timeout=timeout
    )
    await atell("ready", await cluster.status())
    return cluster.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("connect", "cluster"))
async def aconnect_cluster(
    cluster: AnyCluster,
    *,
    n: int | None = None,
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 30.0,
) -> ClusterHandle:
    """Find a cluster that another step or another flow has made; twin of `connect_cluster`."""
    found = await Cluster.connect(cluster, claim=claim, store=store, timeout=timeout)
    if n is not None:
        await found.wait(n, timeout=timeout)
    run_logger().info("%s", describe(await found.status()))
    return found.handle


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Named("scale", "cluster"))
async def ascale_cluster(
    cluster: AnyCluster,
    n: int,
    *,
    engines: str = "default",
    wait: bool = True,
    store: str | None = None,
    timeout: float = 60.0,
) -> ClusterHandle:
    """Set the number of engines; twin of `scale_cluster`."""
    found = await Cluster.connect(cluster, store=store, timeout=timeout)
    await found.scale(n, engines=engines)
    if wait:
        await found.wait(timeout=timeout)
    await atell("scaled", await found.status())
    return found.handle


@task(
    cache_policy=NO_CACHE,
    tags=TAGS,
    task_run_name=Named("tear down", "cluster"),
    retries=len(PAUSES),
    retry_delay_seconds=list(PAUSES),
    retry_condition_fn=worth_repeating,
)
async def ateardown_cluster(
    cluster: AnyCluster | BaseException | None,
    *,
    claim: str | None = None,
    force: bool = False,
    store: str | None = None,
    timeout: float = 30.0,
) -> TeardownReport:
    """End a cluster, or give up this run's claim on it while others use it; twin of `teardown_cluster`."""
    log = run_logger()
    if cluster is None or isinstance(cluster, BaseException):
        return conclude(nothing_to_end(cluster), log)
    last = await alast_status(cluster, store)
    mine = claim or await asyncio.to_thread(current_claim)
    try:
        report = await ClusterManager(store).teardown(cluster, claim=mine, force=force, timeout=timeout)
    except ClusterNotFound as error:
        report = TeardownReport(name_of(cluster), "already gone", str(error))
    return await aconclude_and_tell(report, log, last)
