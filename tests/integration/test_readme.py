"""What README shows is true: its commands and its scripts are run as they stand.

The two lines that set up environments are run by CI itself and by the example's own test.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import steps

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return README's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run_python(code: str) -> str:
    """Run a block as a script of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_three_steps_share_only_a_name() -> None:
    """create.py, work.py, teardown.py."""
    create, work, teardown = (
        block for block in blocks("python") if block.startswith(("# create", "# work", "# teardown"))
    )

    assert '"name":"nightly"' in run_python(create)
    assert run_python(work) == "1024\n[5, 4, 3, 2, 1]\n"
    assert "outcome='ended'" in run_python(teardown)


def test_the_scope_runs() -> None:
    """One block, one cluster."""
    (scope,) = (block for block in blocks("python") if 'Cluster("scratch"' in block)

    assert run_python(scope) == "{0: 6, 1: 6}\n"


def test_the_output_of_engines_is_delivered() -> None:
    """One line of each engine."""
    (stream,) = (block for block in blocks("python") if 'Cluster("loud"' in block)

    assert sorted(run_python(stream).splitlines()) == ["[engine 0] hello", "[engine 1] hello"]


def test_the_shell_session_runs() -> None:
    """Each line of it succeeds, in its order."""
    (session,) = (block for block in blocks("bash") if "ipclusterctl" in block)
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for line in session.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "ipclusterctl"
        command = [sys.executable, "-m", "ipcluster_core.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    assert steps.living("nightly") == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md", "tests/walkthrough/test_tour.py"])
def test_the_files_that_it_names_are_there(name: str) -> None:
    """No dead ends."""
    assert name in README
    assert (ROOT / name).is_file()


def test_ci_calls_the_same_line_as_readme() -> None:
    """So that CI proves the second of the two lines."""
    script = (ROOT / ".ci" / "run").read_text()
    (line,) = (block.strip() for block in blocks("bash") if block.rstrip().endswith("nox"))

    assert [command for command in line.split(" && ") if command not in script] == []
