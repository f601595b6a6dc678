"""What a task runs on engines: functions by name, commands, a set; its output, progress, bounds, and cancellation."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

import steps
from airflow_ipcluster import ClusterHook, RunOnClusterOperator, working
from airflow_ipcluster.decorators import ipcluster_task
from airflow_ipcluster.on_engine import call_named, run_command
from airflow_ipcluster.operators import run as run_module
from ipcluster_core import Client, Cluster, EngineSpec
from runs import RunDag, XComs, states


def talk(item: int) -> int:
    """Work for an engine that says something."""
    sys.stdout.write(f"working on {item}\n")
    os.system(f"echo child of {item}")
    return item


def wait_for_ever(item: int, folder: str) -> None:
    """Work for an engine that does not end."""
    Path(folder, str(item)).touch()
    time.sleep(600)


def test_a_function_is_called_by_its_name_and_a_command_by_its_arguments(run_dag: RunDag, xcoms: XComs) -> None:
    """Engines import the one, and run the other without a shell; a command returns its last line."""
    with Cluster("kinds", n=1), DAG("kinds") as dag:
        on: dict[str, Any] = {"cluster": "kinds"}
        RunOnClusterOperator(task_id="named", **on, python_callable="os.path:join", op_args=["a", "b"])
        RunOnClusterOperator(
            task_id="keys", **on, python_callable="builtins:int", op_args=["ff"], op_kwargs={"base": 16}
        )
        RunOnClusterOperator(task_id="text", **on, command="printf '%s\\n' one '{{ run_id }}'")
        RunOnClusterOperator(task_id="list", **on, command=["echo", "$HOME ;"], map_over=[1, 2])
        run = run_dag(dag)
    pushed = xcoms(run)

    assert set(states(run).values()) == {"success"}
    assert pushed["named", "return_value"] == "a/b"
    assert pushed["keys", "return_value"] == 255
    assert pushed["text", "return_value"] == run.run_id
    assert pushed["list", "return_value"] == ["$HOME ; 1", "$HOME ; 2"]


def test_a_command_that_fails_tells_its_exit_code_and_last_lines(
    run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the command cannot be found."""
    with Cluster("failing", n=1), DAG("commands") as dag:
        RunOnClusterOperator(task_id="code", cluster="failing", command=["sh", "-c", "echo last words; exit 3"])
        RunOnClusterOperator(task_id="none", cluster="failing", command="no-such-program")
        run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert set(states(run).values()) == {"failed"}
    assert "returned non-zero exit status 3" in log
    assert "[engine 0] last words" in log
    assert "No such file or directory: 'no-such-program'" in log


def test_a_command_that_is_interrupted_takes_its_children_along(tmp_path: Path) -> None:
    """A shell's own children too, which a signal to the shell alone would leave."""
    pid = tmp_path / "pid"
    with Cluster("commanding", n=1), Client.connect("commanding") as client:
        future = client.submit(run_command, ["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"])
        steps.wait_until(lambda: pid.exists() and pid.read_text().strip())
        assert future.cancel()
        steps.wait_until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())


def test_a_name_may_be_of_a_method() -> None:
    """As the path of an attribute within its module."""
    assert call_named("builtins:dict.fromkeys", "a", 1) == {"a": 1}


def test_a_set_of_engines_is_called_together(run_dag: RunDag, xcoms: XComs) -> None:
    """By the name of the set, or by ids."""
    sets = {"wide": EngineSpec(n=2), "narrow": EngineSpec(n=1)}
    with Cluster("sets", engines=sets) as cluster, DAG("sets") as dag:
        options: dict[str, Any] = {"cluster": "sets", "python_callable": os.getpid, "mode": "all"}
        RunOnClusterOperator(task_id="wide", engines="wide", **options)
        RunOnClusterOperator(task_id="first", engines=[0], **options)
        run = run_dag(dag)
        ids = {str(engine.id) for engine in cluster.status_sync().engines if engine.set == "wide"}

    assert set(xcoms(run)["wide", "return_value"]) == ids
    assert set(xcoms(run)["first", "return_value"]) == {"0"}


def test_what_engines_write_is_in_the_tasks_log_with_their_id(
    run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    """Line by line, of Python and of children; unless it is not wanted."""
    with Cluster("talking", n=1), DAG("talking") as dag:
        options: dict[str, Any] = {"cluster": "talking", "python_callable": talk}
        said = RunOnClusterOperator(task_id="said", **options, map_over=[1, 2])
        said >> RunOnClusterOperator(task_id="unsaid", **options, op_args=[3], log_output=False)
        run_dag(dag)
    log = "".join(capfd.readouterr())

    assert log.count("[engine 0] working on") == 2
    assert log.count("[engine 0] child of") == 2
    assert "working on 3" not in log


def test_progress_is_told(run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """From time to time, when there is some, and at the end."""
    monkeypatch.setattr(working, "PROGRESS_SECONDS", 0.05)
    with Cluster("progress", n=1), DAG("progress") as dag:
        RunOnClusterOperator(task_id="work", cluster="progress", python_callable=time.sleep, map_over=[0, 0.5, 0.5])
        run_dag(dag)
    log = "".join(capfd.readouterr())

    assert "1 of 3 calls are done" in log
    assert log.count("3 of 3 calls are done") == 1


def test_results_beyond_what_xcom_should_hold_fail_the_task_or_go_to_a_file(
    run_dag: RunDag, xcoms: XComs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A database row is no place for them; the file is whole, and XCom has its path."""
    with Cluster("large", n=1), DAG("large") as dag:
        options: dict[str, Any] = {"cluster": "large", "python_callable": abs, "map_over": range(-1000, 0)}
        RunOnClusterOperator(task_id="pushed", most_xcom_bytes=1000, **options)
        RunOnClusterOperator(
            task_id="written", most_xcom_bytes=1000, **options, result_path=f"{tmp_path}/{{{{ ds }}}}/r"
        )
        run = run_dag(dag)
    value = xcoms(run)["written", "return_value"]
    written = Path(value["path"])

    assert states(run) == {"pushed": "failed", "written": "success"}
    assert "bytes, for XCom at most 1000: write results to a file (result_path)" in "".join(capfd.readouterr())
    assert json.loads(written.read_text()) == [-item for item in range(-1000, 0)]
    assert (value["count"], value["bytes"]) == (1000, written.stat().st_size)
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.parametrize("mode", ["one", "all"])
def test_what_runs_is_cancelled_when_the_task_takes_too_long(
    run_dag: RunDag, tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    """Not only what waits: the engine is free for the next try, and is the same one."""
    call: dict[str, Any] = {"map_over": [0, 1]} if mode == "one" else {"mode": "all", "op_args": [0]}
    call |= {"python_callable": wait_for_ever, "op_kwargs": {"folder": str(tmp_path)}}
    with Cluster("long", n=1) as cluster, DAG(f"long_{mode}") as dag:
        pid = cluster.status_sync().engines[0].pid
        RunOnClusterOperator(task_id="work", cluster="long", execution_timeout=timedelta(seconds=1.5), **call)
        run = run_dag(dag)
        steps.wait_until(lambda: not sum(engine.tasks for engine in cluster.status_sync().engines))
        status = cluster.status_sync()

    assert states(run) == {"work": "failed"}
    assert [path.name for path in tmp_path.glob("[01]")] == ["0"]
    assert (status.tasks["queued"], status.tasks["running"]) == (0, 0)
    assert status.engines[0].pid == pid
    assert "are cancelled, 0 are over or go on" in "".join(capfd.readouterr())


def test_calls_that_a_killed_try_has_noted_are_cancelled_by_the_next(
    run_dag: RunDag, xcoms: XComs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Work that nobody waits for any more would hold the engine; the next try notes its own."""
    notes: list[list[str]] = []
    with Cluster("noted", n=1), Client.connect("noted") as client, DAG("noted") as dag:
        left = client.submit(wait_for_ever, 0, str(tmp_path))
        monkeypatch.setattr(run_module, "noted_calls", lambda context: [left.task_id])
        monkeypatch.setattr(run_module, "note_calls", lambda context, calls: notes.append(list(calls)))
        RunOnClusterOperator(task_id="work", cluster="noted", python_callable=abs, op_args=[-1])
        run = run_dag(dag)

        assert left.cancelled()
    assert xcoms(run)["work", "return_value"] == 1
    assert [len(calls) for calls in notes] == [1]
    assert "1 calls that an earlier try left are cancelled" in "".join(capfd.readouterr())


@pytest.mark.parametrize("calls", [[], ["ab-1"], ["ab-1", "ab-2", "ab-30"]])
def test_calls_are_noted_for_the_next_try_and_for_no_other(calls: list[str]) -> None:
    """In Airflow's store of a task's state, where it has one (3.3); the first try does not ask."""
    notes: dict[str, Any] = {}
    state = SimpleNamespace(get=notes.get, set=notes.__setitem__)
    context: Any = {"task_state_store": state, "ti": SimpleNamespace(try_number=2)}
    run_module.note_calls(context, calls)
    json.dumps(notes)

    assert run_module.noted_calls(context) == calls
    assert run_module.noted_calls({**context, "ti": SimpleNamespace(try_number=1)}) == []
    assert run_module.noted_calls({"ti": context["ti"]}) == []
    run_module.note_calls({"ti": context["ti"]}, calls)


def test_a_decorated_function_runs_on_an_engine_and_expands(run_dag: RunDag, xcoms: XComs) -> None:
    """Plain values and what other tasks return are its arguments, as with ``@task``."""
    with Cluster("flow", n=2), DAG("flow") as dag:

        @ipcluster_task(cluster="flow")
        def add(left: int, right: int = 1) -> dict[str, int]:
            return {"sum": left + right, "pid": os.getpid()}

        @ipcluster_task(cluster="flow", multiple_outputs=True)
        def both() -> dict[str, int]:
            return {"a": 1, "b": 2}

        @task
        def numbers() -> list[int]:
            return [10, 20, 30]

        add.partial(right=5).expand(left=numbers())
        add.override(task_id="plain")(both()["b"])
        run = run_dag(dag)
    pushed = xcoms(run)

    assert {ti.state for ti in run.get_task_instances()} == {"success"}
    assert [row["sum"] for row in pushed["add", "return_value"]] == [15, 25, 35]
    assert pushed["plain", "return_value"]["sum"] == 3
    assert pushed["both", "a"] == 1
    assert os.getpid() not in {row["pid"] for row in pushed["add", "return_value"]}


def test_a_connection_gives_a_task_its_links(
    run_dag: RunDag, xcoms: XComs, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    """The project has no page of its own; without a template there is no link."""
    extra = {"cluster_page": "https://pages/{name}/{incarnation}"}
    connection = {"conn_type": "ipcluster", "host": store_url, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PAGES", json.dumps(connection))
    with Cluster("linked", n=1), DAG("linked") as dag:
        RunOnClusterOperator(task_id="work", cluster="linked", ipcluster_conn_id="pages", command="true")
        pushed = xcoms(run_dag(dag))

    assert pushed["work", "_link_ClusterLink"] == "https://pages/linked/1"
    assert pushed["work", "_link_LogsLink"] == ""
    monkeypatch.setenv("AIRFLOW_CONN_PAGES", json.dumps({**connection, "extra": {"logs_page": "https://{host}"}}))
    with pytest.raises(ValueError, match="it may have name, incarnation, uid"):
        ClusterHook("pages").links(dict.fromkeys(("name", "incarnation", "uid", "backend", "launcher"), ""))
