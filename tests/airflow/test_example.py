"""The example that the documentation shows, run as a newcomer runs it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import steps
from ipcluster_core import ClusterManager, ClusterState

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run an example as a newcomer does, from another folder, and return what it prints."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    work = tmp_path / "work"
    work.mkdir()

    def run(name: str) -> str:
        command = [sys.executable, str(EXAMPLES / name)]
        result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)

        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def test_the_dag_of_all_flights_runs_by_one_line(run_example: Callable[[str], str], tmp_path: Path) -> None:
    """Without any set-up: right numbers, a plot, and neither a cluster nor a file of Airflow's left."""
    output, work = run_example("airflow_flights.py"), tmp_path / "work"
    [cluster] = ClusterManager().list_sync(all=True)

    assert output.count("336,776") == 2
    assert "\nFeb       24,951       5.1%  10.8    -2.0    43  EWR-DSM" in output
    assert "\nUA        58,665       1.2%  12.1     0.0    41  EWR-JAC" in output
    assert output.endswith("run: success\n")
    assert (work / "flights.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in work.iterdir()] == ["flights.png"]
    assert not (tmp_path / "home").exists()
    assert not list(Path(tempfile.gettempdir()).glob("airflow-flights-*"))
    assert cluster.name.startswith("airflow-flights-")
    assert cluster.state is ClusterState.ENDED
    assert not steps.living(cluster.name)


def test_a_cluster_for_the_night_is_opened_used_and_closed_by_three_dags(run_example: Callable[[str], str]) -> None:
    """It outlives the run that makes it, by a claim of its own."""
    output = run_example("airflow_nightly.py")
    [cluster] = ClusterManager().list_sync(all=True)

    assert [line for line in output.splitlines() if line.startswith("nightly")] == [
        "nightly_open: success", "nightly_use: success", "nightly_close: success",
    ]  # fmt: skip
    assert "336,776" in output
    assert (cluster.name, cluster.state) == ("nightly", ClusterState.ENDED)


def test_two_runs_at_one_time_share_a_cluster_and_the_last_one_out_ends_it(run_example: Callable[[str], str]) -> None:
    """Each with its own months; which of them makes it is a race."""
    output = run_example("airflow_shared.py")
    [cluster] = ClusterManager().list_sync(all=True)

    assert output.count("run: success") == 2
    assert "\nDec       28,135" in output
    assert "\nJul       29,425" in output
    assert (cluster.name, cluster.state) == ("flights-shared", ClusterState.ENDED)
    assert not steps.living("flights-shared")


def test_the_reaper_ends_what_a_run_has_left(run_example: Callable[[str], str]) -> None:
    """As its log says, with the run."""
    output = run_example("airflow_reaper.py")

    assert "cluster_reaper: success" in output
    assert "left-behind #1, airflow/cluster_leaver/manual__" in output
    assert not steps.living("left-behind")


def test_the_dag_of_the_readme_runs_as_it_stands(start_worker: Callable[[str, str], subprocess.Popen[str]]) -> None:
    """With each task in a process of its own."""
    try:
        importlib.metadata.version("ipcluster-core")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is used from its sources, where Airflow does not find its decorator")
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if "airflow_ipcluster" in block]
    output, _ = start_worker("study", block).communicate(timeout=100)
    result = json.loads(output.splitlines()[-1])

    assert result["state"] == "success", output
    assert (result["xcoms"]["work"], result["xcoms"]["total"]) == ([1, 2, 3], 6)
