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
    from .futures import IPClusterFuture
    from .placement import tasks_on
    from .reports import AnyCluster
    from .scopes import acluster, cluster
    from .task_runners import IPClusterTaskRunner
    from .tasks import connect_cluster, create_cluster, scale_cluster, teardown_cluster

__all__ = [
    "AnyCluster",
    "IPClusterFuture",
    "IPClusterTaskRunner",
    "acluster",
    "aconnect_cluster",
    "acreate_cluster",
    "ascale_cluster",
    "ateardown_cluster",
    "cluster",
    "connect_cluster",
    "create_cluster",
    "scale_cluster",
    "tasks_on",
    "teardown_cluster",
]

_WHERE = {
    "AnyCluster": "reports",
    "IPClusterFuture": "futures",
    "IPClusterTaskRunner": "task_runners",
    "acluster": "scopes",
    "aconnect_cluster": "async_tasks",
    "acreate_cluster": "async_tasks",
    "ascale_cluster": "async_tasks",
    "ateardown_cluster": "async_tasks",
    "cluster": "scopes",
    "connect_cluster": "tasks",
    "create_cluster": "tasks",
    "scale_cluster": "tasks",
    "tasks_on": "placement",
    "teardown_cluster": "tasks",
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
