"""The MPI examples, as a newcomer runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ipcluster_core import ClusterManager, ClusterState

EXAMPLES = Path(__file__).parents[2] / "examples"

NO_PREFECT = importlib.util.find_spec("prefect") is None and not os.environ.get("IPCLUSTER_TEST_PREFECT")


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run an example in an empty folder, which is its home too."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        env={**environment, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def check(lines: list[str], tmp_path: Path, ranks: int) -> None:
    """Check the course, the numbers, the picture, and that the cluster has ended."""
    outcomes = [line.partition(": ")[2] for line in lines if line.startswith("rank ")]
    last = next(line for line in lines if line.startswith("after "))
    steps, difference = re.findall(r"after (\d+) steps, the largest difference to the serial solution is (.*)", last)[0]
    (summary,) = ClusterManager().list_sync(all=True)

    assert len(outcomes) == ranks
    assert "interrupted" in outcomes
    assert any("the 'rows' that it held is gone" in line for line in lines)
    assert (int(steps) % 100, float(difference)) == (0, 0.0)
    assert int(steps) >= 400
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert summary.state is ClusterState.ENDED


@pytest.mark.timeout(300)
def test_heat_spreads_as_a_serial_solver_has_it(tmp_path: Path) -> None:
    """Through interrupt, restart and checkpoint, to the last bit; the middle one of three ranks has two neighbours."""
    done = run(tmp_path, "mpi_heat.py", "out.png", "--ranks", "3")

    check(done.stdout.splitlines(), tmp_path, 3)


@pytest.mark.timeout(300)
@pytest.mark.skipif(NO_PREFECT, reason="Prefect is not installed: run nox -s openmpi mpich")
def test_heat_spreads_in_a_flow_too(tmp_path: Path) -> None:
    """Without a Prefect server."""
    done = run(tmp_path, "prefect_mpi_heat.py", "out.png")

    check(done.stdout.splitlines(), tmp_path, 2)
    assert "Traceback" not in done.stderr
