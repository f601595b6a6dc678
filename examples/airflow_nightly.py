"""A cluster for the night: one DAG makes it, others use it, and one ends it in the morning.

Its claim is not that of a run but "nightly", since it outlives the run that makes it: neither the end of that run nor
the reaper of `airflow_reaper.py` ends it. Put this file and `flights.py` into a DAG folder; or run
``python airflow_nightly.py``, which has the three DAGs in turn and needs no Airflow service.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    # Run by hand, with a home of its own unless there is one. Airflow reads these when it is first imported.
    home = tempfile.TemporaryDirectory(prefix="airflow-flights-")
    os.environ.setdefault("AIRFLOW_HOME", home.name)
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(__file__).parent.resolve())
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "false"
    os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
    os.environ["AIRFLOW__LOGGING__NAMESPACE_LEVELS"] = "airflow.task.operators.airflow_ipcluster=INFO py.warnings=ERROR"

import flights
from airflow.sdk import DAG, task

from airflow_ipcluster import (
    ClusterReadySensor,
    CreateClusterOperator,
    RunOnClusterOperator,
    TeardownClusterOperator,
)

NAME = "nightly"
SINCE = datetime(2026, 1, 1, tzinfo=UTC)

with DAG("nightly_open", schedule="0 1 * * *", start_date=SINCE, catchup=False) as open_dag:
    # It ends by itself if nobody comes, and after eight hours if nobody ends it.
    CreateClusterOperator(task_id="create", name=NAME, n=2, claim=NAME, idle_timeout=3600, lifetime=8 * 3600)

with DAG("nightly_use", schedule="0 2 * * *", start_date=SINCE, catchup=False) as use_dag:
    ready = ClusterReadySensor(task_id="ready", cluster=NAME, timeout=1800, mode="reschedule")
    work = RunOnClusterOperator(
        task_id="by_month", cluster=ready.output, python_callable=flights.statistics, map_over=flights.months()
    )

    @task
    def report(rows: list[flights.Row]) -> None:
        """Print the table."""
        print(flights.table(rows))

    report(work.output)

with DAG("nightly_close", schedule="0 6 * * *", start_date=SINCE, catchup=False) as close_dag:
    TeardownClusterOperator(task_id="teardown", cluster=NAME, claim=NAME)

if __name__ == "__main__":
    from airflow.utils.db import initdb

    initdb()
    states = []
    for one in (open_dag, use_dag, close_dag):
        run = one.test()
        print(f"{one.dag_id}: {run.state}")
        states.append(run.state)
    sys.exit(set(states) != {"success"})
