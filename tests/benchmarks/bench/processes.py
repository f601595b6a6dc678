"""All processes of a session, and the CPU that they have used, wherever they went.

A session's processes detach, end, and leave children behind. This process is their subreaper, so whatever loses its
parent becomes its child: at any moment everything that lives is below this process, and everything that has ended was
waited for either by this process or by one that is below it.

The CPU of a living process comes from its own clock in nanoseconds, ended threads included; that of ended ones from
``getrusage(RUSAGE_CHILDREN)`` here, and from ``cutime`` and ``cstime`` in ``/proc/<pid>/stat`` of those that waited
for them (in ticks of 10 ms; the session tells its own exactly). The one thing that is lost is the CPU of processes
that have ended and whose parent ignores SIGCHLD, for the kernel keeps it nowhere: ray's raylet does, in ray's favour.

References
----------
clock_getcpuclockid(3), prctl(2) PR_SET_CHILD_SUBREAPER, proc(5), getrusage(2)
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Life", "Tree", "become_subreaper", "clock_ns", "open_pidfd"]

_PR_SET_CHILD_SUBREAPER = 36
_SHARED = "/dev/shm/"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: How often a sum is begun again because a process came or went meanwhile.
_TRIES = 8


@dataclass(frozen=True, order=True)
class Life:
    """A process, told apart from others that had its pid by its start (clock ticks since boot)."""

    pid: int
    start: int


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    ended_ticks: int
    start: int


def become_subreaper() -> None:
    """Become the parent of whatever loses its own below this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _stat(pid: int) -> _Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(fields[0].decode(), int(fields[1]), int(fields[13]) + int(fields[14]), int(fields[19]))


def clock_ns(pid: int) -> int:
    """Return the CPU that a process has used, also when it has ended and was not waited for; 0 when it is gone."""
    try:
        # What clock_getcpuclockid(3) returns for a process.
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError:
        return 0


def _ended_ns() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)


class Tree:
    """What is below this process since the tree was made. There must be nothing below it then."""

    def __init__(self) -> None:
        self._ended_before = _ended_ns()

    def lives(self) -> dict[Life, int]:
        """Return the processes, zombies included, with their parents' pids."""
        return {life: stat.parent for life, stat in self._scan().items()}

    @staticmethod
    def _scan() -> dict[Life, _Stat]:
        stats = {pid: stat for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (stat := _stat(pid))}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        found, queue = {}, list(children.get(os.getpid(), ()))
        while queue:
            pid = queue.pop()
            found[Life(pid, stats[pid].start)] = stats[pid]
            queue += children.get(pid, ())
        return found

    def reap(self) -> dict[int, int]:
        """Wait for whatever has ended here; return statuses by pid."""
        found = {}
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                found[pid] = status
        return found

    def cpu_ns(self, client: int = 0, client_ended_ns: int = 0) -> int:
        """Return the CPU of all that is and was below this process; `client` has said what its ended children used."""
        total = 0
        for _ in range(_TRIES):
            before = self._scan()
            total = _ended_ns() - self._ended_before
            for life, stat in before.items():
                told = life.pid == client
                ended = client_ended_ns if told else stat.ended_ticks * 1_000_000_000 // _TICKS_PER_SECOND
                total += clock_ns(life.pid) + ended
            # Who ended meanwhile may be counted twice or not at all.
            if self._scan().keys() == before.keys():
                break
        return total

    def without(self, client: int) -> list[Life]:
        """Return what is below this process, but for a client and its ancestors."""
        lives = self.lives()
        parents = {life.pid: parent for life, parent in lives.items()}
        left_out = set()
        while client in parents:
            left_out.add(client)
            client = parents[client]
        return sorted(life for life in lives if life.pid not in left_out)

    def shared_memory(self) -> set[str]:
        """Return the files in /dev/shm that the processes have mapped."""
        found = set()
        for life in self.lives():
            with suppress(OSError):
                lines = Path(f"/proc/{life.pid}/maps").read_text().splitlines()
                found |= {_SHARED + path for line in lines if (path := line.partition(_SHARED)[2])}
        return {path for path in found if not path.endswith("(deleted)")}

    def commands(self) -> list[str]:
        """Return the command lines of what lives."""
        found = []
        for life, stat in self._scan().items():
            if stat.state != "Z":
                with suppress(OSError):
                    found.append(Path(f"/proc/{life.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        return found

    def kill(self, seconds: float = 10.0) -> bool:
        """Kill all that is below this process; return whether nothing is left."""
        deadline = time.monotonic() + seconds
        while lives := self._scan():
            if time.monotonic() > deadline:
                return False
            pidfds = [pidfd for life in lives if (pidfd := open_pidfd(life)) is not None]
            poller = select.poll()
            for pidfd in pidfds:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                poller.register(pidfd, select.POLLIN)
            poller.poll(100)
            for pidfd in pidfds:
                os.close(pidfd)
            self.reap()
        return True


def open_pidfd(life: Life) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if it is gone."""
    try:
        pidfd = os.pidfd_open(life.pid)
    except OSError:
        return None
    stat = _stat(life.pid)
    if stat is None or stat.start != life.start:
        os.close(pidfd)
        return None
    return pidfd
