"""The benchmarks run: what they print and write is there and makes sense. How fast anything is, is not asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

#: Starts a detached process, a thread and a child that each use CPU and have ended or live on when it is asked.
BUSY = """
import os, sys, threading, time

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

from bench.meter import Meter

meter = Meter(sys.argv[1])
first = meter.cpu()
thread = threading.Thread(target=burn, args=(0.2,))
thread.start()
thread.join()
child = os.fork()
if child == 0:
    burn(0.2)
    os._exit(0)
os.waitpid(child, 0)
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    burn(0.2)
    os.write(tell, b"x")
    time.sleep(60)
os.wait()
os.read(ready, 1)
print(meter.cpu() - first, len(meter.others()))
"""


def run(*arguments: str) -> str:
    """Run a program of this folder as a person would."""
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=HERE, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], bytes]:
    """Output, JSON and chart of a quick run against the standard library's pool."""
    pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("run")
    written = ["--json", str(folder / "run.json"), "--plot", str(folder / "run.png"), "--work", str(folder)]
    text = run("run.py", "--quick", "--peers", "ours,futures", "--passes", "1", "--engines", "2", *written)
    return text, json.loads((folder / "run.json").read_text()), (folder / "run.png").read_bytes()


def test_every_session_ends_well_and_leaves_nothing(results: tuple[str, dict[str, Any], bytes]) -> None:
    """No session fails, hangs, or leaves a process or shared memory behind."""
    _, found, _ = results
    failures = [
        session
        for session in found["sessions"]
        if session["error"] or session["left"] or any("error" in values for values in session["results"].values())
    ]

    assert failures == []


def test_every_figure_is_measured_and_plausible(results: tuple[str, dict[str, Any], bytes]) -> None:
    """Ours has each measure that there is, as a number that can be true."""
    from_ours = {key: row["ours"] for key, row in results[1]["summary"].items()}
    # Differences, which noise may make negative; and a number of losses.
    signed = {"growth.cpu", "imports.cpu", "restart_busy.others_lost"}

    assert {"cold.wall", "connect.cpu", "submits.rate", "pull.cpu", "teardown.gone", "kill.wall"} <= from_ours.keys()
    assert [key for key, value in from_ours.items() if not isinstance(value, float)] == []
    assert [key for key, value in from_ours.items() if value <= 0 and key not in signed] == []
    assert from_ours["kill.survives"] == 1.0


def test_the_table_holds_ours_against_the_floors(results: tuple[str, dict[str, Any], bytes]) -> None:
    """Each floor for that peer is judged, and counted in the last line."""
    text, found, _ = results
    judged = [verdict for verdict in found["verdicts"] if verdict["met"] is not None]

    assert len(judged) == len(found["verdicts"]) > 5
    assert text.splitlines()[-1].endswith(f"of {len(judged)} floors met")


def test_the_chart_is_a_picture(results: tuple[str, dict[str, Any], bytes]) -> None:
    """It is a PNG with something on it."""
    assert results[2].startswith(b"\x89PNG")
    assert len(results[2]) > 10_000


def test_cpu_of_threads_children_and_detached_processes_is_counted(tmp_path: Path) -> None:
    """Whatever a session starts is in its sum, also when it has ended or left the process tree; then it is ended."""
    program = tmp_path / "busy.py"
    program.write_text(BUSY)
    watch = (
        "import os, sys, json; from pathlib import Path\n"
        "from bench import supervise; from bench.processes import become_subreaper\n"
        "become_subreaper(); supervise.AFTER_SECONDS = 0.2\n"
        "folder = Path(sys.argv[1])\n"
        "ending = supervise.supervise([sys.executable, sys.argv[2], sys.argv[1]], dict(os.environ), folder, 30.0)\n"
        "print(json.dumps([(folder / 'session.log').read_text(), ending.cpu, ending.left]))\n"
    )
    said, total, left = json.loads(run("-c", watch, str(tmp_path), str(program)))
    counted, others = said.split()

    assert 0.6 <= float(counted) < total
    assert int(others) == len(left) == 1


def test_the_control_plane_is_measured_at_scale() -> None:
    """Simulated engines, queued tasks and records are measured, with the exponents of their growth."""
    text = run("scale.py", "--most-engines", "20", "--most-queued", "2000", "--most-records", "20")

    assert text.count("grows with exponent") == 4
