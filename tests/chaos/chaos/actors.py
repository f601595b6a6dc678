"""Other processes of a round, and those of the cluster: started, found and disturbed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipcluster_core import errors, open_store
from ipcluster_core.incarnation import find_record
from ipcluster_core.process import Identity, children, liveness
from ipcluster_core.record import Liveness, Record

__all__ = ["Actor", "kill", "parts", "pause", "record_of"]

_PROGRAM = Path(__file__).resolve().parents[1] / "actor.py"


class Actor:
    """A process of ours that waits for its line.

    Parameters
    ----------
    role, wanted
        See `actor.py`.
    log
        Where its standard error goes.
    """

    def __init__(self, role: str, wanted: Mapping[str, Any], log: Path) -> None:
        self.role, self.wanted = role, wanted
        self.killed = self.went = False
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, _PROGRAM, role, json.dumps(wanted)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )

    def wait_ready(self, seconds: float) -> None:
        """Wait until it waits for its line, or has ended."""
        if self.process.stdout is not None:
            select.select([self.process.stdout], [], [], seconds)

    def go(self) -> None:
        """Let it act."""
        if not self.went and self.process.stdin is not None:
            self.went = True
            with suppress(BrokenPipeError):
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()

    def kill(self) -> bool:
        """SIGKILL it; return whether it was there."""
        if self.process.poll() is not None:
            return False
        self.killed = True
        self.process.kill()
        return True

    def said(self, deadline: float) -> dict[str, Any]:
        """Return what it printed; an object with "failed" when it failed, or hung until the deadline."""
        try:
            out, _ = self.process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"failed": f"{self.role} hangs: {self._log.read_text()[-2000:]}"}
        if self.killed:
            return {}
        try:
            return dict(json.loads(out.splitlines()[-1]))
        except (ValueError, IndexError):
            return {"failed": f"{self.role} exit code {self.process.returncode}: {self._log.read_text()[-2000:]}"}


def record_of(name: str) -> Record | None:
    """Return a cluster's record, None when it has none."""
    found = find_record(open_store(), name)
    return None if found is None else found[0]


def parts(name: str) -> dict[str, list[int]]:
    """Return the pids of a cluster's nanny, controller, broker and engines, as far as they live."""
    try:
        record = record_of(name)
    except errors.StoreError:
        return {}
    nanny = None if record is None or record.head is None else record.head.nanny
    if nanny is None or liveness(Identity.from_dict(nanny)) is not Liveness.ALIVE:
        return {}
    pid = int(nanny["pid"])
    found: dict[str, list[int]] = {"nanny": [pid]}
    for child in children(pid):
        with suppress(OSError):
            # Each part writes to a log of its own.
            part = Path(f"/proc/{child}/fd/1").readlink().name.removesuffix(".log").partition("-")[0]
            found.setdefault(part, []).append(child)
    return found


def kill(pids: Iterable[int]) -> bool:
    """SIGKILL processes; those of a cluster are stopped first, so that none acts on the end of another."""
    done = False
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
                done = True
    return done


def pause(pid: int, seconds: float) -> bool:
    """Stop a process for a while; return whether it was there."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        time.sleep(seconds)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
