"""An Airflow on loopback, as it is deployed: API server, scheduler, DAG processor and triggerer, each a process.

The executor is the local one, so each task is a process too, two levels below the scheduler. The database is SQLite
unless ``IPCLUSTER_TEST_AIRFLOW_DB`` names another.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "Deployment"]

#: The processes, in the order in which they are started.
PARTS = ("api-server", "dag-processor", "scheduler", "triggerer")

#: Seconds until a part that is told to end is killed.
_END_SECONDS = 15.0

#: States in which a run is over.
OVER = ("success", "failed")


class Deployment:
    """One Airflow with a home of its own.

    Parameters
    ----------
    home
        Empty folder. DAG files go into its ``dags``, logs are in ``logs`` and ``<part>.log``.
    variables
        More environment variables for all parts.
    """

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.dags = home / "dags"
        self.dags.mkdir(parents=True)
        #: URL of the store in which its tasks have their clusters.
        self.store = f"file:{home}/store"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()
        self._port = free_port()
        self._token = ""
        self.env = {**_without_airflow(os.environ), **self._settings(), **variables}

    def _settings(self) -> dict[str, str]:
        base = f"http://127.0.0.1:{self._port}"
        database = os.environ.get("IPCLUSTER_TEST_AIRFLOW_DB") or f"sqlite:///{self.home}/airflow.db"
        sections = {
            "core": {
                "dags_folder": self.dags, "load_examples": False, "executor": "LocalExecutor", "parallelism": 4,
                "execution_api_server_url": f"{base}/execution/", "simple_auth_manager_all_admins": True,
            },
            "database": {"sql_alchemy_conn": database},
            "api": {"host": "127.0.0.1", "port": self._port, "base_url": base, "workers": 1,
                    "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            # What is waited for in a deployment for minutes is waited for here for seconds.
            "scheduler": {
                "task_instance_heartbeat_timeout": 20, "task_instance_heartbeat_timeout_detection_interval": 2,
                "scheduler_idle_sleep_time": 0.3, "scheduler_heartbeat_sec": 1, "orphaned_tasks_check_interval": 5,
                "scheduler_health_check_threshold": 10,
            },
            "triggerer": {"job_heartbeat_sec": 1, "triggerer_health_check_threshold": 5},
            "dag_processor": {"refresh_interval": 2, "min_file_process_interval": 600, "parsing_processes": 1},
            "workers": {"min_heartbeat_interval": 1},
            "logging": {"base_log_folder": self.home / "logs"},
        }  # fmt: skip
        named = {
            f"AIRFLOW__{section.upper()}__{key.upper()}": str(value)
            for section, values in sections.items()
            for key, value in values.items()
        }
        return {"AIRFLOW_HOME": str(self.home), "IPCLUSTER_STORE": self.store, **named}

    # the parts

    def start(self, timeout: float = 120.0) -> None:
        """Make the database, start all parts, and wait until the DAG files are read and can be run."""
        self._airflow("db", "migrate", timeout=timeout)
        for part in PARTS:
            self.start_part(part)
        wait_until(self._answers, timeout)
        self._token = json.loads(self._http("GET", "/auth/token"))["access_token"]

    def start_part(self, part: str) -> None:
        """Start one part."""
        with (self.home / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(
                [sys.executable, "-m", "airflow", part],
                env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._sessions.add(self.processes[part].pid)

    def kill_part(self, part: str) -> None:
        """Kill one part, with nothing said to those that it has started."""
        process = self.processes.pop(part)
        process.kill()
        process.wait(10)

    def stop(self) -> None:
        """End all parts, and what they have started."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.processes.clear()
        self._end_sessions()

    def _end_sessions(self) -> None:
        """Kill what is left in the sessions of the parts, also of those that were killed."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[3]) in self._sessions:
                    os.kill(int(folder.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue

    def _airflow(self, *arguments: str, timeout: float) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.env, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # what is asked of it

    def _answers(self) -> bool:
        for part, process in self.processes.items():
            log = self.home / f"{part}.log"
            assert process.poll() is None, f"{part} has ended: {log.read_text()[-2000:]}"
        try:
            health = json.loads(self._http("GET", "/api/v2/monitor/health"))
        except OSError:
            return False
        return all(health[part.replace("-", "_")]["status"] == "healthy" for part in PARTS if part != "api-server")

    def _http(self, method: str, path: str, body: Any = None) -> str:  # noqa: ANN401 - any JSON
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        url = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def api(self, method: str, path: str, body: Any = None) -> Any:  # noqa: ANN401 - any JSON
        """Ask the public API, as the user interface does."""
        try:
            return json.loads(self._http(method, f"/api/v2{path}", body) or "null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error

    def knows(self, dag_id: str) -> bool:
        """Tell whether a DAG's file has been read."""
        errors = self.api("GET", "/importErrors")["import_errors"]
        assert not errors, errors[0]["stack_trace"]
        return dag_id in {dag["dag_id"] for dag in self.api("GET", "/dags?limit=1000")["dags"]}

    def trigger(self, dag_id: str, **conf: Any) -> str:
        """Start a run, as soon as the DAG is known; return its id."""
        wait_until(lambda: self.knows(dag_id), 60)
        self.api("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        run = self.api("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run."""
        return str(self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the states of a run's tasks."""
        return {ti["task_id"]: str(ti["state"]) for ti in self._instances(dag_id, run_id)}

    def tries(self, dag_id: str, run_id: str) -> dict[str, int]:
        """Return how often each task was tried."""
        return {ti["task_id"]: int(ti["try_number"]) for ti in self._instances(dag_id, run_id)}

    def _instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")[
            "task_instances"
        ]
        return found

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:  # noqa: ANN401 - any JSON
        """Return what a task has pushed."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.api("GET", path)["value"]

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run, as a person does."""
        self.api("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", {"state": state})

    def mark_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Mark a task, as a person does."""
        self.api("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str, *, downstream: bool = False) -> None:
        """Clear a task, as a person does."""
        body = {
            "dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": [task_id],
            "include_downstream": downstream,
        }  # fmt: skip
        self.api("POST", f"/dags/{dag_id}/clearTaskInstances", body)

    def wait_run(self, dag_id: str, run_id: str, timeout: float = 90.0) -> str:
        """Wait until a run is over and none of its tasks goes on; return its state."""
        wait_until(lambda: self._over(dag_id, run_id), timeout, lambda: self.story(dag_id, run_id))
        return self.run_state(dag_id, run_id)

    def _over(self, dag_id: str, run_id: str) -> bool:
        if self.run_state(dag_id, run_id) not in OVER:
            return False
        return not {"running", "deferred", "queued", "scheduled"} & set(self.states(dag_id, run_id).values())

    def wait_task(self, dag_id: str, run_id: str, task_id: str, *states: str, timeout: float = 60.0) -> None:
        """Wait until a task is in one of some states."""
        wait_until(
            lambda: self.states(dag_id, run_id).get(task_id) in states, timeout, lambda: self.story(dag_id, run_id)
        )

    def log_of(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return what all tries of a task have logged."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
        return "\n".join(path.read_text(errors="replace") for path in sorted(folder.rglob("attempt=*.log*")))

    def story(self, dag_id: str, run_id: str) -> str:
        """Say how a run is, for the message of a wait that was in vain."""
        gone = [part for part, process in self.processes.items() if process.poll() is not None]
        ended = f", ended by themselves: {gone}" if gone else ""
        return f"{dag_id} {run_id}: {self.run_state(dag_id, run_id)}, {self.states(dag_id, run_id)}{ended}"


def wait_until(condition: Callable[[], object], timeout: float, story: Callable[[], str] = lambda: "") -> None:
    """Wait until a condition holds, which costs a request or so."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{condition} did not hold within {timeout:g} s {story()}"
        time.sleep(0.2)


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _without_airflow(environ: os._Environ[str]) -> dict[str, str]:
    """Leave out the settings of the Airflow that tests in this process use."""
    kept = {key: value for key, value in environ.items() if not key.startswith(("AIRFLOW", "_AIRFLOW"))}
    return kept | {key: value for key, value in environ.items() if key.startswith("AIRFLOW__IPCLUSTER__")}
