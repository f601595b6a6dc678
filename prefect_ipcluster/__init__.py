"""Clusters in Prefect: one task creates, others use and resize, and the end is guaranteed.

::

    @flow
    def study():
        with cluster(n=4) as handle:        # ends however the flow ends
            simulate(handle)                # a task: Client.connect(handle)

    create_cluster  ->  handle: a task's result, a flow's parameter  ->  scale_cluster  ->  teardown_cluster

Names are imported when they are first used: Prefect's servers and workers import this package in every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .async_tasks import aconnect_cluster, acreate_cluster, ascale_cluster, ateardown_cluster
    from .async_work import amap_on_cluster, arun_on_cluster, arun_spmd
    from .blocks import IPClusterSpec
    from .futures import IPClusterFuture
    from .hooks import teardown_owned, with_teardown
    from .overview import acluster_status, arestart_engines, cluster_status, restart_engines
    from .placement import tasks_on
    from .reports import AnyCluster
    from .scopes import acluster, cluster
    from .task_runners import IPClusterTaskRunner
    from .tasks import connect_cluster, create_cluster, scale_cluster, teardown_cluster
    from .upkeep import alist_clusters, areap_clusters, list_clusters, reap_clusters
    from .work import map_on_cluster, run_on_cluster, run_spmd

__all__ = [
    "AnyCluster",
    "IPClusterFuture",
    "IPClusterSpec",
    "IPClusterTaskRunner",
    "acluster",
    "acluster_status",
    "aconnect_cluster",
    "acreate_cluster",
    "alist_clusters",
    "amap_on_cluster",
    "areap_clusters",
    "arestart_engines",
    "arun_on_cluster",
    "arun_spmd",
    "ascale_cluster",
    "ateardown_cluster",
    "cluster",
    "cluster_status",
    "connect_cluster",
    "create_cluster",
    "list_clusters",
    "map_on_cluster",
    "reap_clusters",
    "restart_engines",
    "run_on_cluster",
    "run_spmd",
    "scale_cluster",
    "tasks_on",
    "teardown_cluster",
    "teardown_owned",
    "with_teardown",
]

_WHERE = {
    "AnyCluster": "reports",
    "IPClusterFuture": "futures",
    "IPClusterTaskRunner": "task_runners",
    "IPClusterSpec": "blocks",
    "acluster": "scopes",
    "acluster_status": "overview",
    "aconnect_cluster": "async_tasks",
    "acreate_cluster": "async_tasks",
    "alist_clusters": "upkeep",
    "amap_on_cluster": "async_work",
    "areap_clusters": "upkeep",
    "arestart_engines": "overview",
    "arun_on_cluster": "async_work",
    "arun_spmd": "async_work",
    "ascale_cluster": "async_tasks",
    "ateardown_cluster": "async_tasks",
    "cluster": "scopes",
    "cluster_status": "overview",
    "connect_cluster": "tasks",
    "create_cluster": "tasks",
    "list_clusters": "upkeep",
    "map_on_cluster": "work",
    "reap_clusters": "upkeep",
    "restart_engines": "overview",
    "run_on_cluster": "work",
    "run_spmd": "work",
    "scale_cluster": "tasks",
    "tasks_on": "placement",
    "teardown_cluster": "tasks",
    "teardown_owned": "hooks",
    "with_teardown": "hooks",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
