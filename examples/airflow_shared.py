"""A DAG whose runs share one cluster: the first makes it, others attach, and the last one out ends it.

Each run has a claim of its own, so none has to know of the others. Put this file and `flights.py` into a DAG folder; or
run ``python airflow_shared.py``, which has two runs at one time and needs no Airflow service.
"""

from __future__ import annotations

import os
import subprocess
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

from airflow_ipcluster import RunOnClusterOperator, cluster


@dag("shared_flights", schedule=None, params={"months": [1, 2, 3]}, render_template_as_native_obj=True)
def airflow_shared() -> None:
    """Describe the flights of some months, on the cluster that all runs use."""
    with cluster("flights-shared", n=2, idle_timeout=600) as shared:
        rows = RunOnClusterOperator(
            task_id="by_month",
            cluster=shared.handle,
            python_callable=flights.statistics,
            map_over="{{ params.months }}",
        )
        report(rows.output)


@task
def report(rows: list[flights.Row]) -> None:
    """Print the table."""
    print(flights.table(rows))


shared_dag = airflow_shared()

if __name__ == "__main__":
    from airflow.utils.db import initdb

    winter, summer = [12, 1, 2], [6, 7, 8]
    other = None
    if len(sys.argv) == 1:
        # The other run, in a process and with an Airflow of its own: what the two share is the cluster.
        environment = {key: value for key, value in os.environ.items() if key != "AIRFLOW_HOME"}
        other = subprocess.Popen([sys.executable, __file__, "summer"], env=environment)
    initdb()
    run = shared_dag.test(run_conf={"months": winter if other else summer})
    print(f"run: {run.state}")
    failed = other.wait(300) if other else 0
    sys.exit(run.state != "success" or failed)
