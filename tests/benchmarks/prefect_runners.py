"""What a Prefect task costs with ours and with other task runners: ``python tests/benchmarks/prefect_runners.py``.

One server for all, one fresh process for each flow, runners in turn: A B C … A B C. Prints milliseconds for each
trivial task, and ours as a share of DaskTaskRunner's, which is left out if it is not installed.

A process is one of three: the one that a person starts has the server below it, a supervisor has all processes of one
session below it, and the session runs the flow.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.meter import Meter
from bench.processes import become_subreaper, clock_ns
from bench.supervise import supervise

#: Seconds until the server must answer.
SERVER_SECONDS = 120.0

RUNNERS = ("ours", "threads", "processes", "dask")
OURS, MODEL = "ours", "dask"


def main(arguments: Sequence[str] | None = None) -> int:
    """Be what the command line asks for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runners", default=",".join(RUNNERS), help=f"some of {','.join(RUNNERS)}")
    parser.add_argument("--tasks", type=int, default=200, help="in each flow (default 200)")
    parser.add_argument("--passes", type=int, default=3, help="how often it all is run, interleaved (default 3)")
    parser.add_argument("--engines", type=int, default=2, help="engines, workers or threads (default 2)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a flow (default 600)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--supervise", metavar="RUNNER", help=argparse.SUPPRESS)
    parser.add_argument("--session", nargs=2, metavar=("RUNNER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.session:
        _measure(options.session[0], options.session[1], options.tasks, options.engines)
    elif options.supervise:
        _supervise(options)
    else:
        _run_all(options)
    return 0


# the process that a person starts


def _run_all(options: argparse.Namespace) -> None:
    runners = [name for name in options.runners.split(",") if name != MODEL or importlib.util.find_spec("prefect_dask")]
    sessions: list[tuple[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="ib-prefect-") as home:
        os.environ |= {"PREFECT_HOME": home, "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        server = _start_server(home)
        try:
            for turn, name in itertools.product(range(options.passes), runners):
                sessions.append((name, _session(name, server, options)))
                print(f"pass {turn + 1} {name:<10} {json.dumps(sessions[-1][1])}", flush=True)
        finally:
            server.terminate()
            server.wait(30)
    measured = {name: [found for of, found in sessions if of == name and "error" not in found] for name in runners}
    _tell(measured, options.tasks)
    if options.json:
        options.json.write_text(json.dumps({"tasks": options.tasks, "load": os.getloadavg(), "measured": measured}))


def _start_server(home: str) -> subprocess.Popen[bytes]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-ui",
    ]
    with Path(home, "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return server
    server.kill()
    raise TimeoutError(Path(home, "server.log").read_text())


def _session(name: str, server: subprocess.Popen[bytes], options: argparse.Namespace) -> dict[str, Any]:
    before = clock_ns(server.pid)
    asked = ["--supervise", name, "--tasks", options.tasks, "--engines", options.engines, "--limit", options.limit]
    done = subprocess.run([sys.executable, __file__, *map(str, asked)], capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stdout + done.stderr}
    found["server"] = (clock_ns(server.pid) - before) / 1e9
    return found


def _tell(measured: dict[str, list[dict[str, float]]], tasks: int) -> None:
    columns = ("wall", "driver", "workers", "server", "flow")
    print(f"\nmilliseconds for each of {tasks} trivial tasks, median (flow: of the whole flow, start and end too)")
    print(f"{'':<12}" + "".join(f"{column:>10}" for column in columns) + f"{'cpu':>10}")
    table = {
        name: {column: statistics.median(one[column] for one in found) * 1000 / tasks for column in columns}
        for name, found in measured.items()
        if found
    }
    for name, row in table.items():
        row["cpu"] = row["driver"] + row["workers"]
        print(f"{name:<12}" + "".join(f"{row[column]:>10.2f}" for column in (*columns, "cpu")))
    if OURS in table and MODEL in table:
        shares = {column: table[OURS][column] / table[MODEL][column] for column in ("wall", "cpu")}
        print(f"ours against {MODEL}: wall {shares['wall']:.3f}, driver and engines' CPU {shares['cpu']:.3f}; aim 0.2")


# a supervisor


def _supervise(options: argparse.Namespace) -> None:
    become_subreaper()
    with tempfile.TemporaryDirectory(prefix="ib-") as folder:
        Path(folder, "tmp").mkdir()
        asked = ["--session", options.supervise, folder, "--tasks", options.tasks, "--engines", options.engines]
        environment = {**os.environ, "TMPDIR": f"{folder}/tmp", "IPCLUSTER_STORE": f"file:{folder}/store"}
        ending = supervise([sys.executable, __file__, *map(str, asked)], environment, Path(folder), options.limit)
        results = Path(folder, "results.json")
        if ending.error or not results.exists():
            print(json.dumps({"error": ending.error + Path(folder, "session.log").read_text()[-3000:]}))
        else:
            print(results.read_text())


# a session


def _runner(name: str, engines: int) -> Any:  # noqa: ANN401 - whatever the runner is
    match name:
        case "threads":
            from prefect.task_runners import ThreadPoolTaskRunner

            return ThreadPoolTaskRunner(max_workers=engines)
        case "processes":
            from prefect.task_runners import ProcessPoolTaskRunner

            return ProcessPoolTaskRunner(max_workers=engines)
        case "dask":
            from prefect_dask import DaskTaskRunner

            workers = {"n_workers": engines, "threads_per_worker": 1, "dashboard_address": None}
            return DaskTaskRunner(cluster_kwargs=workers)
        case _:
            from prefect_ipcluster import IPClusterTaskRunner

            return IPClusterTaskRunner(n=engines)


def _measure(name: str, folder: str, tasks: int, engines: int) -> None:
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    meter = Meter(folder)
    results: dict[str, float] = {}

    @task(cache_policy=NO_CACHE)
    def trivial(number: int) -> int:
        return number

    def timed(run: Callable[[], object]) -> None:
        cpu, driver, start = meter.cpu(), time.process_time(), time.perf_counter()
        run()
        results["wall"] = time.perf_counter() - start
        results["driver"] = time.process_time() - driver
        results["workers"] = meter.cpu() - cpu - results["driver"]

    @flow(task_runner=_runner(name, engines))
    def measured() -> None:
        trivial.map(range(4 * engines)).result()  # what is made once: connections, contexts, imports
        timed(lambda: trivial.map(range(tasks)).result())

    start = time.perf_counter()
    measured()
    results["flow"] = time.perf_counter() - start
    meter.closing()
    Path(folder, "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
