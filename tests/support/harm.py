"""What befalls clusters in the cases: everything killed at once, a stranger under a recorded pid, a small machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import steps
from ipcluster_core import open_store

#: The parts that could act on one another's death.
PARTS = ("nanny", "controller", "broker")


def kill_everything(name: str) -> None:
    """SIGKILL all processes of a cluster so that none can act on the death of another: they are stopped first."""
    for which in PARTS:
        os.kill(steps.part(name, which), signal.SIGSTOP)
    pids = steps.living(name)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    steps.wait_until(lambda: not any(lives(pid) for pid in pids))


def lives(pid: int) -> bool:
    """Tell whether there is a process of that pid that has not ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def rewrite_nanny(name: str, **changes: Any) -> None:
    """Change what a cluster's record says of its nanny: "pid", "boot", "host", "namespace" or "start"."""
    store = open_store()
    document = store.read("record", name)
    assert document is not None
    value = dict(document.value)
    value["jobs"][0]["nanny"].update(changes)
    store.swap("record", name, value, document.version)


@contextmanager
def stranger(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that has nothing to do with clusters: it must be alive at the end."""
    process = subprocess.Popen(command or ("sleep", "1000"), start_new_session=True)
    try:
        yield process
        assert process.poll() is None, "a stranger was killed"
    finally:
        process.kill()
        process.wait()


def as_first_process(code: str, *, before: str = "", timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run Python code as PID 1 of a PID namespace with mounts of its own, as in a container without an init.

    Parameters
    ----------
    code
        Gets `subprocess`, `ctl` (the command line; a traceback is a failure) and `defunct` (pids of zombies).
    before
        Shell commands that set the scene, such as mounts.
    timeout
        Seconds.
    """
    head = """
        import os, signal, subprocess, sys, time
        from pathlib import Path

        def ctl(*args, code=0):
            command = [sys.executable, "-m", "ipcluster_core.cli", *args]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert "Traceback" not in done.stderr, done.stderr
            assert code is None or done.returncode == code, (args, done)
            return done

        def stat(pid):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

        def defunct():
            found = []
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if stat(folder.name)[0] == "Z":
                        found.append(int(folder.name))
                except (FileNotFoundError, ProcessLookupError):
                    pass
            return found

        def others():
            return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if folder.name != str(os.getpid())]

        def until(condition, timeout=15):
            start = time.monotonic()
            while not condition():
                assert time.monotonic() - start < timeout, "not within %s s" % timeout
                time.sleep(0.01)
            return time.monotonic() - start

        assert os.getpid() == 1
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    script = f'set -e\n{before}\nexec "$0" -c "$1"'
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "sh",
        "-c",
        script,
        sys.executable,
        program,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
