"""What can happen to a DAG run on a deployed Airflow, and how run, tasks and cluster are to end: the cells of a matrix.

A cell triggers a run of one of the DAGs in `DAGS`, does something to it, and is compared with its `Right`. In each,
some seconds after the end of the run no process of its cluster is left, and there was never a second cluster.
"""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airflow import __version__ as airflow_version

import steps
from deployment import Deployment, wait_until
from ipcluster_core import Cluster, ClusterManager, ClusterSummary

__all__ = ["CELLS", "SHORT", "Cell", "Found", "Run", "install", "perform"]

#: Version of Airflow, as far as it matters.
AIRFLOW = tuple(map(int, airflow_version.split(".")[:2]))

#: Seconds after the end of a run within which the last process of its cluster is gone.
GONE_SECONDS = 30.0

DAGS = '''
    import os
    import time
    from datetime import timedelta
    from pathlib import Path

    from airflow.sdk import DAG
    from airflow_ipcluster import (
        ClusterReadySensor, GiveUpClaimsNotifier, ReapClustersOperator, RunOnClusterOperator, WaitForClusterOperator,
        cluster,
    )

    FOLDER = os.environ["MATRIX_FOLDER"]
    KEY = "{{ dag_run.conf['key'] }}"

    def note(context):
        """Say which process runs the task."""
        Path(FOLDER, f"{context['dag_run'].conf['key']}.pid").write_text(str(os.getpid()))

    def hold(key):
        """Work on an engine until it is told to end."""
        with Path(FOLDER, f"{key}.begun").open("a") as file:
            file.write("begun\\n")
        while not Path(FOLDER, f"{key}.go").exists():
            time.sleep(0.05)
        return "done"

    def fail():
        raise ValueError("no luck")

    def fail_once(key):
        marker = Path(FOLDER, f"{key}.failed")
        if not marker.exists():
            marker.touch()
            raise ValueError("no luck yet")

    def work(scope, **kwargs):
        options = {"python_callable": hold, "op_args": [KEY], "pre_execute": note, "retry_delay": timedelta(0)}
        return RunOnClusterOperator(**{"task_id": "work", "cluster": scope.handle, **options, **kwargs})

    with DAG("plain"), cluster(n=1) as scope:
        work(scope, python_callable=os.getpid, op_args=[])
    with DAG("failing"), cluster(n=1) as scope:
        work(scope, python_callable=fail, op_args=[])
    with DAG("retrying"), cluster(n=1) as scope:
        work(scope, python_callable=fail_once, retries=1)
    with DAG("blocked"), cluster(n=1) as scope:
        work(scope, retries=1)
    with DAG("two"), cluster(n=2) as scope:
        work(scope, task_id="first", python_callable=os.getpid, op_args=[]) >> work(scope)
    with DAG("slow"), cluster(n=1) as scope:
        work(scope, execution_timeout=timedelta(seconds=3))
    late = {"dagrun_timeout": timedelta(seconds=10), "on_failure_callback": GiveUpClaimsNotifier()}
    with DAG("late", **late), cluster(n=1) as scope:
        work(scope)
    with DAG("forgotten", dagrun_timeout=timedelta(seconds=10)), cluster(n=1) as scope:
        work(scope)
    with DAG("reaper"):
        ReapClustersOperator(task_id="reap")
    with DAG("unready"), cluster(n=1, spec={"python": os.environ["MATRIX_PYTHON"]}) as scope:
        work(scope)
    with DAG("deferred"), cluster(n=1) as scope:
        other = WaitForClusterOperator(
            task_id="wait", cluster=f"other-{KEY}", deferrable=True, poll_interval=0.5, timeout=180
        )
        scope.setup >> other >> scope.teardown
    with DAG("unattended"):
        ClusterReadySensor(
            task_id="wait", cluster=f"other-{KEY}", deferrable=True, start_from_trigger=True, poke_interval=0.5,
            timeout=180, pre_execute=note, ipcluster_conn_id="matrix",
        )
'''


@dataclass(frozen=True)
class Right:
    """How a cell is to end. `tasks` names those that are not a success, `tries` those that were tried several times."""

    run: str = "success"
    tasks: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    #: How often a cluster of the run's name was made.
    incarnations: int = 1
    #: Tasks of which versions of Airflow think differently.
    moot: frozenset[str] = frozenset()


class Run:
    """One run of a DAG of `DAGS`, and what a cell does to it."""

    def __init__(self, airflow: Deployment, dag_id: str) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        self.key = uuid.uuid4().hex[:8]
        self.run_id = airflow.trigger(dag_id, key=self.key)

    def path(self, suffix: str) -> Path:
        """Return a file by which the run's work and this process tell each other something."""
        return folder_of(self.airflow) / f"{self.key}.{suffix}"

    def wait_begun(self, times: int = 1) -> None:
        """Wait until an engine has begun the work so many times."""
        begun = self.path("begun")
        wait_until(lambda: begun.exists() and len(begun.read_text().split()) >= times, 90, self.story)

    def let_go(self) -> None:
        """Let the work come to its end."""
        self.path("go").touch()

    def task_pid(self) -> int:
        """Return the process of the task that holds."""
        return int(self.path("pid").read_text())

    def wait_task(self, task_id: str, *states: str, timeout: float = 60.0) -> None:
        """Wait until a task is in one of some states."""
        self.airflow.wait_task(self.dag_id, self.run_id, task_id, *states, timeout=timeout)

    def mark(self, state: str, task_id: str | None = None) -> None:
        """Mark the run or one of its tasks."""
        if task_id is None:
            self.airflow.mark_run(self.dag_id, self.run_id, state)
        else:
            self.airflow.mark_task(self.dag_id, self.run_id, task_id, state)

    def clear(self, task_id: str, *, downstream: bool = False) -> None:
        """Clear a task."""
        self.airflow.clear(self.dag_id, self.run_id, task_id, downstream=downstream)

    def wait(self, timeout: float = 120.0) -> str:
        """Wait for the run's end."""
        return self.airflow.wait_run(self.dag_id, self.run_id, timeout)

    def story(self) -> str:
        """Say how it is."""
        return self.airflow.story(self.dag_id, self.run_id)

    def clusters(self) -> list[ClusterSummary]:
        """Return the clusters that the run has made, ended ones too."""
        return ClusterManager(self.airflow.store).list_sync(labels={"airflow-run": self.run_id}, all=True)


@dataclass(frozen=True)
class Cell:
    """One thing that can happen."""

    name: str
    dag_id: str
    act: Callable[[Run], None]
    right: Right


@dataclass(frozen=True)
class Found:
    """How a cell ended. `gone` is the number of seconds from the end of the run to that of the last process."""

    cell: str
    run: str
    tasks: dict[str, str]
    tries: dict[str, int]
    clusters: int
    incarnations: int
    gone: float | None
    wrong: list[str]


def folder_of(airflow: Deployment) -> Path:
    """Return the folder in which work and tests tell each other something."""
    return airflow.home / "matrix"


def variables(home: Path) -> dict[str, str]:
    """Return what the DAGs read from their environment."""
    return {
        "MATRIX_FOLDER": str(home / "matrix"),
        "MATRIX_PYTHON": str(home / "matrix" / "python"),
        "AIRFLOW_CONN_MATRIX": json.dumps({"conn_type": "ipcluster", "host": f"file:{home}/store"}),
    }


def install(airflow: Deployment) -> None:
    """Put the DAGs into place; before the deployment starts."""
    folder = folder_of(airflow)
    folder.mkdir()
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n: > {folder}/unready\nexec sleep 600\n")
    python.chmod(0o755)
    (airflow.dags / "cells.py").write_text(textwrap.dedent(DAGS))


def perform(airflow: Deployment, cell: Cell) -> Found:
    """Have a cell happen, and compare what came of it."""
    run = Run(airflow, cell.dag_id)
    cell.act(run)
    state = run.wait()
    names = {summary.name for summary in run.clusters()}
    start = time.monotonic()
    while any(steps.living(name) for name in names) and time.monotonic() < start + GONE_SECONDS:
        time.sleep(0.05)
    gone = None if any(steps.living(name) for name in names) else time.monotonic() - start
    tasks = {task: state for task, state in airflow.states(cell.dag_id, run.run_id).items() if state != "success"}
    tries = {task: count for task, count in airflow.tries(cell.dag_id, run.run_id).items() if count > 1}
    incarnations = sum(summary.incarnation for summary in run.clusters())
    found = Found(cell.name, state, tasks, tries, len(names), incarnations, gone, [])
    right = cell.right
    wanted = {"run": right.run, "tasks": right.tasks, "tries": right.tries, "incarnations": right.incarnations}
    for what, value in wanted.items():
        seen = getattr(found, what)
        if isinstance(seen, dict):
            seen = {task: one for task, one in seen.items() if task not in right.moot}
        if seen != value:
            found.wrong.append(f"{what}: {seen}, not {value}")
    if gone is None:
        found.wrong.append(f"processes are left after {GONE_SECONDS:g} s")
    if any(str(summary.state) != "ended" for summary in run.clusters()):
        found.wrong.append(f"not ended: {run.clusters()}")
    return found


# What the cells do.


def nothing(run: Run) -> None:
    """Let it happen."""


def clear_middle(run: Run) -> None:
    """Clear a task that is done while a later one works. Airflow 3.3 clears its setup with it, which attaches."""
    run.wait_begun()
    run.clear("first")
    # Its second try uses the same cluster, beside the work of the other.
    wait_until(lambda: run.airflow.tries(run.dag_id, run.run_id)["first"] == 2, 60, run.story)
    run.wait_task("first", "success")
    run.let_go()


def clear_after(run: Run) -> None:
    """Clear the cluster and all behind it when all is over: another one is made, and ended."""
    run.wait()
    run.clear("cluster", downstream=True)
    wait_until(lambda: run.airflow.tries(run.dag_id, run.run_id)["cluster_teardown"] == 2, 60, run.story)


def marking(state: str, task_id: str | None) -> Callable[[Run], None]:
    """Mark a task, or the run, while there is work."""

    def act(run: Run) -> None:
        run.wait_begun()
        run.mark(state, task_id)

    return act


def mark_unready(run: Run) -> None:
    """Mark the create failed while the engines do not come."""
    wait_until((folder_of(run.airflow) / "unready").exists, 90, run.story)
    run.mark("failed", "cluster")


def second_try(run: Run) -> None:
    """Wait until a second try works, and let it come to its end."""
    if AIRFLOW < (3, 3):
        # There is nowhere to note what the first try has running: the second waits for it to end.
        wait_until(lambda: run.airflow.tries(run.dag_id, run.run_id)["work"] == 2, 90, run.story)
        run.let_go()
    run.wait_begun(2)
    run.let_go()


def kill_task(run: Run) -> None:
    """Kill the process of the task; its next try finds the engine free."""
    run.wait_begun()
    os.kill(run.task_pid(), signal.SIGKILL)
    second_try(run)


def kill_worker(run: Run) -> None:
    """Kill the process that supervises the task, which works on; after the heartbeat's timeout there are two tries."""
    run.wait_begun()
    pid = run.task_pid()
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    second_try(run)


def kill_scheduler(run: Run) -> None:
    """Kill the scheduler, and start another."""
    run.wait_begun()
    run.airflow.kill_part("scheduler")
    run.airflow.start_part("scheduler")
    run.let_go()


def reap(run: Run) -> None:
    """Have the reaper's DAG run when the run is over."""
    run.wait()
    run_id = run.airflow.trigger("reaper", key="")
    assert run.airflow.wait_run("reaper", run_id) == "success", run.airflow.log_of("reaper", run_id, "reap")


def kill_triggerer(run: Run) -> None:
    """Kill the triggerer while a task is deferred, and start another; then what the task waits for comes."""
    run.wait_task("wait", "deferred", timeout=90)
    run.airflow.kill_part("triggerer")
    run.airflow.start_part("triggerer")
    come(run)


def wait_unattended(run: Run) -> None:
    """See that no worker has the sensor before what it waits for comes; Airflow 3.2 needs one."""
    run.wait_task("wait", "deferred", timeout=90)
    assert AIRFLOW < (3, 3) or not run.path("pid").exists(), f"a worker had it: {run.story()}"
    come(run)
    assert run.path("pid").exists()


def come(run: Run) -> None:
    """Bring about what a deferred task waits for."""
    name = f"other-{run.key}"
    with Cluster(name, n=1, store=run.airflow.store):
        run.wait_task("wait", "success", timeout=90)


UPSTREAM = {
    "cluster_teardown": "upstream_failed",
    "cluster_teardown_done": "upstream_failed",
    "work": "upstream_failed",
}

#: Airflow skips what is left of a run that is marked, but for its teardowns, of which this may be one.
DONE = frozenset({"cluster_teardown_done"})

CELLS = [
    Cell("success", "plain", nothing, Right()),
    Cell("task failure", "failing", nothing, Right("failed", {"work": "failed"})),
    Cell("retry", "retrying", nothing, Right(tries={"work": 2})),
    Cell("clear of a middle task", "two", clear_middle, Right(tries={"first": 2}, moot=frozenset({"cluster"}))),
    Cell("clear when all is over", "plain", clear_after, Right(
        tries={"cluster": 2, "work": 2, "cluster_teardown": 2, "cluster_teardown_done": 2}, incarnations=2,
    )),
    Cell("task marked failed", "blocked", marking("failed", "work"), Right("failed", {"work": "failed"})),
    Cell("task marked success", "blocked", marking("success", "work"), Right()),
    Cell("run marked failed", "blocked", marking("failed", None), Right("failed", {"work": "failed"}, moot=DONE)),
    Cell("run marked success", "blocked", marking("success", None), Right(moot=DONE)),
    Cell("task timeout", "slow", nothing, Right("failed", {"work": "failed"})),
    Cell("dagrun_timeout", "late", nothing, Right("failed", {
        "work": "skipped", "cluster_teardown": "skipped", "cluster_teardown_done": "skipped",
    })),
    Cell("dagrun_timeout and the reaper", "forgotten", reap, Right("failed", {
        "work": "skipped", "cluster_teardown": "skipped", "cluster_teardown_done": "skipped",
    })),
    Cell("create marked failed", "unready", mark_unready, Right("failed", {"cluster": "failed", **UPSTREAM})),
    Cell("SIGKILL of the task", "blocked", kill_task, Right(tries={"work": 2})),
    Cell("SIGKILL of its supervisor", "blocked", kill_worker, Right(tries={"work": 2})),
    Cell("SIGKILL of the scheduler", "blocked", kill_scheduler, Right()),
    Cell("SIGKILL of the triggerer", "deferred", kill_triggerer, Right()),
    Cell("start from the trigger", "unattended", wait_unattended, Right(incarnations=0)),
]  # fmt: skip

if os.environ.get("AIRFLOW__IPCLUSTER__GIVE_UP_CLAIMS") == "True":
    late = next(cell.right for cell in CELLS if cell.dag_id == "forgotten")
    CELLS.append(Cell("dagrun_timeout and the listener", "forgotten", nothing, late))

#: The cells that CI runs.
SHORT = {
    "success", "task failure", "task marked failed", "SIGKILL of the task", "create marked failed",
    "start from the trigger",
}  # fmt: skip
