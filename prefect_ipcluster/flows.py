"""Flows to be deployed: create, scale and tear down a cluster by hand or by schedule, and a site's reaper.

::

    from prefect import serve
    from prefect_ipcluster import flows

    serve(
        flows.create.to_deployment("nightly", cron="0 1 * * *", parameters={"name": "nightly", "n": 8}),
        flows.teardown.to_deployment("nightly", cron="0 6 * * *", parameters={"cluster": "nightly"}),
        flows.reap.to_deployment("default", interval=300),
    )

A cluster that `create` makes is nobody's run: it stands until `teardown` takes that back, and then ends with the last
run that uses it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from prefect import flow
from prefect.types.entrypoint import EntrypointType

from ipcluster_core import ClusterHandle, ReapResult, TeardownReport
from ipcluster_core.errors import ClusterBroken

from .orphans import give_up_orphans
from .tasks import create_cluster, scale_cluster, teardown_cluster
from .upkeep import reap_clusters

__all__ = ["STANDING", "create", "deploy_reaper", "reap", "scale", "teardown"]

#: Claim of a cluster that was made for whoever comes.
STANDING = "standing"


@flow(name="ipcluster-create")
def create(  # noqa: PLR0917 - a form in the UI
    name: str,
    n: int = 2,
    block: str | None = None,
    if_exists: Literal["attach", "fail", "replace"] = "attach",
    idle_timeout: float | None = None,
    lifetime: float | None = 86400.0,
    timeout: float = 60.0,
) -> ClusterHandle:
    """Create a cluster that stands for all runs, until it is torn down.

    Parameters
    ----------
    name
        Its name, by which other flows find it.
    n
        Number of engines; not when a block is given.
    block
        Name of a saved `IPClusterSpec` block that says what it is to be. Then only its name is taken from here.
    if_exists
        What to do when there is one already: attach to it, fail, or replace it.
    idle_timeout
        Seconds without work after which it ends by itself; none means never.
    lifetime
        Seconds after which it ends in any case; none means no limit.
    timeout
        Seconds until its engines must be up.

    Returns
    -------
    ClusterHandle
        What other flows may be given instead of the name.
    """
    if block is None:
        return create_cluster(
            name,
            if_exists=if_exists,
            claim=STANDING,
            timeout=timeout,
            n=n,
            idle_timeout=idle_timeout,
            lifetime=lifetime,
        )
    from .blocks import IPClusterSpec

    load: Any = IPClusterSpec.load  # its types do not tell `_sync`
    recipe: IPClusterSpec = load(block, _sync=True)
    return create_cluster(name, recipe.spec(), if_exists=if_exists, claim=STANDING, timeout=timeout)


@flow(name="ipcluster-scale")
def scale(cluster: str | ClusterHandle, n: int, engines: str = "default", timeout: float = 60.0) -> ClusterHandle:
    """Set the number of engines of a cluster, and wait until they are up; see `scale_cluster`."""
    return scale_cluster(cluster, n, engines=engines, timeout=timeout)


@flow(name="ipcluster-teardown")
def teardown(cluster: str | ClusterHandle, force: bool = False, timeout: float = 30.0) -> TeardownReport:  # noqa: FBT001, FBT002 - a form in the UI
    """Tear down a cluster that `create` has made: at once, or with the last run that uses it; see `teardown_cluster`.

    Parameters
    ----------
    cluster
        Its name or handle.
    force
        End it although runs use it.
    timeout
        Seconds until what is left is given up and named.

    Returns
    -------
    TeardownReport
        Its `outcome` is "ended", "already gone", or "released": it lives on for those who use it.
    """
    return teardown_cluster(cluster, claim=STANDING, force=force, timeout=timeout)


@flow(name="ipcluster-reap")
def reap(  # noqa: PLR0917 - a form in the UI
    max_age: float | None = None,
    idle_for: float | None = None,
    broken: bool = True,  # noqa: FBT001, FBT002 - a form in the UI
    orphans: bool = True,  # noqa: FBT001, FBT002 - a form in the UI
    flow_run_id: UUID | None = None,
    dry_run: bool = False,  # noqa: FBT001, FBT002 - a form in the UI
    store: str | None = None,
) -> list[ReapResult]:
    """End what nobody needs any more; safe to repeat, so it may run as often as one likes.

    Parameters
    ----------
    max_age, idle_for
        Seconds since clusters were created, and without work, after which they end; none means no such rule.
    broken
        Clean up broken clusters too.
    orphans
        Give up the claims of flow runs that have failed, crashed, or were cancelled. A run that has completed and left
        its cluster has meant to.
    flow_run_id
        Look at the claims of this run only, and apply no other rule: for an automation that reacts to its end.
    dry_run
        Only say what would be ended.
    store
        URL of the store; default as `ipcluster_core.open_store` has it.

    Returns
    -------
    list of ReapResult
        What was ended, or failed to, and why.

    Raises
    ------
    ClusterBroken
        Something could not be ended; the rest was.
    """
    wanted = None if flow_run_id is None else [str(flow_run_id)]
    results = give_up_orphans(wanted, dry_run=dry_run, store=store) if orphans or wanted else []
    if wanted is None:
        results += reap_clusters(max_age=max_age, idle_for=idle_for, broken=broken, dry_run=dry_run, store=store)
    failed = [result for result in results if result.outcome.startswith("failed") or result.leftovers]
    if failed:
        told = "; ".join(f"cluster {one.name!r}: {one.outcome} {', '.join(one.leftovers)}" for one in failed)
        raise ClusterBroken(f"not all could be ended: {told}")
    return results


def deploy_reaper(
    work_pool: str,
    *,
    every: timedelta = timedelta(minutes=5),
    name: str = "default",
    max_age: float | None = None,
    idle_for: float | None = None,
) -> UUID:
    """Deploy `reap` to a work pool, by a schedule. Safe to repeat. Without a work pool, serve it instead.

    Parameters
    ----------
    work_pool
        Name of a pool whose workers have this package, and see the store.
    every
        Time between two runs.
    name
        Name of the deployment, ``ipcluster-reap/<name>``.
    max_age, idle_for
        As for `reap`.

    Returns
    -------
    UUID
        Id of the deployment.
    """
    parameters = {"max_age": max_age, "idle_for": idle_for}
    to_deployment: Any = reap.to_deployment  # its types do not tell `_sync`
    deployment = to_deployment(
        name,
        interval=every,
        parameters={key: value for key, value in parameters.items() if value is not None},
        work_pool_name=work_pool,
        entrypoint_type=EntrypointType.MODULE_PATH,  # the workers have it installed
        concurrency_limit=1,
        _sync=True,
    )
    return UUID(str(deployment.apply(_sync=True)))
