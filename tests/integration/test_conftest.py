"""What `tests/conftest.py` holds for every test, shown on a small test run of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import leaks

TESTS = Path(__file__).parents[1]
LEAKY = """
import os, subprocess, sys
import leaks, pytest

@pytest.fixture
def leak_policy():
    return leaks.Policy(patience=0.1)

def test_leaks_a_process():
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def test_leaks_nothing():
    assert os.environ["IPCLUSTER_STORE"].startswith("file:")
"""


def test_leaking_test_fails_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    """The leak is an error of the test that left it, names it, and is ended."""
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, "-p", "no:randomly"]
    path = os.pathsep.join((str(TESTS), str(TESTS / "support")))
    result = subprocess.run(
        [*command, "-p", "conftest", "-p", "no:cacheprovider", tmp_path],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    leaked = re.search(r"^process (\d+): .* -c input\(\)$", result.stdout, re.MULTILINE)

    assert "2 passed, 1 error" in result.stdout, result.stdout + result.stderr
    assert "left behind 0.1 s after the test:" in result.stdout
    assert leaked is not None
    remains = leaks.read_process(int(leaked[1]))
    assert remains is None or remains.zombie  # until init reaps it
