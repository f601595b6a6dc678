"""C33: what tasks and their children write is not lost, and a flood drowns nobody."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import steps
from ipcluster_core import Client, Cluster

#: Memory that a flood may cost the nanny, who reads it, and the controller together, in bytes.
FLOOD_BYTES = 100 << 20

log = logging.getLogger("pipeline")


def speak() -> None:
    """Write in every way, and be killed right after the last line."""
    import ctypes

    for n in range(100):
        print("print", n)  # noqa: T201 - it is what is looked for
    for n in range(100):
        log.info("log %d", n)
    subprocess.run([sys.executable, "-c", "for n in range(10): print('child', n)"], check=True)
    for n in range(5):
        ctypes.CDLL(None).puts(f"C {n}".encode())
    os.kill(os.getpid(), signal.SIGKILL)


#: A step that attaches, has the task run, and tells what came of it to its own log.
STEP = """
    import logging, sys
    from ipcluster_core import Client, errors
    sys.path.insert(0, sys.argv[1])
    from speaker import speak
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    with Client.connect("c33") as client, client.stream_output():
        try:
            client.options(engines=[1]).submit(speak).result(20)
        except errors.EngineLost as error:
            pass
"""


def numbers(text: str) -> dict[str, list[int]]:
    """Return the numbers that each source wrote, in their order."""
    found: dict[str, list[int]] = {"print": [], "log": [], "child": [], "C": []}
    for line in text.splitlines():
        *_, source, number = ["", *line.split()]
        if source in found and number.isdigit():
            found[source].append(int(number))
    return found


EVERYTHING = {"print": [*range(100)], "log": [*range(100)], "child": [*range(10)], "C": [*range(5)]}


def test_all_that_a_killed_engine_wrote_is_in_the_log_and_in_the_step_that_listens(tmp_path: Path) -> None:
    """C33: prints, records, a child's and C's lines, in order, with the engine's id; the cluster was made elsewhere."""
    speaker = Path(__file__).read_text()
    body = speaker[speaker.index("def speak") : speaker.index("#: A step that")]
    head = "import logging, os, signal, subprocess, sys\nlog = logging.getLogger('pipeline')\n"
    (tmp_path / "speaker.py").write_text(head + body)
    assert steps.ctl("create", "c33", "-n", "2").returncode == 0
    heard = steps.run_step(STEP, str(tmp_path))
    logged = steps.ctl("logs", "c33", "--tail", "1000").stdout

    assert numbers(heard) == EVERYTHING
    mine = [line for line in logged.splitlines() if line.startswith("[engine-1] ")]
    assert numbers("\n".join(mine)) == EVERYTHING
    assert not any(numbers("\n".join(line for line in logged.splitlines() if line not in mine)).values())
    assert steps.ctl("teardown", "c33").returncode == 0


def flood(lines: int) -> None:
    """Print so many lines."""
    for n in range(lines):
        print("line", n)  # noqa: T201 - it is what is looked for


def resident(pid: int) -> int:
    """Return the bytes that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_million_lines_are_bounded_and_those_dropped_are_counted() -> None:
    """C33: less than 100 MB in nanny and controller, and "n lines dropped"; kept and dropped ones add up."""
    with Cluster("c33", n=1) as cluster, Client.connect("c33") as client:
        parts = [steps.part("c33", "nanny"), steps.part("c33", "controller")]
        before = sum(map(resident, parts))
        client.submit(flood, 1_000_000).result(60)

        def told() -> list[str]:
            return cluster.logs_sync([0], tail=1_000_000)["engine-0"].splitlines()

        # The last notice comes within a second of the flood's end.
        steps.wait_until(lambda: "lines dropped" in told()[-1] or told()[-1] == "line 999999")
        lines = told()

        assert sum(map(resident, parts)) - before < FLOOD_BYTES
    dropped = [int(line.split()[1]) for line in lines if line.startswith("[ipcluster]") and "dropped" in line]
    assert dropped
    assert sum(dropped) + len(lines) - len(dropped) == 1_000_000
