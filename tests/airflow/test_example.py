"""The example that the documentation shows, run as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import steps
from ipcluster_core import ClusterManager, ClusterState

EXAMPLE = Path(__file__).parents[2] / "examples" / "airflow_flights.py"


def test_the_dag_of_all_flights_runs_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any set-up: right numbers, a plot, and neither a cluster nor a file of Airflow's left."""
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, str(EXAMPLE)]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    [cluster] = ClusterManager().list_sync(all=True)

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("336,776") == 2
    assert "\nFeb       24,951       5.1%  10.8    -2.0    43  EWR-DSM" in result.stdout
    assert "\nUA        58,665       1.2%  12.1     0.0    41  EWR-JAC" in result.stdout
    assert result.stdout.endswith("run: success\n")
    assert (work / "flights.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in work.iterdir()] == ["flights.png"]
    assert not (tmp_path / "home").exists()
    assert not list(Path(tempfile.gettempdir()).glob("airflow-flights-*"))
    assert cluster.name.startswith("airflow-flights-")
    assert cluster.state is ClusterState.ENDED
    assert not steps.living(cluster.name)
