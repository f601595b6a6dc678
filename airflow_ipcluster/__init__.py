"""Clusters in Apache Airflow: one task creates, others use and resize, a teardown task ends for sure.

::

    create = CreateClusterOperator(task_id="create", n=2)
    with create.teardown():
        RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=work, map_over=[1, 2, 3])

Names are imported when they are first used, so Airflow reads `get_provider_info` without loading anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .hooks import ClusterHook
    from .operators import CreateClusterOperator, RunOnClusterOperator, ScaleClusterOperator, TeardownClusterOperator

__all__ = [
    "ClusterHook",
    "CreateClusterOperator",
    "RunOnClusterOperator",
    "ScaleClusterOperator",
    "TeardownClusterOperator",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        where = ".hooks" if name == "ClusterHook" else ".operators"
        value = globals()[name] = getattr(import_module(where, __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
