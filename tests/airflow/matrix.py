"""Prints what happens to clusters when things happen to runs: ``python tests/airflow/matrix.py [PART OF A NAME]...``.

A real Airflow on loopback: API server, scheduler, DAG processor, triggerer and local executor; see `cells`. On SQLite,
or on the empty database of which ``IPCLUSTER_TEST_AIRFLOW_DB`` is the SQLAlchemy URL; settings of the section
``ipcluster`` (``AIRFLOW__IPCLUSTER__GIVE_UP_CLAIMS``) are passed on. Exits with 1 if a cell is wrong.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import leaks
from cells import CELLS, Cell, Found, install, perform, variables
from deployment import Deployment


def line(found: Found, seconds: float) -> str:
    """Return a cell's line of the table."""
    tasks = ", ".join(f"{task} {state}" for task, state in found.tasks.items()) or "all success"
    tries = ", ".join(f"{task} {count}" for task, count in found.tries.items()) or "-"
    gone = "LEFT" if found.gone is None else f"{found.gone:.1f} s"
    verdict = "; ".join(found.wrong) or "ok"
    cells = [found.cell, found.run, tasks, tries, f"{found.clusters}/{found.incarnations}", gone, f"{seconds:.0f} s"]
    return " | ".join([*cells, verdict])


def chosen(words: list[str]) -> list[Cell]:
    """Choose cells by parts of their names."""
    return [cell for cell in CELLS if not words or any(word in cell.name for word in words)]


def show(airflow: Deployment, cell: Cell) -> bool:
    """Have a cell happen and print its line; return whether it is right."""
    start = time.monotonic()
    try:
        found = perform(airflow, cell)
    except AssertionError as error:
        found = Found(cell.name, "?", {}, {}, 0, 0, None, [str(error)])
    sys.stdout.write(f"{line(found, time.monotonic() - start)}\n")
    sys.stdout.flush()
    return not found.wrong


def main() -> int:
    """Run the cells; return the exit code."""
    leaks.mark_run()
    with tempfile.TemporaryDirectory(prefix="ipcluster-matrix-") as folder:
        home = Path(folder) / "airflow"
        airflow = Deployment(home, **variables(home))
        install(airflow)
        try:
            airflow.start()
            sys.stdout.write("event | run | tasks | tries | clusters/made | processes gone after | took | verdict\n")
            right = [show(airflow, cell) for cell in chosen(sys.argv[1:])]
        finally:
            airflow.stop()
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
