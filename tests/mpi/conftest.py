"""MPI sets need mpi4py and an MPI; both stand in environments of their own, see noxfile.py."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import tables

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where there is no MPI; where the run promises one, they fail instead."""
    if importlib.util.find_spec("mpi4py") or os.environ.get("IPCLUSTER_TEST_MPI"):
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="mpi4py is not installed: run nox -s openmpi mpich"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, whatever became of output while tests ran."""
    for title, lines in tables.made.items():
        terminalreporter.section(title)
        terminalreporter.write("\n".join([*lines, ""]))
