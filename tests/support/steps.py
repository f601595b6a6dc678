"""Steps as other processes, and the parts of a cluster as the kernel sees them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import leaks
from ipcluster_core import open_store
from ipcluster_core.process import TAG_VARIABLE, children
from ipcluster_core.record import Record

PROC = Path("/proc")

#: Marks what this test run has started.
RUN = f"{leaks.RUN_VARIABLE}={leaks.RUN}".encode()


def wait_until(condition: Callable[[], object], timeout: float = 10.0) -> float:
    """Wait until a condition holds; return how long it took, fail when it does not come to hold."""
    start = time.monotonic()
    while not condition():
        passed = time.monotonic() - start
        assert passed < timeout, f"{condition} did not hold within {timeout:g} s"
        time.sleep(0.01)
    return time.monotonic() - start


def record_of(name: str) -> Record:
    """Return a cluster's record from the test's store."""
    document = open_store().read("record", name)
    assert document is not None
    return Record.from_dict(document.value)


def secret_of(name: str) -> str:
    """Return a running cluster's secret from the test's store."""
    document = open_store().read("secret", record_of(name).secret)
    assert document is not None
    return str(document.value["key"])


def living(name: str) -> list[int]:
    """Return the pids of all processes of this test run that carry the tag of any incarnation of a cluster."""
    needle = f"{TAG_VARIABLE}={name}/".encode()
    found = []
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if RUN in variables and any(variable.startswith(needle) for variable in variables):
                found.append(int(folder.name))
    return found


def part(name: str, which: str) -> int:
    """Return the pid of a cluster's nanny, controller or broker."""
    nanny = record_of(name).jobs[0].nanny
    assert nanny is not None
    pid = int(nanny["pid"])
    if which == "nanny":
        return pid
    for child in children(pid):
        # Each part writes to its own log.
        if (PROC / str(child) / "fd" / "1").readlink().name == f"{which}.log":
            return child
    raise AssertionError(f"cluster {name!r} has no {which}")


def store_folder() -> Path:
    """Return the folder of the test's store."""
    return Path(open_store().url.partition(":")[2])


def left_in_store() -> list[str]:
    """Return the documents in the test's store, and whatever else is there, as the first two parts of each path."""
    return sorted("/".join(Path(path).parts[:2]) for path in files_of_store())


def files_of_store() -> set[str]:
    """Return the files in the test's store, as paths below its root."""
    root = store_folder()
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def run_step(code: str, *args: str, timeout: float = 60.0) -> str:
    """Run Python code as a step of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@contextmanager
def started_step(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python code as a step of its own; it is killed, if need be, and reaped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ctl(*args: str, timeout: float = 60.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line and return what came of it; a traceback is a failure whatever was expected."""
    done = subprocess.run(
        [sys.executable, "-m", "ipcluster_core.cli", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        input=stdin,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
