"""Runs one session to its end, whatever it does, and knows what all of its processes used.

::

    supervisor (this process, a subreaper)
      |  ^ \
      |  |  answers: CPU so far, pids      (two named pipes in the session's folder)
      v  | questions
    session: client of a peer
      |- engines, brokers, nannies ...     (detached ones become the supervisor's children)

A session has so many seconds; then everything below the supervisor is killed, and what it had measured is kept.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.meter import ANSWERS, QUESTIONS
from bench.processes import Life, Tree, open_pidfd

__all__ = ["Ending", "supervise"]

#: Seconds that closing may take, and seconds that processes may go on when the session's first one has ended.
CLOSING_SECONDS = 30.0
AFTER_SECONDS = 10.0

#: Name of the session's output.
LOG = "session.log"


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    `gone` is when the last process but the client ended (monotonic seconds), None if they were killed; `left` the
    processes and files that were left behind, and are removed now.
    """

    error: str
    cpu: float
    wall: float
    gone: float | None
    left: tuple[str, ...]


class _Session:
    def __init__(self, folder: Path, limit: float) -> None:
        self._folder = folder
        self._tree = Tree()
        self._deadline = time.monotonic() + limit
        self._late = f"timed out after {limit:g} s"
        self._watched: dict[int, Life] = {}  # by pidfd, from closing on
        self._closing = False
        self._client = 0
        self._gone: float | None = None
        self._shared: set[str] = set()
        self._status: int | None = None
        self._partial = b""

    def run(self, command: list[str], environment: Mapping[str, str]) -> Ending:
        """Start it, answer it, wait for its end."""
        with ExitStack() as stack:
            questions, self._answers = (self._pipe(stack, name) for name in (QUESTIONS, ANSWERS))
            wake = self._wake_on_child(stack)
            poller = select.poll()
            poller.register(questions, select.POLLIN)
            poller.register(wake, select.POLLIN)
            start = time.monotonic_ns()
            command = [argument.replace("{start_ns}", str(start)) for argument in command]
            pid = self._spawn(command, environment)
            try:
                error = self._serve(poller, questions, wake, pid)
            finally:
                left = self._clear_away()
                for pidfd in self._watched:
                    os.close(pidfd)
        wall = (time.monotonic_ns() - start) / 1e9
        return Ending(error, self._tree.cpu_ns() / 1e9, wall, self._gone, left)

    def _pipe(self, stack: ExitStack, name: str) -> int:
        path = self._folder / name
        os.mkfifo(path, 0o600)
        # For reading and writing, so that neither side waits for the other to open it.
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, pipe)
        return pipe

    @staticmethod
    def _wake_on_child(stack: ExitStack) -> int:
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, wake)
        stack.callback(os.close, wake_write)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False))
        stack.callback(signal.signal, signal.SIGCHLD, signal.signal(signal.SIGCHLD, lambda *_: None))
        return wake

    def _spawn(self, command: list[str], environment: Mapping[str, str]) -> int:
        log = str(self._folder / LOG)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True)

    def _serve(self, poller: select.poll, questions: int, wake: int, pid: int) -> str:
        """Answer until nothing is left, or it is too late; return what went wrong."""
        while True:
            self._reap(pid)
            if not self._tree.lives():
                if self._watched:
                    self._gone = time.monotonic()
                return "" if self._status == 0 else f"ended with status {self._status}: {self._tail()}"
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                return self._late
            ready = {fd for fd, _ in poller.poll(remaining * 1000 + 1)}
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)
            for pidfd in ready & self._watched.keys():
                self._gone = time.monotonic()
                poller.unregister(pidfd)
                os.close(pidfd)
                del self._watched[pidfd]
            if questions in ready:
                self._answer(os.read(questions, 65536), poller)
            if self._closing and ready:
                self._watch(poller)

    def _reap(self, pid: int) -> None:
        statuses = self._tree.reap()
        if pid in statuses:
            self._status = os.waitstatus_to_exitcode(statuses[pid])
            # Of a client that failed, nobody ends the rest.
            self._deadline = min(self._deadline, time.monotonic() + AFTER_SECONDS)
            self._late = f"its processes did not end within {AFTER_SECONDS:g} s of the client" + (
                f", whose status was {self._status}: {self._tail()}" if self._status else ""
            )

    def _answer(self, text: bytes, poller: select.poll) -> None:
        *lines, self._partial = (self._partial + text).split(b"\n")
        for line in lines:
            word, client, number = line.decode().split()
            self._client = int(client)
            found: list[int] = []
            if word == "cpu":
                found = [self._tree.cpu_ns(self._client, int(number))]
            elif word == "others":
                found = [life.pid for life in self._tree.without(self._client)]
            elif word == "closing":
                self._closing = True
                self._shared |= self._tree.shared_memory()
                self._watch(poller)
                self._deadline = min(self._deadline, time.monotonic() + CLOSING_SECONDS)
                self._late = f"closing took more than {CLOSING_SECONDS:g} s"
            os.write(self._answers, " ".join(map(str, found)).encode() + b"\n")

    def _watch(self, poller: select.poll) -> None:
        """Have the ends of all processes but the client seen at once."""
        known = set(self._watched.values())
        for life in self._tree.without(self._client):
            pidfd = None if life in known else open_pidfd(life)
            if pidfd is not None:
                self._watched[pidfd] = life
                poller.register(pidfd, select.POLLIN)

    def _clear_away(self) -> tuple[str, ...]:
        left = self._tree.commands()
        if left:
            self._gone = None
            self._shared |= self._tree.shared_memory()
            if not self._tree.kill():
                raise RuntimeError(f"processes could not be killed: {self._tree.commands()}")
        for path in sorted(self._shared):
            with suppress(FileNotFoundError):
                Path(path).unlink()
                left.append(path)
        return tuple(left)

    def _tail(self) -> str:
        try:
            lines = (self._folder / LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return " | ".join(lines[-3:])[-500:]


def supervise(command: list[str], environment: Mapping[str, str], folder: Path, limit: float) -> Ending:
    """Run a session.

    Parameters
    ----------
    command
        ``{start_ns}`` in it becomes the monotonic time of its start.
    environment
        All of its environment.
    folder
        For its pipes and its output.
    limit
        Seconds until it is killed with all that belongs to it.

    Returns
    -------
    Ending
        Nothing of the session is left.
    """
    return _Session(folder, limit).run(command, environment)
