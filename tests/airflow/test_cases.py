"""C01, C04, C08, C10, C13, C18, C33 and R6 where Airflow's own code has a part in it, as runs of DAGs.

In most of them each task is a process of its own under Airflow's supervisor, which the fixture `start_worker` has.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

import steps
from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator, TeardownClusterOperator
from ipcluster_core import Client, Cluster, ClusterState, errors, open_store
from ipcluster_core.process import children
from runs import RunDag, XComs, states
from speech import SPEAKERS, spoken

StartWorker = Callable[[str, str], "subprocess.Popen[str]"]


def result_of(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Return how the run of a worker ended, with all that it has written."""
    output, _ = worker.communicate(timeout=100)
    [last] = [line for line in output.splitlines() if line.startswith('{"state": ')]
    found: dict[str, Any] = json.loads(last)
    return {**found, "output": output}


def assert_clean(name: str) -> None:
    """Check that an ended record is all that is left of a cluster."""
    assert steps.record_of(name).state is ClusterState.ENDED
    assert not steps.living(name)
    assert not list(open_store().keys("secret"))


ALONE = """
    import time
    from airflow.sdk import dag
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator

    def work():
        time.sleep(4)

    @dag(schedule=None)
    def alone():
        create = CreateClusterOperator(task_id="create", name="nightly", n=1, idle_timeout=10)
        create >> RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=work)

    alone()
"""


def test_the_cluster_of_a_run_that_was_killed_ends_by_its_limit(start_worker: StartWorker) -> None:
    """C01: worker and task are killed at work; nobody tears down; the limit is 10 s (not 20 s) without work."""
    worker = start_worker("alone", ALONE)
    steps.wait_until(lambda: steps.living("nightly"), 60)
    cluster = Cluster.connect_sync("nightly", timeout=30)
    steps.wait_until(lambda: sum(engine.tasks for engine in cluster.status_sync().engines), 60)
    for pid in [worker.pid, *children(worker.pid)]:
        os.kill(pid, signal.SIGKILL)
    alive = bool(steps.living("nightly"))
    steps.wait_until(lambda: not steps.living("nightly"), 60)

    assert alive
    assert_clean("nightly")
    with pytest.raises(errors.ClusterEnded, match=r"ended 20\S+Z: idle limit of 10 s reached \(by idle_timeout\)"):
        Client.connect("nightly")


RETRIED = """
    import os, signal, threading
    from datetime import timedelta
    from airflow.sdk import dag
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator

    def engines():
        return os.getpid()

    class Dies(CreateClusterOperator):
        def work(self, hook, context):
            number = context["ti"].try_number
            if number <= len(MOMENTS):
                threading.Timer(MOMENTS[number - 1], os.kill, (os.getpid(), signal.SIGKILL)).start()
            handle = super().work(hook, context)
            if number <= len(MOMENTS):
                signal.pause()
            return handle

    @dag(schedule=None)
    def retried():
        create = Dies(task_id="create", name="c04", n=3, retries=len(MOMENTS), retry_delay=timedelta(0))
        with create.teardown():
            RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=engines, mode="all")

    retried()
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_create_that_is_killed_and_retried_makes_one_cluster(start_worker: StartWorker, seed: int) -> None:
    """C04: five tries are killed at random moments of a create; the sixth has one controller and three engines."""
    generator = random.Random(seed)  # the moments are to be repeatable, not unguessable
    moments = [generator.uniform(0, 0.5) for _ in range(5)]
    result = result_of(start_worker("retried", f"    MOMENTS = {moments!r}\n{RETRIED}"))

    assert result["state"] == "success", result["output"]
    assert result["tries"]["create"] == 6
    assert len(set(result["xcoms"]["work"].values())) == 3
    assert_clean("c04")
    assert list(open_store().keys("record")) == ["c04"]


def wait_long() -> None:
    """Wait on an engine."""
    time.sleep(300)


def lose_by_teardown() -> None:
    """End the cluster from elsewhere."""
    assert steps.ctl("teardown", "c08", "--force").returncode == 0


def lose_controller() -> None:
    """Kill the controller."""
    os.kill(steps.part("c08", "controller"), signal.SIGKILL)


def lose_all() -> None:
    """Kill all that there is of the cluster at once."""
    for pid in steps.living("c08"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("lose", "seconds", "said"),
    [
        (lose_by_teardown, 10, r"cluster 'c08' #1 ended 20\S+Z: torn down"),
        (lose_controller, 30, r"cluster 'c08' #1"),
        (lose_all, 30, r"cluster 'c08' #1"),
    ],
)
def test_a_task_that_waits_for_a_cluster_that_is_gone_fails_soon(
    run_dag: RunDag, capfd: pytest.CaptureFixture[str], lose: Callable[[], None], seconds: float, said: str
) -> None:
    """C08: with who and what; nothing stays running, and the teardown finds nothing to do."""
    times: list[float] = []

    def act() -> None:
        steps.wait_until(lambda: "c08" in steps.ctl("list").stdout, 60)
        cluster = Cluster.connect_sync("c08", timeout=30)
        steps.wait_until(lambda: sum(engine.tasks for engine in cluster.status_sync().engines), 60)
        times.append(time.monotonic())
        lose()

    thread = threading.Thread(target=act)
    thread.start()
    with DAG(f"waiting_{lose.__name__}") as dag:
        create = CreateClusterOperator(task_id="create", name="c08", n=1)
        with create.teardown(task_id="teardown"):
            RunOnClusterOperator(
                task_id="work",
                cluster=create.output,
                python_callable=wait_long,
                on_failure_callback=lambda context: times.append(time.monotonic()),
            )
    run = run_dag(dag)
    thread.join()

    assert states(run) == {"create": "success", "work": "failed", "teardown": "success", "teardown_done": "success"}
    assert times[1] - times[0] < seconds
    assert re.search(said, "".join(capfd.readouterr()))
    assert_clean("c08")


@pytest.mark.parametrize("which", ["without the product", "not there", "ends soon"])
def test_a_create_whose_engines_cannot_start_is_no_task_that_hangs(
    run_dag: RunDag, tmp_path: Path, capfd: pytest.CaptureFixture[str], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: it fails with the last lines, leaves nothing, and the next one under that name works."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no licence >&2\nsleep 0.3\nexit 1\n")
    script.chmod(0o755)
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    python, said = {
        "without the product": (str(bare), "No module named"),
        "not there": ("/no/such/python", "/no/such/python"),
        "ends soon": (str(script), "no licence"),
    }[which]
    with DAG("half") as dag:
        bad = CreateClusterOperator(task_id="bad", name="c10", n=2, spec={"python": python})
        good = CreateClusterOperator(task_id="good", name="c10", n=2, trigger_rule="all_failed")
        end = TeardownClusterOperator(task_id="end", cluster=good.output)
        bad >> good >> end
    run = run_dag(dag)

    assert states(run) == {"bad": "failed", "good": "success", "end": "success"}
    assert said in "".join(capfd.readouterr())
    assert_clean("c10")


def test_a_teardown_of_what_is_gone_is_green_and_one_of_four_does_the_work(run_dag: RunDag, xcoms: XComs) -> None:
    """C13: in turn, by its limit, after a failed create, by four at once; never made is a success by a switch."""
    limited = Cluster.create_sync("limited", n=1, idle_timeout=0.1)
    steps.wait_until(lambda: steps.record_of("limited").state is ClusterState.ENDED, 30)
    with pytest.raises(errors.LaunchError):
        Cluster.create_sync("unmade", n=1, python="/no/such/python")
    four = Cluster.create_sync("four", n=1)
    code = f"""
        from airflow_ipcluster import TeardownClusterOperator
        from airflow_ipcluster.hooks import ClusterHook
        task = TeardownClusterOperator(task_id="t", cluster={four.handle.model_dump_json()!r}, claim=None)
        print(task.work(ClusterHook(), {{}})["outcome"])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outcomes = sorted(process.communicate(timeout=100)[0].split("\n")[-2] for process in racing)
    with DAG("gone") as dag:
        options: dict[str, Any] = {"retries": 0}
        TeardownClusterOperator(task_id="limit", cluster=limited.handle.model_dump(), **options)
        TeardownClusterOperator(task_id="unmade", cluster="unmade", **options)
        TeardownClusterOperator(task_id="again", cluster="four", **options)
        TeardownClusterOperator(task_id="never", cluster="never", **options)
        TeardownClusterOperator(task_id="strict", cluster="never", missing_ok=False, **options)
    run = run_dag(dag)
    pushed = xcoms(run)

    assert outcomes == ["already gone"] * 3 + ["ended"]
    assert {name: pushed[name, "return_value"]["outcome"] for name in ("limit", "unmade", "again", "never")} == {
        "limit": "already gone", "unmade": "already gone", "again": "already gone", "never": "never made",
    }  # fmt: skip
    assert states(run)["strict"] == "failed"


SECRETIVE = """
    import os
    from airflow.sdk import dag, task
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator, ScaleClusterOperator

    os.umask(0)

    def tell():
        return [f"{name}={value}" for name, value in os.environ.items()]

    @task
    def look(handle):
        from pathlib import Path
        from ipcluster_core import Client, Cluster
        cluster = Cluster.connect_sync(handle)
        with Client.connect(handle) as client:
            print(repr(cluster), str(cluster.handle), repr(client), cluster.status_sync(), cluster.logs_sync())
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                print((folder / "cmdline").read_bytes().replace(b"\\0", b" ").decode(errors="replace"))
            except OSError:
                pass
        store = Path(handle["store"].partition(":")[2])
        paths = [store, *store.rglob("secrets"), *(store / "secrets").rglob("*")]
        print("modes", *sorted({f"{path.is_dir()} {path.stat().st_mode & 0o777:o}" for path in paths}))
        (Path(FOLDER) / "secret").write_text(" ".join(path.read_text() for path in paths if path.is_file()))

    @dag(schedule=None)
    def secretive():
        create = CreateClusterOperator(
            task_id="create", name="c18", n=1, spec={"env": {"API_TOKEN": "t0ken-of-mine"}}
        )
        with create.teardown(task_id="teardown"):
            work = RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=tell)
            scale = ScaleClusterOperator(task_id="scale", cluster=create.output, n=2)
            lost = RunOnClusterOperator(task_id="lost", cluster="nobody", python_callable=tell)
            work >> scale >> lost
            scale >> look(create.output)

    secretive()
"""


def test_the_key_of_a_cluster_is_in_no_place_that_airflow_shows(
    start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: XComs, rendered templates, DEBUG logs, reprs, errors, arguments, what a task sees; under umask 000."""
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "DEBUG")
    result = result_of(start_worker("secretive", f"    FOLDER = {str(tmp_path)!r}\n{SECRETIVE}"))
    seen = result["output"] + json.dumps(result["rendered"]) + json.dumps(result["xcoms"])
    failed = {name: state for name, state in result["states"].items() if state != "success"}

    assert failed == {"lost": "failed"}, result["output"]
    [key] = set(re.findall(r"[0-9a-f]{64}", (tmp_path / "secret").read_text()))
    assert seen.count(key) == 0
    assert re.search(r"modes False 600 True 700\s", seen)
    assert "there is no cluster 'nobody'" in seen
    assert "API_TOKEN=t0ken-of-mine" in result["xcoms"]["work"]
    assert "t0ken-of-mine" not in json.dumps(result["rendered"])
    assert '"name": "c18"' in json.dumps(result["rendered"])


SPEAKING = f"""{SPEAKERS}
    from airflow.sdk import dag
    from airflow_ipcluster import RunOnClusterOperator

    @dag(schedule=None)
    def speaking():
        spoken = RunOnClusterOperator(task_id="speak", cluster="c33", python_callable=speak)
        spoken >> RunOnClusterOperator(task_id="flood", cluster="c33", python_callable=flood, trigger_rule="all_done")

    speaking()
"""


def test_what_a_task_writes_is_in_its_log_to_the_last_word(start_worker: StartWorker) -> None:
    """C33: prints, log records, a child, C; the engine dies. It is somebody else's cluster. A flood is cut."""
    with Cluster("c33", n=1):
        result = result_of(start_worker("speaking", SPEAKING))

    assert spoken(result["output"]) == {
        "print": [*range(100)],
        "log": [*range(100)],
        "child": [*range(10)],
        "C": [*range(5)],
    }
    assert result["states"] == {"speak": "failed", "flood": "success"}
    assert re.search(r"\[engine 0\] \[ipcluster\] \d+ lines dropped", result["output"])
    assert "SIGKILL" in result["output"]


BACKEND = """
    import json
    from airflow.sdk.bases.xcom import BaseXCom

    class Marking(BaseXCom):
        @staticmethod
        def serialize_value(value, **kwargs):
            return BaseXCom.serialize_value({"marked": value})

        @staticmethod
        def deserialize_value(result):
            found = BaseXCom.deserialize_value(result)
            return found["marked"]
"""

PASSING = """
    from airflow.sdk import dag, task
    from airflow_ipcluster import CreateClusterOperator, RunOnClusterOperator

    @task
    def kind(handle):
        return type(handle).__name__

    @dag(schedule=None)
    def passing():
        create = CreateClusterOperator(task_id="create", name="r6", n=1)
        with create.teardown(task_id="teardown"):
            RunOnClusterOperator(task_id="work", cluster=create.output, command="true") >> kind(create.output)

    passing()
"""


@pytest.mark.parametrize("custom", [False, True])
def test_the_handle_passes_through_xcom(
    start_worker: StartWorker, dag_folder: Path, monkeypatch: pytest.MonkeyPatch, custom: bool
) -> None:
    """R6: with the default allow list, and through a backend of one's own; it is a plain dict at the other end."""
    if custom:
        (dag_folder / "marking.py").write_text(textwrap.dedent(BACKEND))
        monkeypatch.setenv("PYTHONPATH", str(dag_folder))
        monkeypatch.setenv("AIRFLOW__CORE__XCOM_BACKEND", "marking.Marking")
    result = result_of(start_worker("passing", PASSING))
    pushed = result["xcoms"]["kind"]

    assert result["state"] == "success", result["output"]
    assert (pushed["marked"] if custom else pushed) == "dict"
    assert_clean("r6")
