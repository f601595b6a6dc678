"""What a benchmark asks of a library that runs Python functions on processes of one machine.

One adapter each, behind the class `Peer`. Nothing is imported before it is used: an adapter's imports are part of
what is measured, and those of this package must not be.
"""

from __future__ import annotations

import os
import pathlib
import sys
from importlib import import_module

from bench import tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ClassVar, TypeAlias

    #: What stands for a task that was submitted; what comes of it; a numpy array. Each peer has its own.
    Handle: TypeAlias = Any
    Result: TypeAlias = Any
    Array: TypeAlias = Any
    Function: TypeAlias = Callable[..., Any]

#: Module and class of each peer, in the order of the tables. The first one is measured against the others.
PEERS = {
    "ours": "ours:Ours",
    "ipyparallel": "ipyparallel:Ipyparallel",
    "dask": "dask:Dask",
    "ray": "ray:Ray",
    "parsl": "parsl:Parsl",
    "executorlib": "executorlib:Executorlib",
    "mpi4py": "mpi4py:Mpi4py",
    "loky": "loky:Loky",
    "futures": "futures:Forkserver",
    "futures-fork": "futures:Fork",
}

OURS = "ours"


class Peer:
    """A pool of engines. Methods are called in the order in which they stand here; `close` always."""

    #: Package whose absence leaves the peer out, and whose version is told.
    package: ClassVar[str]
    #: Figures that cannot be had, and why.
    lacks: ClassVar[Mapping[str, str]] = {}
    #: Environment of its sessions.
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, n: int, folder: str) -> None:
        self.n = n
        self.folder = folder
        self._meetings = 0

    @classmethod
    def command(cls, n: int, arguments: list[str]) -> list[str]:
        """Return the command line of a session with `n` engines."""
        del n
        return [sys.executable, *arguments]

    def start(self) -> None:
        """Start `n` engines."""
        raise NotImplementedError

    def pids(self) -> list[int]:
        """Return one result from each of the `n` engines: its pid."""
        folder = self.meeting()
        return self.results([self.submit(tasks.meet, folder, self.n) for _ in range(self.n)])

    def meeting(self) -> str:
        """Return a new empty folder, where tasks of this session leave signs."""
        self._meetings += 1
        folder = os.path.join(self.folder, f"meeting-{self._meetings}")
        pathlib.Path(folder).mkdir()
        return folder

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit one task; return a handle for `result`."""
        raise NotImplementedError

    def result(self, handle: Handle, timeout: float | None = None) -> Result:
        """Return the result of a task, or raise what it raised, or TimeoutError."""
        return handle.result(timeout)

    def results(self, handles: Sequence[Handle]) -> list[Result]:
        """Return the results of many tasks."""
        return [handle.result() for handle in handles]

    def map(self, function: Function, items: Sequence[Any], chunk: int) -> list[Result]:
        """Run a function over items, so many in one task."""
        raise NotImplementedError

    def broadcast(self, array: Array) -> list[float]:
        """Hand an array to each engine; return what `tasks.touch` has of it there."""
        folder = self.meeting()
        return self.results([self.submit(tasks.meet_with, array, folder, self.n) for _ in range(self.n)])

    def add(self, count: int) -> None:
        """Start more engines; `pids` waits for them."""
        raise NotImplementedError

    def restart(self, pid: int) -> None:
        """Replace an engine (or the least that can be replaced); return when it takes work again."""
        raise NotImplementedError

    def address(self) -> str:
        """Return what another process needs to connect."""
        raise NotImplementedError

    @classmethod
    def connected(cls, address: str, function: Function, argument: str) -> Result:
        """Connect, have one result, disconnect: all that a step does in its process."""
        raise NotImplementedError

    def close(self) -> None:
        """End the engines, also busy ones, and what belongs to them."""
        raise NotImplementedError

    @classmethod
    def sweep(cls, folder: str) -> None:
        """Remove what is left outside of a session's folder after all of its processes were killed."""


class Pool(Peer):
    """One that is a `concurrent.futures.Executor`."""

    pool: Any

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit one task."""
        return self.pool.submit(function, *arguments)

    def map(self, function: Function, items: Sequence[Any], chunk: int) -> list[Result]:
        """Map in chunks."""
        return list(self.pool.map(function, items, chunksize=chunk))


def load(name: str) -> type[Peer]:
    """Return the adapter of a peer; the peer itself is not imported."""
    module, _, adapter = PEERS[name].partition(":")
    found: type[Peer] = getattr(import_module(f"bench.peers.{module}"), adapter)
    return found
