"""The leak check: a test leaves no process, thread, descriptor or file behind.

    before = take_snapshot() -> the test -> wait_until_clean(before, policy) -> what is left, or nothing

`since` and `ours` decide and are pure; the rest reads `/proc` and the temporary folders. Without `/proc` (macOS) only
threads and files are seen.

A process is ours if it descends from this one, or if its environment carries this run's mark, which every child
inherits through any number of detachments. A process with a cluster's tag but without any run's mark is reported, since
it may have lost the mark, but never ended: it may be the cluster of the person at the keyboard.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import uuid4

#: Environment variable that marks what this test run starts.
RUN_VARIABLE = "IPCLUSTER_TEST_RUN"
#: Environment variable that tags every process of a cluster.
TAG_VARIABLE = "IPCLUSTER_TAG"
#: This run's mark; `mark_run` puts it into the environment.
RUN = f"{os.getpid()}-{uuid4().hex[:8]}"

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")

#: Names of files there and in the temporary folder that nobody but we, and the MPIs that we start, makes.
OUR_FILES = ("ipcluster*", "sm_segment.*", "mpich_shm_*", "hydra_hwloc_xmlfile_*")

#: What one event loop holds open.
LOOP_DESCRIPTORS = Counter({"anon_inode:[eventpoll]": 1, "socket": 2})


@dataclass(frozen=True)
class Policy:
    """What a test may leave behind: shell patterns of names, and for how long the rest may linger."""

    #: Names of threads that run an event loop, and live as long as the process: here that of the blocking twins.
    loops: tuple[str, ...] = ("ipcluster-loop",)
    #: Names of other threads.
    threads: tuple[str, ...] = ("ipcluster-loop-worker*",)
    #: Command lines.
    processes: tuple[str, ...] = ()
    #: Targets of descriptors, such as `socket:*` or a path.
    descriptors: tuple[str, ...] = ()
    #: Seconds that leftovers have to vanish.
    patience: float = 5.0


@dataclass(frozen=True)
class Process:
    """A process: equal to another one if both are the same life of the same pid."""

    pid: int
    #: Clock ticks from boot to the start of the process.
    started: int
    parent: int = field(default=0, compare=False)
    zombie: bool = field(default=False, compare=False)
    command: str = field(default="", compare=False)
    #: Mark of the test run that it comes from, empty if unknown.
    run: str = field(default="", compare=False)
    #: Whether it belongs to a cluster.
    tagged: bool = field(default=False, compare=False)
    #: Random id of that cluster's incarnation, which also names its folder in shared memory.
    uid: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"process {self.pid}{' (zombie)' if self.zombie else ''}: {self.command}"


@dataclass(frozen=True)
class Snapshot:
    """What exists at one moment, or the part of it that a test left behind."""

    processes: frozenset[Process] = frozenset()
    #: Native id and name.
    threads: frozenset[tuple[int, str]] = frozenset()
    #: Number and target.
    descriptors: frozenset[tuple[int, str]] = frozenset()
    files: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return any((self.processes, self.threads, self.descriptors, self.files))

    def __str__(self) -> str:
        lines = [str(process) for process in sorted(self.processes, key=lambda process: process.pid)]
        lines += [f"thread {name}" for _, name in sorted(self.threads)]
        lines += [f"descriptor {number}: {target}" for number, target in sorted(self.descriptors)]
        lines += [f"file {path}" for path in sorted(self.files)]
        return "\n".join(lines)


def mark_run() -> None:
    """Mark all that this process starts from now on as part of this run."""
    os.environ[RUN_VARIABLE] = RUN


def take_snapshot() -> Snapshot:
    """See what exists now."""
    processes = list(all_processes())
    # Another run on this machine may have living clusters of its own.
    foreign = {process.uid for process in processes if process.run not in ("", RUN)}
    return Snapshot(
        processes=frozenset(ours(processes, os.getpid(), RUN)),
        threads=frozenset((thread.native_id or 0, thread.name) for thread in threading.enumerate()),
        descriptors=frozenset(own_descriptors()),
        files=frozenset(
            str(path)
            for folder in (SHARED_MEMORY, Path(tempfile.gettempdir()))
            for pattern in OUR_FILES
            for path in folder.glob(pattern)
            if path.name.removeprefix("ipcluster-") not in foreign
        ),
    )


def wait_until_clean(before: Snapshot, policy: Policy) -> Snapshot:
    """Wait for what came after a snapshot to vanish, and tell what did not within the policy's patience."""
    deadline = time.monotonic() + policy.patience
    left = since(before, take_snapshot(), policy)
    if left:
        gc.collect()  # garbage in a cycle holds its descriptors until then
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = since(before, take_snapshot(), policy)
    return left


def end(left: Snapshot) -> None:
    """Kill the processes among the leftovers that are certainly from this run, so that the next test starts clean."""
    descendants = {process.pid for process in descending(list(all_processes()), {os.getpid()})}
    for process in left.processes:
        if process.run == RUN or process.pid in descendants:
            kill(process)


def kill(process: Process) -> None:
    """Kill a process unless its pid has passed to another one."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if read_process(process.pid) == process:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def since(before: Snapshot, after: Snapshot, policy: Policy) -> Snapshot:
    """Decide which things of the second snapshot are leftovers: not in the first one, and not allowed."""
    threads = after.threads - before.threads
    loops = {thread for thread in threads if matches(thread[1], policy.loops)}
    return Snapshot(
        processes=frozenset(
            process for process in after.processes - before.processes if not matches(process.command, policy.processes)
        ),
        threads=frozenset(thread for thread in threads - loops if not matches(thread[1], policy.threads)),
        descriptors=frozenset(
            (number, target)
            for number, target in without_loops(after.descriptors - before.descriptors, len(loops))
            if not matches(target, policy.descriptors)
        ),
        files=after.files - before.files,
    )


def without_loops(descriptors: Iterable[tuple[int, str]], loops: int) -> Iterator[tuple[int, str]]:
    """Leave out the descriptors that a number of new event loops hold."""
    held = Counter({kind: count * loops for kind, count in LOOP_DESCRIPTORS.items()})
    for number, target in sorted(descriptors):
        kind = "socket" if target.startswith("socket:") else target
        if held[kind] > 0:
            held[kind] -= 1
        else:
            yield number, target


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a name fits one of some shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def ours(processes: list[Process], own_pid: int, run: str) -> set[Process]:
    """Choose the processes that come from a test run, and those of clusters that might."""
    marked = {
        process
        for process in processes
        if process.pid != own_pid and (process.run == run or (process.tagged and not process.run))
    }
    return marked | descending(processes, {own_pid, *(process.pid for process in marked)})


def descending(processes: list[Process], ancestors: set[int]) -> set[Process]:
    """Choose the children, grandchildren and so on of some pids."""
    found: set[Process] = set()
    parents = ancestors
    while parents:
        children = {process for process in processes if process.parent in parents} - found
        found |= children
        parents = {process.pid for process in children}
    return found


def all_processes() -> Iterator[Process]:
    """Read all processes of this machine that we may read."""
    for folder in PROC.glob("[0-9]*"):
        process = read_process(int(folder.name))
        if process is not None:
            yield process


def read_process(pid: int) -> Process | None:
    """Read one process, None if it is gone.

    References
    ----------
    proc(5), `/proc/pid/stat`: the command's name may hold spaces and parentheses, so fields are counted from the last
    closing one.
    """
    folder = PROC / str(pid)
    try:
        name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(") ")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = rest.split()
    environment = dict(entry.partition("=")[::2] for entry in read_strings(folder / "environ"))
    return Process(
        pid=pid,
        started=int(fields[19]),
        parent=int(fields[1]),
        zombie=fields[0] == "Z",
        command=" ".join(read_strings(folder / "cmdline")) or name.partition("(")[2],
        run=environment.get(RUN_VARIABLE, ""),
        tagged=TAG_VARIABLE in environment,
        uid=environment.get(TAG_VARIABLE, "").rpartition("/")[2],
    )


def read_strings(path: Path) -> list[str]:
    """Read strings that end in a null byte: none of a zombie (empty, or an error), nor of what is another user's."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return content.decode(errors="replace").rstrip("\0").split("\0")


def own_descriptors() -> Iterator[tuple[int, str]]:
    """Read this process's open descriptors, without the one that reads them."""
    folder = PROC / "self" / "fd"
    for path in folder.glob("*"):
        try:
            yield int(path.name), str(path.readlink())
        except FileNotFoundError:
            continue
