"""Runs a DAG of the DAG folder with each task in a process of its own, as a worker does: ``worker.py DAG_ID``.

`dag.test()` runs all tasks in one process. Here Airflow's supervisor forks for each of them, kills the task's process
group behind it, and the task's process loads the DAG file anew.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch
from uuid import UUID

from airflow.dag_processing.dagbag import DagBag
from airflow.executors.workloads import BundleInfo
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.sdk import BaseOperator, TaskInstanceState
from airflow.sdk.api.datamodels._generated import TaskInstance as Assignment
from airflow.sdk.execution_time import supervisor
from airflow.utils.session import create_session

#: Airflow 3.3 has given it another name.
supervise_task = getattr(supervisor, "supervise_task", None) or supervisor.supervise


def supervise(*, ti: TaskInstance, task: BaseOperator, run_triggerer: bool) -> None:
    """Run one task instance; takes the place of what `dag.test()` does."""
    ti.set_state(TaskInstanceState.QUEUED)
    supervise_task(
        ti=Assignment(
            id=UUID(str(ti.id)),
            dag_version_id=UUID(str(ti.dag_version_id)),
            **{name: getattr(ti, name) for name in ("task_id", "dag_id", "run_id", "try_number", "map_index")},
        ),
        bundle_info=BundleInfo(name="dags-folder"),
        dag_rel_path=task.dag.relative_fileloc,
        token="",
        client=supervisor.InProcessTestSupervisor._api_client(),
        subprocess_logs_to_stdout=False,
    )
    ti.refresh_from_db()
    if ti.state == TaskInstanceState.RUNNING:  # nobody could report the end: then it is for the scheduler to see it
        ti.handle_failure(f"the process of {ti.task_id} is gone")


def report(run: DagRun) -> dict[str, Any]:
    """Tell how a run ended, and what was pushed: each task's result by its id, other values by their key."""
    tasks = run.get_task_instances()
    with create_session() as session:
        rows = session.query(XComModel).filter_by(run_id=run.run_id, dag_id=run.dag_id)
        rows = rows.filter(~XComModel.key.startswith("_link"))
        fields = session.query(RenderedTaskInstanceFields).filter_by(run_id=run.run_id, dag_id=run.dag_id)
        rendered = {row.task_id: row.rendered_fields for row in fields}
        pushed = {
            row.task_id if row.key == "return_value" else row.key: XComModel.deserialize_value(row) for row in rows
        }
    return {
        "state": str(run.state),
        "states": {ti.task_id: str(ti.state) for ti in tasks},
        "tries": {ti.task_id: ti.try_number for ti in tasks},
        "xcoms": pushed,
        "rendered": rendered,
    }


if __name__ == "__main__":
    dag = DagBag().dags[sys.argv[1]]
    with patch("airflow.sdk.definitions.dag._run_task", supervise):
        run = dag.test()
    sys.stdout.write(f"{json.dumps(report(run))}\n")
