"""The benchmark of task runners runs; how fast anything is, is not asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "prefect_runners.py"


@pytest.mark.timeout(400)
def test_a_quick_run_tells_what_a_task_costs(tmp_path: Path) -> None:
    """With a server of its own; a line for each runner, and nothing left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, PROGRAM, "--tasks", "3", "--passes", "1", "--runners", "ours,threads"]
    done = subprocess.run(
        command, env={**environment, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=380, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for runner in ("ours", "threads"):
        assert re.search(rf"^{runner}( +\d+\.\d\d){{6}}$", done.stdout, re.MULTILINE), done.stdout
