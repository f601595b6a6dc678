"""The example of the README, as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipcluster_core import ClusterManager, ClusterState

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(300)
def test_the_flights_of_a_year_are_compared_on_a_shared_cluster(tmp_path: Path) -> None:
    """With an empty home and no Prefect server: both tables, the picture, and a cluster that has ended.

    References
    ----------
    The mean delays and the numbers of cancelled flights are those of the R package `nycflights13`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "prefect_flights.py", "out.png"],
        env={**environment, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = done.stdout.splitlines()

    assert done.returncode == 0, done.stderr
    assert "Jan       27,004       1.9%  10.0    -2.0    40  EWR-TUL (55)" in lines
    assert "Jul       29,425       3.2%  21.7     0.0    79  EWR-TYS (81)" in lines
    assert "UA        58,665       1.2%  12.1     0.0    41  EWR-JAC (29)" in lines
    assert lines.count("all      336,776       2.5%") == 2
    assert len(lines) == (1 + 12 + 1) + 1 + (1 + 16 + 1) + 2
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "is running with 2 engines up" in done.stderr
    assert "is running with 4 engines up" in done.stderr
    assert "Traceback" not in done.stderr
    (summary,) = ClusterManager().list_sync(all=True)
    assert summary.name.startswith("flights-")
    assert (summary.state, summary.engines) == (ClusterState.ENDED, 4)
    assert summary.reason.startswith("torn down")
