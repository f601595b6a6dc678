"""A head nanny's outpost on another host: whatever ranks find in the cluster's folder at the head, they find here.

::

    head                              |  another host
    nanny -- relay -- ssh ===== trunk ====== outpost         (stdin and stdout, which ssh has encrypted)
              |                       |        |-- task, ranks     sockets of the same names
              |-- task, ranks         |        |-- output-k        pipes of the same names
              |-- output-k, journal-k |        |-- journal-k       copied to the head as it is written
              '-- errand <-- mpiexec  |        '-- errands         what mpiexec starts here, ranks too

It runs in a folder of its own, which only its user may enter, with a secret that has come through the trunk. It ends
when it is told to, when the trunk does, and when nothing was heard for a while; all of the set that runs on this host
ends with it, whatever became of the head. A guard above it does the same when it dies itself.

Run by the relay as ``python -m ipcluster_core.outpost``.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import descriptors, journal, mpi, process, remains
from .channel import listen
from .errand import run as run_errand
from .forking import fork
from .incarnation import TASK
from .junction import Junction
from .mirror import Mirror, carry_out
from .process import Identity
from .record import secret_key_of
from .segments import folder_of
from .store import open_store
from .trunk import PREAMBLE, Event, Opened, Told, Trunk, Write

__all__ = ["main"]

#: Seconds after which what could not be killed is given up.
_END_SECONDS = 10.0

#: Seconds for the last words to leave.
_FAREWELL_SECONDS = 5.0

#: Seconds between two looks at journals of ranks that have just been spoken to, and of those that work on and on.
_LOOK_SECONDS, _LATER_LOOK_SECONDS = 0.005, 0.05

#: Seconds for which a rank counts as just spoken to.
_LIVELY_SECONDS = 0.5

#: Seconds between two looks at whether what is being ended has gone.
_PUMP_SECONDS = 0.02


class Outpost:
    """Runs until the head is gone, or says that it is over.

    Parameters
    ----------
    boot
        What the relay says first.
    folder
        Of this outpost alone; empty.
    trunk, reading, writing
        The way to the head.
    """

    def __init__(self, boot: Mapping[str, Any], folder: str, trunk: Trunk, reading: int, writing: int) -> None:
        self._boot = boot
        self._folder = folder
        self._junction = Junction(trunk, reading, writing, before=self._tell_news, poked=self._on_wishes)
        self._trunk = trunk
        self._lively_until = 0.0
        self._memories: list[mmap.mmap] = []
        self._outputs: dict[int, str] = {}  # pipes into which nothing was written yet, by descriptor
        self._listeners: dict[int, tuple[socket.socket, str]] = {}
        self._grace: float | None = None
        self._soft_limit = descriptors.raise_limit()

    def run(self) -> None:
        """Serve to the end; nothing of the set is left on this host then."""
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _wake_only)
        self._build()
        self._trunk.tell({"ready": os.uname().nodename})
        while self._grace is None and not self._junction.lost:
            self._turn(self._seconds())
        self._end(self._grace or 0.0)

    def _build(self) -> None:
        """Make what ranks look for."""
        document, folder, tag = dict(self._boot["document"]), self._folder, str(self._boot["tag"])
        store = open_store(f"file:{folder}/store")
        store.create("secret", secret_key_of(tag), {"key": self._boot["secret"]})
        document |= {"store": store.url, "folder": folder, "outpost": self._boot["host"]}
        with open(os.path.join(folder, mpi.BOOT), "x") as file:
            json.dump(document, file)
        for rank in range(int(document["ranks"])):
            path = os.path.join(folder, f"journal-{rank}")
            fd = journal.make_file(path)
            journal.Journal(fd).close()  # it says that nothing has begun, as the copy does
            os.close(fd)
            self._memories.append(journal.map_file(path))
            name = f"output-{rank}"
            os.mkfifo(os.path.join(folder, name), 0o600)
            # For both, so that it never comes to its end.
            self._outputs[os.open(os.path.join(folder, name), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)] = name
        self._mirrors = [Mirror(memory) for memory in self._memories]
        for name in (TASK, mpi.RANKS):
            listener = listen(folder, name)
            self._listeners[listener.fileno()] = listener, name

    # serving

    def _seconds(self) -> float | None:
        """Return when to look at the journals again: memory cannot be waited for."""
        if time.monotonic() < self._lively_until:
            return _LOOK_SECONDS
        return _LATER_LOOK_SECONDS if any(mirror.is_busy for mirror in self._mirrors) else None

    def _turn(self, timeout: float | None) -> None:
        ready, events = self._junction.turn((self._wake, *self._listeners, *self._outputs), timeout)
        for fd in ready:
            if fd == self._wake:
                os.read(fd, 512)
                self._grace = 0.0
            elif fd in self._listeners:
                self._accept(*self._listeners[fd])
            else:
                self._junction.open(self._outputs.pop(fd), reading=fd)
        for event in events:
            self._on_event(event)
        self._tell_news()

    def _accept(self, listener: socket.socket, name: str) -> None:
        with suppress(OSError):  # it has gone again, or no descriptor is to be had
            end, _ = listener.accept()
            end.settimeout(0)
            fd = end.detach()
            self._junction.open(name, reading=fd, writing=fd)

    def _on_event(self, event: Event) -> None:
        match event:
            case Opened(number, mpi.ERRAND):
                self._start_errand(number)
            case Opened(number, _):
                self._junction.refuse(number)
            case Told(message) if message.get("do") == "end":
                self._grace = float(message["grace"])
            case _:
                pass

    def _on_wishes(self, rank: int, writes: Sequence[Write]) -> None:
        """Take over which tasks are to be left, before the signal for it gets to the rank's nanny."""
        if rank < len(self._memories):
            self._lively_until = time.monotonic() + _LIVELY_SECONDS
            carry_out(self._memories[rank], writes)

    def _tell_news(self) -> None:
        """Carry over what ranks have noted, before what they say."""
        for rank, mirror in enumerate(self._mirrors):
            news = mirror.news()
            if news:
                self._lively_until = time.monotonic() + _LIVELY_SECONDS
                self._trunk.poke(rank, news)

    def _start_errand(self, number: int) -> None:
        """Have a child of this process do what mpiexec wants done here."""
        here, there = socket.socketpair()
        here.settimeout(0)
        document, parent = self._boot["document"], os.getpid()
        marks = {
            process.TAG_VARIABLE: str(self._boot["tag"]),
            mpi.MARK_VARIABLE: str(self._boot["mark"]),
            process.OUTPOST_VARIABLE: self._folder,
            # Whatever Open MPI leaves behind goes with it.
            "PRTE_MCA_prte_remote_tmpdir_base": self._folder,
        }

        def role() -> None:
            process.die_with_parent(parent)
            descriptors.lower_limit(self._soft_limit)
            run_errand(there, {**os.environ, **document["env"], **marks})

        out = os.dup(2)
        with there:
            fork(role, out, (there.fileno(),))
        os.close(out)
        fd = here.detach()
        self._junction.accept(number, reading=fd, writing=fd)

    # the end

    def _end(self, grace: float) -> None:
        """End all of the set on this host, and let the head know what it had to say."""
        for listener, _ in self._listeners.values():
            listener.close()
        self._listeners.clear()
        shared = remains.find(self._mine())
        left = process.end_all(self._mine, grace=grace, timeout=_END_SECONDS, wait=self._pump)
        remains.unlink(shared)
        if not self._junction.lost:
            deadline = time.monotonic() + _FAREWELL_SECONDS
            self._turn(0.0)
            while self._junction.has_more() and not self._junction.lost and time.monotonic() < deadline:
                self._turn(_PUMP_SECONDS)
            self._trunk.tell({"gone": [str(who) for who in left]})
            self._junction.finish(_FAREWELL_SECONDS)
        remains.remove(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mine(self) -> list[int]:
        return [pid for pid in _members(self._folder) if pid != os.getppid()]

    def _pump(self, alive: list[Identity], timeout: float) -> None:
        """Wait for processes to end, and let them say what they have to say."""
        deadline = time.monotonic() + timeout
        while alive and (remaining := deadline - time.monotonic()) > 0:
            alive = process.wait_gone(alive, min(_PUMP_SECONDS, remaining))
            if not self._junction.lost:
                self._turn(0.0)


def _members(folder: str) -> list[int]:
    """Return what runs for an outpost: by its mark, or below this process."""
    return [*process.carrying(f"{process.OUTPOST_VARIABLE}={folder}"), *process.descendants(os.getpid())]


# before and after it


def _await_boot(junction: Junction) -> Mapping[str, Any] | None:
    """Return what the relay says first; None when it is gone before."""
    while not junction.lost:
        _, events = junction.turn(())
        for event in events:
            if isinstance(event, Told):
                return event.message
    return None


def _make_folder() -> str:
    """Return a new folder for this outpost: in memory where that can be had, else on disk."""
    with suppress(OSError):
        return tempfile.mkdtemp(prefix="ipcluster-outpost-", dir=os.path.dirname(folder_of("")))
    return tempfile.mkdtemp(prefix="ipcluster-outpost-")


def _guard(folder: str) -> None:
    """Go on in a child; when that is gone, however that came, see to it that nothing is left, and end."""
    process.own_subreaper()
    child = os.fork()
    if child == 0:
        return
    process.close_all_but(())
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    pid, status = os.waitpid(-1, 0)
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    shared = remains.find(_members(folder))
    process.end_all(lambda: _members(folder), grace=0.0, timeout=_END_SECONDS)
    remains.unlink(shared)
    remains.remove(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(min(255, abs(os.waitstatus_to_exitcode(status))))


def main() -> None:
    """Be an outpost."""
    process.reset_signals()
    os.umask(0o077)
    reading, writing = os.dup(0), os.dup(1)
    process.close_input()
    os.dup2(2, 1)
    os.write(writing, PREAMBLE)
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    trunk = Trunk(time.monotonic(), first=2)
    boot = _await_boot(Junction(trunk, reading, writing, before=lambda: None, poked=lambda _rank, _writes: None))
    if boot is None:
        return
    folder = _make_folder()
    _guard(folder)
    # What has no parent is the guard's; errands are children here, and nobody asks how they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    Outpost(boot, folder, trunk, reading, writing).run()


def _wake_only(signum: int, frame: object) -> None:
    """Let the wake-up pipe tell of the signal, and nothing else."""


if __name__ == "__main__":
    main()
    sys.exit(0)
