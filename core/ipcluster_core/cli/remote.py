"""What ``ipclusterctl run`` has an engine do."""

from __future__ import annotations

import subprocess
from importlib import import_module

__all__ = ["run_command", "run_function"]


def run_command(command: list[str]) -> tuple[int, str]:
    """Run a command on an engine; return its exit code and what it wrote."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, errors="replace")
    return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout


def run_function(path: str) -> tuple[int, str]:
    """Call ``module:function`` on an engine; return 0 and its result as text."""
    module, _, name = path.partition(":")
    value = getattr(import_module(module), name)()
    return 0, "" if value is None else str(value)
