"""Measure ours and its peers on the same work, in one interleaved run: ``python tests/benchmarks/run.py``.

Prints a table of ratios and the floors that are not met, and can write all of it as JSON and as a chart. Exits with 0
also when floors are missed: they are judged by people, on a quiet machine. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plan, report
from bench.peers import OURS, PEERS, load
from bench.plan import Kind
from bench.processes import become_subreaper
from bench.session import RESULTS
from bench.supervise import supervise

HERE = Path(__file__).resolve().parent

#: Seconds that a session may take.
LIMIT_SECONDS = 180.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parse(arguments)
    peers = _present(options.peers)
    become_subreaper()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _stop)
    sessions: list[dict[str, Any]] = []
    load_before = os.getloadavg()
    chosen = plan.kinds(options.figures, quick=options.quick)
    # Compiles what is imported, and fills the machine's caches; not counted.
    todo = [] if options.quick else [(-1, Kind("warm-up", ("cold",)), peer) for peer in peers]
    todo += plan.order(chosen, peers, options.passes)
    with tempfile.TemporaryDirectory(prefix="ib-", dir=options.work) as work:
        for number, (turn, kind, peer) in enumerate(todo):
            session = _session(Path(work, str(number)), kind, peer, options)
            name = f"pass {turn + 1} {kind.name}" if turn >= 0 else kind.name
            _say(f"[{number + 1}/{len(todo)}] {name:<15} {peer:<13} {_outcome(session)}")
            if turn >= 0:
                sessions.append({"pass": turn, **session})
    _tell(sessions, peers, options, load_before)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--figures", type=_names(plan.FIGURES), default=list(plan.FIGURES), help="all by default")
    parser.add_argument("--peers", type=_names(tuple(PEERS)), default=list(PEERS), help="all that are installed")
    parser.add_argument("--passes", type=int, default=3, help="how often it all is run, interleaved (default 3)")
    parser.add_argument("--engines", type=int, default=4, help="engines of each peer (default 4; the floors are for 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="write the chart (needs matplotlib)")
    parser.add_argument("--quick", action="store_true", help="hardly any work: tries the machinery, measures nothing")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for a session (default 180)")
    parser.add_argument("--work", type=Path, help="where sessions keep their files; emptied (default: temporary)")
    return parser.parse_args(arguments)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
        return names

    read.__name__ = "list of names"
    return read


def _present(peers: Sequence[str]) -> list[str]:
    """Leave out what is not installed, with a line that says so."""
    found = []
    for peer in peers:
        if importlib.util.find_spec(load(peer).package) is None:
            _say(f"{peer} is left out: {load(peer).package} is not installed")
        else:
            found.append(peer)
    return found


def _session(folder: Path, kind: Kind, peer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one session and return all that is known of it."""
    engines = kind.engines or options.engines
    folder.mkdir()
    (folder / "tmp").mkdir()
    program = [str(HERE / "bench" / "session.py"), peer, str(engines), ",".join(kind.figures), str(folder)]
    command = load(peer).command(engines, [*program, "{start_ns}", str(int(options.quick))])
    try:
        ending = supervise(command, _environment(peer, folder), folder, options.limit)
    except BaseException:
        load(peer).sweep(str(folder))
        raise
    if ending.left:
        load(peer).sweep(str(folder))
    path = folder / RESULTS
    results = json.loads(path.read_text()) if path.exists() else {}
    if "teardown" in results and "start" in results["teardown"] and ending.gone is not None:
        results["teardown"]["gone"] = ending.gone - results["teardown"].pop("start")
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "kind": kind.name,
        "peer": peer,
        "engines": engines,
        "figures": kind.figures,
        "results": results,
        "error": ending.error,
        "cpu": ending.cpu,
        "wall": ending.wall,
        "left": ending.left,
    }


def _environment(peer: str, folder: Path) -> dict[str, str]:
    """Return the environment of a session: its own places for files, tasks that engines can import."""
    environment = {
        **os.environ,
        **load(peer).environment,
        "PYTHONPATH": str(HERE),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "TMPDIR": str(folder / "tmp"),
        "IPYTHONDIR": str(folder / "ipython"),
        "IPCLUSTER_STORE": f"file:{folder}/store",
    }
    # With it, each process would compile each module that it imports.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _outcome(session: Mapping[str, Any]) -> str:
    """Say in one line how a session went."""
    parts = [f"{session['wall']:.1f} s, CPU {session['cpu']:.1f} s"]
    parts += [f"{name}: {values['error']}" for name, values in session["results"].items() if "error" in values]
    if session["error"]:
        parts.append(session["error"])
    if session["left"]:
        parts.append(f"left behind and removed: {', '.join(session['left'])[:300]}")
    return "; ".join(parts)


def _tell(
    sessions: Sequence[Mapping[str, Any]],
    peers: Sequence[str],
    options: argparse.Namespace,
    load_before: tuple[float, float, float],
) -> None:
    summary = report.summarize(*plan.samples_of(sessions))
    verdicts = report.judge(summary)
    _say("")
    _say(report.table(summary, peers))
    _say("ours : peer; * floor met, !! not met; for all peers: " + report.FOOTNOTE)
    for peer in peers:
        lacks = [f"{figure} ({why})" for figure, why in load(peer).lacks.items() if figure in options.figures]
        if lacks:
            _say(f"{peer} lacks {', '.join(lacks)}")
    for key, row in summary.items():
        for peer, value in row.items():
            if isinstance(value, str):
                _say(f"{peer} failed at {key}: {value}")
    if OURS in peers and verdicts:
        _say("")
        _say(report.verdict_lines(verdicts))
    if options.json is not None:
        about = {"machine": _machine(), "load": [load_before, os.getloadavg()], "versions": _versions(peers)}
        run = {"engines": options.engines, "passes": options.passes, "quick": options.quick, "peers": peers}
        found = {"summary": summary, "verdicts": [vars(verdict) for verdict in verdicts], "sessions": sessions}
        options.json.write_text(json.dumps({**about, **run, **found}, indent=1) + "\n")
    if options.plot is not None:
        if importlib.util.find_spec("matplotlib") is None:
            _say("no chart: matplotlib is not installed")
        else:
            from bench.chart import draw

            draw(summary, peers, options.plot)


def _machine() -> dict[str, object]:
    return {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def _versions(peers: Sequence[str]) -> dict[str, str]:
    found = {}
    for peer in peers:
        package = load(peer).package
        names = importlib.metadata.packages_distributions().get(package, [])
        found[peer] = importlib.metadata.version(names[0]) if names else platform.python_version()
    return found


def _stop(signum: int, frame: object) -> None:
    """End the session that runs, then this process; a second signal does not cut that short."""
    del frame
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + signum)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
