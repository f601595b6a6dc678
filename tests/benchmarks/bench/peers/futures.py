"""`concurrent.futures` of the standard library."""

from __future__ import annotations

from bench.peers import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class Fork(Pool):
    """A pool whose workers are forked off the client."""

    package = "concurrent"
    method = "fork"
    lacks: ClassVar[Mapping[str, str]] = {
        "connect": "the pool is private to its client",
        "add": "a pool has one size",
        "restart": "no such call",
        "restart_busy": "no such call",
        "teardown": "waits for tasks that have begun",
    }

    def start(self) -> None:
        """Make the pool; workers start with the first tasks."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        self.pool = ProcessPoolExecutor(self.n, mp_context=multiprocessing.get_context(self.method))

    def close(self) -> None:
        """Shut down."""
        self.pool.shutdown(cancel_futures=True)


class Forkserver(Fork):
    """A pool whose workers are forked off a clean server."""

    method = "forkserver"
