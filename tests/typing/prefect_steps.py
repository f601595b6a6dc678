"""Steps, scopes and hooks as users write them; the type checkers must accept all of it."""

from __future__ import annotations

import operator

from prefect import flow

from ipcluster_core import ClusterHandle, ClusterSpec, ClusterStatus, ClusterSummary, ReapResult, TeardownReport
from prefect_ipcluster import (
    IPClusterSpec,
    acluster,
    acreate_cluster,
    amap_on_cluster,
    arun_on_cluster,
    arun_spmd,
    cluster,
    cluster_status,
    create_cluster,
    list_clusters,
    map_on_cluster,
    reap_clusters,
    restart_engines,
    run_on_cluster,
    run_spmd,
    teardown_cluster,
    with_teardown,
)


@with_teardown
@flow
def shared(given: str | ClusterHandle = "nightly") -> TeardownReport:
    """Use a cluster that another flow may have made."""
    handle: ClusterHandle = create_cluster("nightly", n=2, idle_timeout=60.0, if_exists="attach")
    status: ClusterStatus = cluster_status(given, artifact=True)
    again: ClusterHandle = restart_engines(handle, [0])
    total: int = run_on_cluster(again, operator.add, 1, 2, timeout=5.0)
    squares: list[int] = map_on_cluster.with_options(retries=2)(handle, pow, [1, 2], [2, 2])
    each: list[int] = run_spmd(handle, abs, -1, engines="default")
    assert [status.up, total, *squares, *each]
    return teardown_cluster(handle)


@with_teardown(on=["crashed", "cancellation"], force=True)
@flow
def scoped(spec: ClusterSpec, block: IPClusterSpec) -> list[ReapResult]:
    """Have a cluster of its own."""
    with cluster(spec=spec) as handle, cluster("other", block.spec(), keep_on_suspend=False):
        run_on_cluster(handle, abs, -1)
    clusters: list[ClusterSummary] = list_clusters({"team": "blue"})
    assert clusters
    return reap_clusters(idle_for=60.0, dry_run=True)


@with_teardown
@flow
async def asynchronous() -> None:
    """Do it in an event loop."""
    made: ClusterHandle = await acreate_cluster("made", n=1)
    async with acluster(n=1) as handle:
        first: int = await arun_on_cluster(handle, operator.add, 1, 2)
        rest: list[int] = await amap_on_cluster(made, abs, [-1, -2])
        each: list[int] = await arun_spmd(handle, abs, -1)
        assert [first, *rest, *each]
