"""DAG files whose tasks are processes of their own, as on a worker, and what happens when these are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steps
from ipcluster_core import ClusterState, open_store
from ipcluster_core.process import children

StartWorker = Callable[[str, str], "subprocess.Popen[str]"]


def last_line(output: str) -> dict[str, Any]:
    """Return the JSON of the last line of an output."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def assert_ended(name: str) -> None:
    """Check that only the record of a cluster is left."""
    record = steps.record_of(name)

    assert record.state is ClusterState.ENDED
    assert not steps.living(name)
    assert not list(open_store().keys("secret"))
    assert not Path(record.folder).exists()


THREE_TASKS = """
    import os
    import signal
    from datetime import timedelta

    from airflow.sdk import dag, task
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator

    BASE = 100

    def based(value):
        return value + BASE

    def work(value):
        return {"process": os.getpid(), "value": based(value)}

    class DiesOnce(CreateClusterOperator):
        def execute(self, context):
            handle = super().execute(context)
            if context["ti"].try_number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return handle

    @task
    def process():
        return os.getpid()

    @dag(schedule=None)
    def three_tasks():
        create = DiesOnce(task_id="create", n=2, retries=1, retry_delay=timedelta(0))
        with create.teardown(task_id="teardown"):
            process() >> RunOnClusterOperator(
                task_id="work", cluster=create.output, python_callable=work, map_over=[1, 2, 3]
            )

    three_tasks()
"""


def test_a_cluster_outlives_the_killed_task_that_made_it_and_serves_tasks_in_other_processes(
    start_worker: StartWorker,
) -> None:
    """The first try is killed with the cluster made; the second attaches to it; functions of the DAG file travel."""
    worker = start_worker("three_tasks", THREE_TASKS)
    output, _ = worker.communicate(timeout=90)
    result = last_line(output)
    xcoms = result["xcoms"]
    engines = {row["process"] for row in xcoms["work"]}

    assert result["state"] == "success", output
    assert result["tries"]["create"] == 2
    assert xcoms["create"]["incarnation"] == 1
    assert xcoms["claim_counter"] == 2
    assert [row["value"] for row in xcoms["work"]] == [101, 102, 103]
    assert xcoms["process"] not in {worker.pid, *engines}
    assert_ended(xcoms["create"]["name"])


BLOCKED = """
    from airflow.sdk import dag
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator

    def wait(item):
        import time

        with open(f"{FOLDER}/{item}", "w"):
            time.sleep(600)

    @dag(schedule=None)
    def blocked():
        create = CreateClusterOperator(task_id="create", name="blocked", n=1)
        with create.teardown(task_id="teardown"):
            RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=wait, map_over=[0, 1])

    blocked()
"""


def task_process(worker: subprocess.Popen[str]) -> int:
    """Return the pid of the task that a worker runs."""
    [pid] = children(worker.pid)
    return pid


def test_work_that_is_killed_is_no_success_and_the_cluster_is_ended(start_worker: StartWorker, tmp_path: Path) -> None:
    """Airflow by itself would let it go on. What no engine has begun is cancelled, and the teardown runs."""
    worker = start_worker("blocked", f"    FOLDER = {str(tmp_path)!r}\n{BLOCKED}")
    steps.wait_until((tmp_path / "0").exists, 60)
    os.kill(task_process(worker), signal.SIGTERM)
    output, _ = worker.communicate(timeout=60)
    result = last_line(output)

    assert result["states"] == {
        "create": "success", "work": "failed", "teardown": "success", "teardown_done": "success",
    }  # fmt: skip
    assert "task 'work' was killed" in output
    assert not (tmp_path / "1").exists()
    assert_ended("blocked")


UNREADY = """
    from airflow.sdk import dag
    from airflow_ipcluster import CreateClusterOperator

    @dag(schedule=None)
    def unready():
        CreateClusterOperator(task_id="create", name="unready", spec={"python": PYTHON})

    unready()
"""


def test_a_create_that_is_killed_leaves_nothing(start_worker: StartWorker, tmp_path: Path) -> None:
    """The task is killed while its cluster comes up: it has 5 s to undo that."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n: > {tmp_path}/begun\nexec sleep 600\n")
    python.chmod(0o755)
    worker = start_worker("unready", f"    PYTHON = {str(python)!r}\n{UNREADY}")
    steps.wait_until((tmp_path / "begun").exists, 60)
    os.kill(task_process(worker), signal.SIGTERM)
    steps.wait_until(lambda: not steps.living("unready"), 5)
    output, _ = worker.communicate(timeout=60)

    assert last_line(output)["states"] == {"create": "failed"}
    assert "task 'create' was killed" in output
    assert_ended("unready")
