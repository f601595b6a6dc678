"""Clusters in Apache Airflow: one task creates, others use and resize, a teardown task ends for sure.

::

    with cluster(n=2) as study:
        RunOnClusterOperator(task_id="work", cluster=study.handle, python_callable=work, map_over=[1, 2, 3])

    create -> handle: the XCom -> wait / scale / run / @task.ipcluster, any task, any DAG -> teardown

Names are imported when they are first used, so Airflow reads `get_provider_info` without loading anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .hooks import ClusterHook
    from .notifications import GiveUpClaimsNotifier
    from .operators import (
        CreateClusterOperator,
        ReapClustersOperator,
        RestartEnginesOperator,
        RunOnClusterOperator,
        ScaleClusterOperator,
        TeardownClusterOperator,
        WaitForClusterOperator,
    )
    from .scopes import ClusterScope, cluster
    from .sensors import ClusterEndedSensor, ClusterReadySensor

__all__ = [
    "ClusterEndedSensor",
    "ClusterHook",
    "ClusterReadySensor",
    "ClusterScope",
    "CreateClusterOperator",
    "GiveUpClaimsNotifier",
    "ReapClustersOperator",
    "RestartEnginesOperator",
    "RunOnClusterOperator",
    "ScaleClusterOperator",
    "TeardownClusterOperator",
    "WaitForClusterOperator",
    "cluster",
]

_WHERE = {
    "ClusterEndedSensor": ".sensors",
    "ClusterHook": ".hooks",
    "ClusterReadySensor": ".sensors",
    "ClusterScope": ".scopes",
    "GiveUpClaimsNotifier": ".notifications",
    "cluster": ".scopes",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        where = _WHERE.get(name, ".operators")
        value = globals()[name] = getattr(import_module(where, __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
