"""The benchmark of messages between ranks runs, and finds nothing of ours in their way."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "mpi.py"


def test_messages_between_engines_are_as_fast_as_under_a_bare_mpiexec(tmp_path: Path) -> None:
    """The least of many short times of each, in turn: what is in it is the kernel and the MPI, and nothing of ours."""
    written = tmp_path / "messages.json"
    command = [sys.executable, str(PROGRAM), "--rounds", "3", "--times", "6", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)  # noqa: T201
    ratios = {
        (row["kind"], row["size"]): min(itertools.chain(*row["bare"])) / min(itertools.chain(*row["ours"]))
        for row in json.loads(written.read_text())
    }

    assert len(ratios) == 5
    # By hand, on a quiet machine, 0.95 is asked for: see the benchmark.
    assert min(ratios["ping-pong", 8], ratios["allreduce", 8]) > 0.4, done.stdout
