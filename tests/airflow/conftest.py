"""An Airflow of its own for the tests of this folder, with an empty database."""

from __future__ import annotations

import atexit
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leaks

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

# Airflow reads these when it is first imported, here and in the processes that tests start.
_home = tempfile.TemporaryDirectory(prefix="airflow-home-")
atexit.register(_home.cleanup)
os.environ["AIRFLOW_HOME"] = os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "false"
os.environ["AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"] = "1"  # a supervisor may take so long to see its task's end


def pytest_configure(config: pytest.Config) -> None:
    """Overlook what Airflow's own dependencies tell each other."""
    config.addinivalue_line("filterwarnings", "ignore:Using `httpx` with `starlette.testclient` is deprecated")


@pytest.fixture
def leak_policy() -> leaks.Policy:
    """Allow what Airflow leaves: the loop of its API server, a selector for each task, its database's files.

    Also the one thread in which coroutines run what blocks, which asgiref keeps.
    """
    return leaks.Policy(
        # The last is that of Airflow 3.2, which gives it no name.
        loops=(*leaks.Policy().loops, "InProcessExecutionAPI-loop", "Thread-* (run_forever)"),
        threads=(*leaks.Policy().threads, "ThreadPoolExecutor-0_0"),
        descriptors=("*eventpoll*", "*/airflow.db*"),
    )


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> None:
    """Make the tables, and the row of the DAG folder."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()


@pytest.fixture
def run_dag() -> Callable[[DAG], DagRun]:
    """Run a DAG to its end in this process; `dag.test()` by itself knows only what is in the DAG folder."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    def run(dag: DAG) -> DagRun:
        bag = DagBag(dag_folder=_home.name)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        return dag.test()

    return run


@pytest.fixture
def xcoms() -> Callable[[DagRun], dict[tuple[str, str], Any]]:
    """Read what a run's tasks have pushed from the database, by task and key; of a mapped task a list."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    def read(run: DagRun) -> dict[tuple[str, str], Any]:
        with create_session() as session:
            rows = session.query(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id)
            found: dict[tuple[str, str], Any] = {}
            for row in rows.order_by(XComModel.map_index):
                value = XComModel.deserialize_value(row)
                if row.map_index < 0:
                    found[row.task_id, row.key] = value
                else:
                    found.setdefault((row.task_id, row.key), []).append(value)
            return found

    return read


@pytest.fixture
def dag_folder(tmp_path: Path) -> Path:
    """Give the home, and DAG folder, of the workers that the test starts: with a database of their own.

    They fork, and are killed: SQLite does not stand a connection that is carried across a fork, and the database of
    this process is to outlive them.
    """
    folder = tmp_path / "airflow-home"
    folder.mkdir()
    with closing(sqlite3.connect(f"{_home.name}/airflow.db")) as database:
        database.execute("VACUUM INTO ?", (str(folder / "airflow.db"),))
    return folder


@pytest.fixture
def start_worker(dag_folder: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Write a DAG file and run its DAG, which has the same name, with each task in a process of its own."""
    workers: list[subprocess.Popen[str]] = []

    def start(name: str, code: str) -> subprocess.Popen[str]:
        (dag_folder / f"{name}.py").write_text(textwrap.dedent(code))
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), name]
        own = {"AIRFLOW_HOME": str(dag_folder), "AIRFLOW__CORE__DAGS_FOLDER": str(dag_folder)}
        pipe = subprocess.PIPE
        workers.append(
            subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env={**os.environ, **own})
        )
        return workers[-1]

    yield start
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
        worker.communicate()
