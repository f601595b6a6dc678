"""The net below all teardowns: a DAG that ends, every quarter of an hour, what runs have left.

It gives up the claims of runs that are over, for Airflow runs no teardown when a create task was killed or marked
failed, and skips it when a run exceeds its ``dagrun_timeout``. Put this file into a DAG folder; or run
``python airflow_reaper.py``, which needs no Airflow service, leaves a cluster behind on purpose, and reaps it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

if __name__ == "__main__":
    # Run by hand, with a home of its own unless there is one. Airflow reads these when it is first imported.
    home = tempfile.TemporaryDirectory(prefix="airflow-flights-")
    os.environ.setdefault("AIRFLOW_HOME", home.name)
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parent.resolve())
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "false"
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
    os.environ["AIRFLOW__LOGGING__NAMESPACE_LEVELS"] = "airflow.task.operators.airflow_ipcluster=INFO py.warnings=ERROR"

from airflow.sdk import DAG

from airflow_ipcluster import CreateClusterOperator, ReapClustersOperator

with DAG(
    "cluster_reaper",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
) as reaper_dag:
    ReapClustersOperator(task_id="reap")

with DAG("cluster_leaver", schedule=None) as leaver_dag:
    CreateClusterOperator(task_id="create", n=1, name="left-behind")

if __name__ == "__main__":
    from airflow.utils.db import initdb

    initdb()
    for one in (leaver_dag, reaper_dag):
        run = one.test()
        print(f"{one.dag_id}: {run.state}")
        if run.state != "success":
            sys.exit(1)
