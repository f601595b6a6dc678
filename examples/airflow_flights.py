"""A DAG that describes the flights of New York City in 2013 on a cluster of its own.

One task creates the cluster, others use and resize it, and a teardown task ends it in every outcome. Put this file and
`flights.py` into a DAG folder; or run ``python airflow_flights.py``, which needs no Airflow service.
"""

from __future__ import annotations

import os
import sys
import tempfile
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
from airflow.sdk import dag, task

from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator, ScaleClusterOperator


@dag("flights", schedule=None, params={"plot": "flights.png"})
def airflow_flights() -> None:
    """Describe the flights by month on two engines, then by carrier on four."""
    create = CreateClusterOperator(task_id="create", n=2)
    with create.teardown(task_id="teardown"):
        by_month = RunOnClusterOperator(
            task_id="by_month", cluster=create.output, python_callable=flights.statistics, map_over=flights.months()
        )
        scale = ScaleClusterOperator(task_id="scale", cluster=create.output, n=4)
        by_carrier = RunOnClusterOperator(
            task_id="by_carrier", cluster=create.output, python_callable=flights.statistics, map_over=flights.carriers()
        )
        by_month >> scale >> by_carrier >> report(by_month.output, by_carrier.output, "{{ params.plot }}")


@task
def report(by_month: list[flights.Row], by_carrier: list[flights.Row], plot: str) -> str:
    """Print both tables and draw the plot; return its path."""
    print(flights.table(by_month))
    print(flights.table(by_carrier))
    path = Path(plot).resolve()
    flights.plot(by_month, by_carrier, path)
    print(f"plot: {path}")
    return str(path)


flights_dag = airflow_flights()

if __name__ == "__main__":
    from airflow.utils.db import initdb

    initdb()
    run = flights_dag.test()
    print(f"run: {run.state}")
    sys.exit(run.state != "success")
