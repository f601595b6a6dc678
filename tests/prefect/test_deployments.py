"""The examples that are served, and README's, on a whole Prefect server: with schedules, events and automations."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

import steps
from ipcluster_core import ClusterManager, ClusterState

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with all its services: the one of the other tests has no automations."""
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    environment.pop("PREFECT_API_URL", None)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        steps.wait_until(lambda: answers(f"http://127.0.0.1:{port}/api/health"), 120)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    """Tell whether somebody answers there."""
    with suppress(OSError), urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    """Asks that server; so does what the test starts."""
    monkeypatch.setenv("PREFECT_API_URL", server)
    monkeypatch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "1")
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def served(client: SyncPrefectClient, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts a script of the examples, and waits for a deployment of it."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(script: str, *arguments: str, deployment: str) -> None:
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, str(ROOT / "examples" / script), *arguments]
            processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
        steps.wait_until(lambda: is_deployed(client, deployment), 60)

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)


def is_deployed(client: SyncPrefectClient, name: str) -> bool:
    """Tell whether there is such a deployment."""
    with suppress(ObjectNotFound):
        return client.read_deployment_by_name(name) is not None
    return False


def run(client: SyncPrefectClient, name: str) -> None:
    """Run a deployment as ``prefect deployment run`` does, and wait until the run has completed."""
    created = client.create_flow_run_from_deployment(client.read_deployment_by_name(name).id)

    def is_over() -> bool:
        state = client.read_flow_run(created.id).state
        assert state is not None
        assert not state.is_failed(), state.message
        assert not state.is_crashed(), state.message
        return state.is_completed()

    steps.wait_until(is_over, 90)


def state_of(name: str) -> ClusterState:
    """Return the state of a cluster."""
    return ClusterManager().get_sync(name).state


@pytest.mark.timeout(400)
def test_deployments_share_a_cluster_by_its_name(client: SyncPrefectClient, served: Callable[..., None]) -> None:
    """Create, use, tear down: three processes, one name; their schedules are those of a night."""
    served("prefect_nightly.py", deployment="ipcluster-teardown/nightly")
    run(client, "ipcluster-create/nightly")
    made = steps.record_of("nightly")
    run(client, "months/nightly")
    used = state_of("nightly")
    run(client, "ipcluster-teardown/nightly")
    schedules = [
        client.read_deployment_by_name(f"{name}/nightly").schedules[0].schedule
        for name in ("ipcluster-create", "months", "ipcluster-teardown")
    ]

    assert list(made.claims) == ["standing"]
    assert used is ClusterState.RUNNING
    assert state_of("nightly") is ClusterState.ENDED
    assert [schedule.cron for schedule in schedules] == ["0 1 * * *", "0 2 * * *", "0 6 * * *"]  # type: ignore[union-attr]


#: A flow that leaves its cluster: in a process of its own, as this one's events go to another server.
FAILING = """
    import sys
    from prefect import flow
    from prefect_ipcluster import create_cluster

    @flow
    def failing(name):
        create_cluster(name, n=0)
        raise RuntimeError("on purpose")

    failing(sys.argv[1], return_state=True)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("every", "by"), [("5", "schedule"), ("3600", "automation")])
def test_the_sites_reaper_ends_what_a_failed_run_has_left(
    client: SyncPrefectClient, served: Callable[..., None], every: str, by: str
) -> None:
    """In its next round, or when Prefect tells it of the run."""
    served("prefect_reaper.py", "--every", every, deployment="ipcluster-reap/default")
    steps.wait_until(lambda: client.read_automations_by_name("ipcluster: reap after a run that ended badly"), 30)

    steps.run_step(FAILING, f"left-for-{by}")
    steps.wait_until(lambda: state_of(f"left-for-{by}") is ClusterState.ENDED, 120)

    assert steps.record_of(f"left-for-{by}").claims == {}


def test_the_deployments_of_readme_are_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is run as it stands, but for the serving, which does not end."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (script,) = (block for block in blocks if "flows.reap.to_deployment" in block)
    served: list[Any] = []
    monkeypatch.setattr("prefect.serve", lambda *deployments, **_: served.extend(deployments))
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})

    assert [f"{one.flow_name}/{one.name}" for one in served] == [
        "ipcluster-create/nightly",
        "ipcluster-teardown/nightly",
        "ipcluster-reap/default",
    ]


@pytest.mark.timeout(300)
def test_the_nightly_example_runs_at_once_too(tmp_path: Path) -> None:
    """With an empty home, and no Prefect server."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "prefect_nightly.py", "--once"],
        env={**environment, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Jan       27,004       1.9%  10.0    -2.0    40  EWR-TUL (55)" in done.stdout.splitlines()
    assert "cluster 'nightly' #1 ended" in done.stdout
