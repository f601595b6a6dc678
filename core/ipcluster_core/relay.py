"""The head's side of an outpost: a child of the nanny that keeps the way to one other host of an MPI set.

It starts ssh, which starts the outpost, and has what the outpost's streams are to reach: the broker's and the nanny's
sockets, the pipes for output, the journals. It runs nobody's code and waits for nobody, so whoever hears nothing from
it for a while knows that the host, the network or the machine is gone.

SIGTERM has the outpost end its ranks with a moment for their exit hooks, SIGINT at once. When the way is lost before
that, the reason is left in a file for the nanny, and the end of this process tells it.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import hosts, journal, mpi, process
from .channel import connect
from .incarnation import TASK, log_path, secret_of, tail_of
from .junction import END_OF_FILE, Junction
from .mirror import Wishes, carry_out
from .store import open_store
from .trunk import Event, Opened, Told, Trunk, Write, after_preamble

__all__ = ["Order", "explain", "run", "verdict_path"]

logger = logging.getLogger("ipcluster.relay")

#: Seconds for a login and the start of an interpreter on the other host.
START_SECONDS = 30.0

#: Seconds that ranks on other hosts get to run their exit hooks before they are killed.
GRACE_SECONDS = 1.0

#: Seconds for an outpost that was told to end.
_END_SECONDS = 12.0

#: Seconds for ssh to end when the trunk has.
_SSH_SECONDS = 2.0

#: Seconds for broker and nanny to take what had come before the end.
_FINISH_SECONDS = 2.0

#: Longest text that a login may print before the outpost speaks, in bytes.
_MOST_NOISE = 1 << 16

#: How a shell ends that finds no such program, or may not run it.
_NO_PROGRAM = ("exit code 126", "exit code 127")


@dataclass(frozen=True, slots=True)
class Order:
    """What a relay has to know.

    `name` is that of its log, `folder` the set's, `document` what ranks find in theirs, `mark` of this set's processes.
    """

    name: str
    host: str
    ssh: Sequence[str]
    folder: str
    mark: str
    document: dict[str, Any]


def verdict_path(folder: str, host: str) -> str:
    """Return the file in which the relay to a host leaves why its way was lost."""
    return os.path.join(folder, f"lost-{host}")


def run(order: Order, listener: socket.socket, nanny: int) -> None:
    """Be the relay to one host, in a fork of the nanny; mpiexec's errands come to `listener`."""
    process.die_with_parent(nanny)
    Relay(order, listener).run()


class Relay:
    """See the module."""

    def __init__(self, order: Order, listener: socket.socket) -> None:
        self._order = order
        self._listener = listener
        self._cluster = str(order.document["folder"])
        ranks = range(int(order.document["ranks"]))
        self._copies: list[mmap.mmap] = [journal.map_file(os.path.join(order.folder, f"journal-{k}")) for k in ranks]
        self._wishes = [Wishes(copy) for copy in self._copies]
        self._names = {TASK, mpi.RANKS, *(f"output-{k}" for k in ranks)}
        self._trunk = Trunk(time.monotonic(), first=1)
        self._ready = self._gone = False
        self._end_at: float | None = None

    def run(self) -> None:
        """Keep the way to the host until the end."""
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        ours, theirs = socket.socketpair()
        command = hosts.ssh_command(
            self._order.ssh, self._order.host, [sys.executable, "-P", "-m", "ipcluster_core.outpost"]
        )
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _wake_only)
        try:
            with theirs:
                end = theirs.fileno()
                ssh = subprocess.Popen(command, stdin=end, stdout=end, preexec_fn=_ignore_ends)  # noqa: PLW1509 - no threads
        except OSError as error:
            self._leave_verdict(
                f"{command[0]!r} cannot be run ({error.strerror}): install an ssh client on {os.uname().nodename}, or "
                "name one with EngineSpec(ssh=[...])"
            )
            return
        ours.settimeout(0)
        fd = ours.fileno()
        self._junction = Junction(self._trunk, fd, fd, before=self._tell_wishes, poked=self._on_news)
        why = self._greet(fd) or self._serve()
        self._junction.finish(_FINISH_SECONDS)
        ours.close()
        how = self._end_of(ssh, _SSH_SECONDS if why == END_OF_FILE else 0.0)
        if self._end_at is None and not self._gone:
            said = tail_of(log_path(self._cluster, self._order.name), lines=5).strip()
            self._leave_verdict(
                explain(self._order.host, self._order.ssh, why=why, how=how, said=said, was_ready=self._ready)
            )

    # the start

    def _greet(self, fd: int) -> str:
        """Wait for the outpost and tell it what it has to know; return why that failed, or nothing."""
        noise, deadline = b"", time.monotonic() + START_SECONDS
        poller = _poller(fd, self._wake)
        while time.monotonic() < deadline and len(noise) < _MOST_NOISE:
            ready = dict(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if self._wake in ready and self._take_signals() is not None:
                self._end_at = time.monotonic()
                return "told to end"
            if fd not in ready:
                continue
            data = os.read(fd, _MOST_NOISE)
            if not data:
                return END_OF_FILE
            noise, rest = after_preamble(noise + data)
            if rest is not None:
                document, tag = self._order.document, str(self._order.document["tag"])
                secret = secret_of(open_store(str(document["store"])), tag)
                facts = {"host": self._order.host, "mark": self._order.mark, "tag": tag, "secret": secret}
                self._trunk.tell({**facts, "document": document})
                self._act(self._junction.feed(rest))
                return ""
        logger.warning("what came from %s is not from an outpost of this version: %r", self._order.host, noise[-500:])
        return f"no answer within {START_SECONDS:g} s"

    # serving

    def _serve(self) -> str:
        """Serve until the way is lost, or was given up; return why."""
        while not self._junction.lost:
            left = None if self._end_at is None else self._end_at - time.monotonic()
            if left is not None and left <= 0:
                return f"not ended within {_END_SECONDS:g} s"
            # An errand waits until the outpost has made everything that what it starts will look for.
            others = (self._wake, self._listener.fileno()) if self._ready else (self._wake,)
            ready, events = self._junction.turn(others, left)
            self._act(events)
            if self._listener.fileno() in ready:
                self._accept()
            if self._wake in ready:
                self._end(self._take_signals())
        return self._junction.lost

    def _act(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Opened(number, name):
                    self._open(number, name)
                case Told(message):
                    self._ready = self._ready or "ready" in message
                    self._gone = self._gone or "gone" in message
                    if message.get("gone"):
                        logger.error("could not be ended on %s: %s", self._order.host, ", ".join(message["gone"]))
                case _:
                    pass

    def _open(self, number: int, name: str) -> None:
        """Have a stream of the outpost lead to what has its name here."""
        try:
            if name not in self._names:
                raise FileNotFoundError(name)
            if name in (TASK, mpi.RANKS):
                end = connect(self._cluster, name)
                end.settimeout(0)
                fd = end.detach()
                self._junction.accept(number, reading=fd, writing=fd)
            else:
                path = os.path.join(self._order.folder, name)
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._junction.accept(number, writing=fd)
        except OSError as error:  # the cluster is ending
            logger.warning("%s of %s leads nowhere: %s", name, self._order.host, error)
            self._junction.refuse(number)

    def _accept(self) -> None:
        with suppress(OSError):  # it has gone again, or no descriptor is to be had
            end, _ = self._listener.accept()
            end.settimeout(0)
            fd = end.detach()
            self._junction.open(mpi.ERRAND, reading=fd, writing=fd)

    def _on_news(self, rank: int, writes: Sequence[Write]) -> None:
        """Take over what a rank has noted, before what it and its nanny said after that."""
        if rank < len(self._copies):
            carry_out(self._copies[rank], writes)

    def _tell_wishes(self) -> None:
        """Carry over which tasks are to be left, before the signal for it."""
        for rank, wishes in enumerate(self._wishes):
            self._trunk.poke(rank, wishes.news())

    # the end

    def _take_signals(self) -> float | None:
        """Return the grace of the end that a signal asks for; None when none does."""
        with suppress(BlockingIOError):
            signals = os.read(self._wake, 512)
            if signal.SIGINT in signals:
                return 0.0
            if signal.SIGTERM in signals:
                return GRACE_SECONDS
        return None

    def _end(self, grace: float | None) -> None:
        if grace is None or (self._end_at is not None and grace):
            return
        self._end_at = time.monotonic() + _END_SECONDS
        self._trunk.tell({"do": "end", "grace": grace})

    @staticmethod
    def _end_of(ssh: subprocess.Popen[bytes], timeout: float) -> str:
        """Wait for the end of ssh, or end it; say how it ended by itself."""
        try:
            code = ssh.wait(timeout)
        except subprocess.TimeoutExpired:
            ssh.kill()
            ssh.wait()
            return ""
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def _leave_verdict(self, text: str) -> None:
        logger.error("%s", text)
        path = verdict_path(self._order.folder, self._order.host)
        with open(f"{path}.new", "w") as file:
            file.write(text)
        os.replace(f"{path}.new", path)


def explain(host: str, ssh: Sequence[str], *, why: str, how: str, said: str, was_ready: bool) -> str:
    """Say why the way to a host was lost, or was never there.

    Parameters
    ----------
    host, ssh
        The host, and the command that leads to it.
    why
        What the relay saw: "end of file", "no word for 10 s" ...
    how
        How ssh ended by itself; empty when it did not.
    said
        Its last words, and those of what it ran.
    was_ready
        Whether the outpost was there already.

    Returns
    -------
    str
        For a person to act on.
    """
    seen = why
    if how and why == END_OF_FILE:
        seen = f"ssh ended: {how}" + (f": {said}" if said else "")
    if was_ready:
        return f"host {host} was lost: {seen}"
    python = sys.executable
    if "No module named" in said and "ipcluster_core" in said:
        return f"{python} on host {host} lacks ipcluster-core: install it there, in the same place ({seen})"
    if how in _NO_PROGRAM:
        return f"there is no {python} on host {host}: an MPI set needs the same interpreter on each host ({seen})"
    login = " ".join([*ssh, host, "true"])
    return f"host {host} cannot be reached; does {login!r} work here, without a question? ({seen})"


def _poller(*fds: int) -> select.poll:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return poller


def _ignore_ends() -> None:
    """Have ssh go on until the outpost has no more to say: what is told to end with the cluster is the relay."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)


def _wake_only(signum: int, frame: object) -> None:
    """Let the wake-up pipe tell of the signal, and nothing else."""
