"""One session: start a peer's engines, measure some figures, end it all. A fresh process, watched by a supervisor.

Run as ``python session.py PEER ENGINES FIGURES FOLDER START_NS QUICK``. Until the first result is there, it imports
nothing that the peer does not: that would be counted as the peer's.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

from bench.figures import FIGURES, Run
from bench.meter import Meter
from bench.peers import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Name of the file with the results, in the session's folder.
RESULTS = "results.json"


def main() -> None:
    """Measure."""
    name, engines, figures, folder, start_ns, quick = sys.argv[1:]
    os.chdir(folder)
    run = Run(name, load(name)(int(engines), folder), Meter(folder), int(start_ns), quick=quick == "1")
    results: dict[str, dict[str, Any]] = {}
    run.peer.start()
    try:
        run.begin()
        for figure in figures.split(","):
            results[figure] = _measure(run, figure)
            _save(results)
    finally:
        if not run.closed:
            run.meter.closing()
            run.peer.close()


def _measure(run: Run, figure: str) -> dict[str, Any]:
    started = time.monotonic()
    try:
        values = FIGURES[figure](run)
    except Exception as error:  # noqa: BLE001 - a peer may raise anything; the next figure is tried all the same
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {**values, "took": time.monotonic() - started}


def _save(results: dict[str, dict[str, Any]]) -> None:
    import json

    with pathlib.Path(f"{RESULTS}.new").open("w") as file:
        json.dump(results, file)
    pathlib.Path(f"{RESULTS}.new").replace(RESULTS)


# Workers that a pool spawns import this file under another name.
if __name__ == "__main__":
    main()
