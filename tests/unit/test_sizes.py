"""Sizes that no linter of ours counts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Folder and the most lines that a module in it may have.
MODULE_LIMITS = {"core": 500, "prefect_ipcluster": 250, "airflow_ipcluster": 250}
#: The most lines that a function may have, its docstring left out.
FUNCTION_LIMIT = 60


@pytest.mark.parametrize(("folder", "limit"), MODULE_LIMITS.items())
def test_modules_are_short_enough_to_read_in_one_go(folder: str, limit: int) -> None:
    """A module that is too long hides a concept that has no name yet."""
    sizes = {str(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}

    assert {path: size for path, size in sizes.items() if size > limit} == {}


@pytest.mark.parametrize("folder", MODULE_LIMITS)
def test_functions_fit_on_a_screen(folder: str) -> None:
    """A function that is too long does more than one thing."""
    sizes = {
        f"{path}:{node.lineno} {node.name}": length(node)
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {name: size for name, size in sizes.items() if size > FUNCTION_LIMIT} == {}


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without those of its docstring."""
    docstring = ast.get_docstring(function, clean=False)
    return (function.end_lineno or 0) - function.lineno + 1 - (len(docstring.splitlines()) if docstring else 0)
