"""The processes that a nanny has started: how each is made, found, signalled and collected.

It knows of an end from the kernel only. What follows from one is the nanny's to decide.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import descriptors, process
from .capture import Capture, Captures
from .forking import fork
from .incarnation import log_path, tail_of
from .journal import Journal, make_memory
from .logs import open_log

__all__ = ["Brood", "Child"]


@dataclass(slots=True)
class Child:
    """A process that was forked here. `name` is "controller", "broker" or "engine"."""

    name: str
    pid: int
    engine: int = -1
    capture: Capture | None = None
    incarnation: int = 0
    journal: Journal | None = None
    kill_at: float | None = None
    sentence: str = ""  # why it was killed here
    is_killed: bool = False  # because its time was over

    def signal_group(self, signum: int) -> None:
        """Signal it and what it has started in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def signal(self, signum: int) -> None:
        """Signal it alone. Until it is collected its pid is no other's."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)


class Brood:
    """A nanny's children, by pid.

    Parameters
    ----------
    boot
        What a nanny knows, see `creation`.
    captures
        Takes what engines print.
    """

    def __init__(self, boot: Mapping[str, Any], captures: Captures) -> None:
        self._boot = boot
        self._folder = str(boot["folder"])
        self._captures = captures
        self._pid = os.getpid()
        self._soft_limit = descriptors.raise_limit()
        self._children: dict[int, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._children.values()))

    def __contains__(self, pid: int) -> bool:
        return pid in self._children

    def __getitem__(self, pid: int) -> Child:
        return self._children[pid]

    # making them

    def fork(self, name: str, role: Callable[[], None], keep: Iterable[int], engine: int = -1) -> Child:
        """Run a role in a child; an engine's output is captured, another part's goes to its log."""
        capture, out = self._captures.open(engine) if engine >= 0 else (None, open_log(log_path(self._folder, name)))
        try:
            pid = fork(role, out, keep)
        except OSError:
            if capture is not None:
                self._captures.close(capture)
            raise
        finally:
            os.close(out)
        child = self._children[pid] = Child(name, pid, engine, capture)
        return child

    def start_engine(self, role: Callable[..., None], engine: int, incarnation: int, name: str) -> Child:
        """Start an engine of a set, in the way that the spec says; OSError when the system has not what it needs."""
        descriptors.keep_some()
        boot: dict[str, Any] = {**self._boot, "set": name}
        if boot["spec"]["start_method"] == "spawn":
            child = self._spawn_engine(boot, engine, incarnation)
        else:
            child = self._fork_engine(role, boot, engine, incarnation)
        child.incarnation = incarnation
        return child

    def _fork_engine(self, role: Callable[..., None], boot: Mapping[str, Any], engine: int, incarnation: int) -> Child:
        journal, parent = Journal(), self._pid

        def be_engine() -> None:
            process.die_with_parent(parent)
            descriptors.lower_limit(self._soft_limit)
            role(boot, engine, incarnation, journal)

        child = self.fork("engine", be_engine, (), engine)
        child.journal = journal
        return child

    def _spawn_engine(self, boot: Mapping[str, Any], engine: int, incarnation: int) -> Child:
        memory, parent = make_memory(), self._pid
        journal = Journal(memory)

        def be_engine() -> None:
            process.die_with_parent(parent)
            descriptors.lower_limit(self._soft_limit)
            import tempfile

            with tempfile.TemporaryFile() as file:
                file.write(json.dumps(boot).encode())
                file.seek(0)
                os.dup2(file.fileno(), 0)
            os.set_inheritable(memory, True)  # noqa: FBT003 - its own signature
            arguments = ["-P", "-m", "ipcluster_core.engine", str(engine), str(incarnation), str(memory), str(parent)]
            os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - no shell is wanted

        child = self.fork("engine", be_engine, (memory,), engine)
        child.journal = journal
        os.close(memory)
        return child

    # finding them

    def named(self, name: str) -> list[Child]:
        """Return the children of a name."""
        return [child for child in self._children.values() if child.name == name]

    def engines(self, ids: Iterable[int] | None = None) -> list[Child]:
        """Return the engines that live, or those of some ids."""
        wanted = None if ids is None else set(ids)
        return [child for child in self.named("engine") if wanted is None or child.engine in wanted]

    def orphans(self, marks: Iterable[str] = ()) -> list[int]:
        """Return what dead engines left behind: strangers that came to this subreaper, and all below them."""
        # What carries one of the marks in its environment is of somebody who lives.
        tags = {f"IPCLUSTER_ENGINE={child.engine}".encode() for child in self.engines()}
        tags |= {mark.encode() for mark in marks}
        found = [pid for pid in process.children(self._pid) if pid not in self and not _carries(pid, tags)]
        return found + [pid for orphan in found for pid in process.descendants(orphan)]

    # their end

    def collect(self) -> Iterator[tuple[Child, int]]:
        """Reap what has ended, orphans that came to this subreaper too; yield children with their wait status.

        Yields
        ------
        tuple
            One at a time: what has to be done about it is done before the next one is reaped.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                yield child, status

    def collect_ending(self, name: str, grace: float) -> Iterator[tuple[Child, int]]:
        """Reap the children of a name that are ending by themselves, or are killed after `grace` seconds.

        Yields
        ------
        tuple
            A child and its wait status.
        """
        for child in self.named(name):
            process.wait_gone([process.identify(child.pid)], grace)
            os.kill(child.pid, signal.SIGKILL)  # no effect on one that has ended and waits to be reaped
            _, status = os.waitpid(child.pid, 0)
            del self._children[child.pid]
            yield child, status

    def last_words(self, child: Child) -> str:
        """Return what a child wrote last."""
        return child.capture.finish() if child.capture else tail_of(log_path(self._folder, child.name))


def _carries(pid: int, variables: set[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not variables.isdisjoint(file.read().split(b"\0"))
    except OSError:
        return False
