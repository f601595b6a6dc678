"""What is known about operating-system processes: who one is, who descends from it, how to end it.

A process is identified by host + boot + PID namespace + pid + start time, never by pid alone: pids are
reused. Where the identity cannot be checked from here, the answer is UNKNOWN, and UNKNOWN is never killed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .record import Liveness

__all__ = [
    "OUTPOST_VARIABLE",
    "STORE_VARIABLE",
    "TAG_VARIABLE",
    "Identity",
    "Tagged",
    "carrying",
    "children",
    "close_all_but",
    "close_input",
    "descendants",
    "describe_exit",
    "die_with_parent",
    "end_all",
    "identify",
    "is_here",
    "liveness",
    "own",
    "own_subreaper",
    "reset_signals",
    "send_signal",
    "tagged",
    "tagged_processes",
    "wait_gone",
    "whereabouts",
]

#: Environment variable that every process of a cluster carries: ``name/incarnation/uid``.
TAG_VARIABLE = "IPCLUSTER_TAG"

#: Environment variable with the URL of a cluster's store: every process of the cluster carries it too.
STORE_VARIABLE = "IPCLUSTER_STORE"

#: Environment variable of the processes of an MPI set on another host than the head's: the folder of their outpost,
#: which has for them what the set's folder has at the head, and ends them.
OUTPOST_VARIABLE = "IPCLUSTER_OUTPOST"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Identity(NamedTuple):
    """One process, told apart from any other that ever had its pid.

    ``start`` is field 22 of ``/proc/<pid>/stat`` (clock ticks since boot), see proc(5).
    """

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a record."""
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Identity:
        """Rebuild from `to_dict`'s data; KeyError, TypeError or ValueError if it is damaged."""
        return cls(str(data["host"]), str(data["boot"]), str(data["namespace"]), int(data["pid"]), int(data["start"]))

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


class _Own:
    """Keeps the pid of this process, to be read without a system call for each task that is submitted."""

    pid = os.getpid()


own = _Own()
os.register_at_fork(after_in_child=lambda: setattr(own, "pid", os.getpid()))


def _here() -> tuple[str, str, str]:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return os.uname().nodename, boot, os.readlink("/proc/self/ns/pid")


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return (state, parent pid, start time) of a process, None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def identify(pid: int | None = None) -> Identity:
    """Return the identity of a process of this host (default: this one).

    Returns
    -------
    Identity
        Also of a zombie.

    Raises
    ------
    ProcessLookupError
        There is no process with that pid.
    """
    pid = os.getpid() if pid is None else pid
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(f"no process with pid {pid}")
    return Identity(*_here(), pid, stat[2])


def is_here(who: Identity) -> bool:
    """Tell whether a process runs, or ran, on this machine since it was last started."""
    return who.boot == _here()[1]


def liveness(who: Identity) -> Liveness:
    """Tell whether that very process lives. A zombie is GONE; another host's process is UNKNOWN."""
    host, boot, namespace = _here()
    if who.boot != boot:
        return Liveness.GONE if who.host == host else Liveness.UNKNOWN
    if who.namespace != namespace:
        return Liveness.UNKNOWN
    stat = _stat(who.pid)
    if stat is None or stat[2] != who.start or stat[0] in "ZX":
        return Liveness.GONE
    return Liveness.ALIVE


def whereabouts(who: Identity) -> str:
    """Say what became of a process that is not known to live, as far as it can be told from here."""
    host, boot, namespace = _here()
    if who.boot != boot:
        here = who.host == host
        return f"host {host!r} has been started anew since" if here else f"{who} cannot be seen from here"
    if who.namespace != namespace:
        return f"{who} is in another PID namespace (a container), and cannot be seen from here"
    stat = _stat(who.pid)
    if stat is not None and stat[2] != who.start:
        return f"pid {who.pid} belongs to another process now"
    return f"{who} is gone"


def send_signal(who: Identity, signum: int) -> bool:
    """Signal that very process.

    The pidfd is opened before the identity is checked, so the check holds for what is signalled.

    Returns
    -------
    bool
        False when it is gone, cannot be told to be the same, or may not be signalled (another user's).
    """
    try:
        pidfd = os.pidfd_open(who.pid)
    except OSError:
        return False
    try:
        if liveness(who) is not Liveness.ALIVE:
            return False
        signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True


def wait_gone(processes: Iterable[Identity], timeout: float) -> list[Identity]:
    """Wait until the processes are gone; return those that were not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    left = [who for who in processes if liveness(who) is Liveness.ALIVE]
    while left and (remaining := deadline - time.monotonic()) > 0:
        _wait_exit(left[0], remaining)
        left = [who for who in left if liveness(who) is Liveness.ALIVE]
    return left


def _wait_exit(who: Identity, timeout: float) -> None:
    """Wait until a process ends; or less, when it cannot be waited for."""
    try:
        pidfd = os.pidfd_open(who.pid)
    except ProcessLookupError:
        return
    except OSError:  # no descriptor is to be had: whoever calls looks again
        time.sleep(min(timeout, 0.01))
        return
    try:
        # A pidfd becomes readable at exit, also for a zombie that its parent has not reaped (pidfd_open(2)).
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if liveness(who) is Liveness.ALIVE:  # else the pid may have gone to another before it was opened
            poller.poll(timeout * 1000)
    finally:
        os.close(pidfd)


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def tagged(tag: str) -> list[int]:
    """Return the pids whose environment, as it was when they were executed, carries the cluster's tag.

    Forked children count too: they share their parent's initial environment block. Processes of other
    users cannot be read and are left out; zombies have no environment.

    Returns
    -------
    list of int
        This process may be among them.
    """
    return carrying(f"{TAG_VARIABLE}={tag}")


def carrying(variable: str) -> list[int]:
    """Return the pids whose environment, as it was when they were executed, has a variable, given as ``NAME=value``."""
    sought = variable.encode()
    return [pid for pid in _pids() if sought in _environment(pid)]


class Tagged(NamedTuple):
    """A process of a cluster: its pid, and the tag and the store's URL in its environment."""

    pid: int
    tag: str
    store: str


def tagged_processes() -> Iterator[Tagged]:
    """Yield this user's processes of all clusters, as far as they are in this PID namespace; never this one.

    A process of another namespace may name a folder of another file system, so nobody here may judge it; one of
    another user may say what it likes.

    Yields
    ------
    Tagged
        Forked children count too, see `tagged`.
    """
    here = _here()[2]
    for pid in _pids():
        environment = _environment(pid)
        # Of a cluster whose head is another host, with a store that may only be called like one here: see `outpost`.
        if _value(environment, OUTPOST_VARIABLE):
            continue
        tag, store = _value(environment, TAG_VARIABLE), _value(environment, STORE_VARIABLE)
        if tag and store and pid != os.getpid() and _is_mine(pid) and _namespace(pid) == here:
            yield Tagged(pid, tag, store)


def _value(environment: list[bytes], variable: str) -> str:
    prefix = f"{variable}=".encode()
    found = next((entry for entry in environment if entry.startswith(prefix)), prefix)
    return found.removeprefix(prefix).decode(errors="replace")


def _is_mine(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def children(parent: int) -> list[int]:
    """Return the pids of a process's children, zombies included."""
    return [pid for pid in _pids() if (stat := _stat(pid)) is not None and stat[1] == parent]


def descendants(root: int) -> list[int]:
    """Return the pids below `root` in the process tree, children before grandchildren, zombies included."""
    by_parent: dict[int, list[int]] = {}
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            by_parent.setdefault(stat[1], []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = by_parent.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def end_all(
    find: Callable[[], Iterable[int]],
    *,
    grace: float,
    timeout: float,
    signum: int = signal.SIGTERM,
    wait: Callable[[list[Identity], float], object] = wait_gone,
) -> list[Identity]:
    """End whatever `find` finds, itself excluded: `signum`, then SIGKILL after `grace` seconds.

    Looks again until nothing is found, because what is being ended may still fork. Safe to repeat. `wait` is called
    to wait for processes, and may do other things meanwhile.

    Returns
    -------
    list of Identity
        What was still there after `timeout` seconds.
    """
    start = time.monotonic()
    signalled: set[Identity] = set()
    while True:
        now = time.monotonic()
        alive = _alive(find())
        if not alive or now - start > timeout:
            return alive
        late = now - start >= grace
        for who in alive:
            if late:
                send_signal(who, signal.SIGKILL)
            elif who not in signalled:
                send_signal(who, signum)
                signalled.add(who)
        until = start + (timeout if late else min(grace, timeout))
        wait(alive, max(0.001, min(0.1 if late else grace, until - now)))


def _alive(pids: Iterable[int]) -> list[Identity]:
    found = []
    for pid in set(pids) - {os.getpid()}:
        with suppress(ProcessLookupError):
            who = identify(pid)
            if liveness(who) is Liveness.ALIVE:
                found.append(who)
    return found


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def close_input() -> None:
    """Let whatever reads standard input from now on, and every child, find it at its end."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when the thread that forked it ends.

    Call it right after the fork. Exits at once when `parent` is already gone (see prctl(2), PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def own_subreaper() -> None:
    """Make orphaned descendants of this process its children, so that it can find and reap them (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def close_all_but(kept: Container[int]) -> None:
    """Close every descriptor of this process but the standard ones and those kept."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with suppress(OSError):  # the listing's own descriptor is closed already
                os.close(fd)


def reset_signals() -> None:
    """Give every signal its default action and an open mask, whatever the creator had set."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_DFL)
    # Writing to a partner that has gone is an error to handle, not a reason to die.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def describe_exit(status: int) -> str:
    """Say in words how a process ended, from its wait status."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        try:
            return f"signal {signal.Signals(signum).name}"
        except ValueError:
            return f"signal {signum}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
