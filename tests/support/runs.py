"""Runs of DAGs as tests see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

__all__ = ["RunDag", "XComs", "states"]

#: The fixture `run_dag`.
RunDag: TypeAlias = "Callable[[DAG], DagRun]"

#: The fixture `xcoms`.
XComs: TypeAlias = "Callable[[DagRun], dict[tuple[str, str], Any]]"


def states(run: DagRun) -> dict[str, str]:
    """Return how the tasks of a run ended."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
