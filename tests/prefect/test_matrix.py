"""The short form of the matrix: what becomes of a cluster and its flow run, whatever happens to the flow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

MATRIX = Path(__file__).with_name("matrix.py")


@pytest.mark.timeout(600)
def test_no_cluster_outlives_its_flow_longer_than_stated() -> None:
    """Run directly, served, by a worker: the cells that differ most. `matrix` itself runs them all."""
    command = [sys.executable, MATRIX, "--short", "--logs", "--api", str(PREFECT_API_URL.value())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    lines = done.stdout.splitlines()[1:]

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(lines) == 7
    assert all(" ok " in line for line in lines)
