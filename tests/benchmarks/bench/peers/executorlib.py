"""executorlib on one node, its workers kept between tasks."""

from __future__ import annotations

from bench.peers import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class Executorlib(Pool):
    """Workers that are interpreters of their own, one socket each."""

    package = "executorlib"
    lacks: ClassVar[Mapping[str, str]] = {
        "connect": "the executor is private to its client",
        "restart": "no such call",
        "restart_busy": "no such call",
        "map": "sends one item at a time",
        "teardown": "waits for tasks that have begun",
        "kill": "the future never fails: not within 30 s where it was tried",
    }

    def start(self) -> None:
        """Make the executor."""
        from executorlib import SingleNodeExecutor

        self.pool = SingleNodeExecutor(max_workers=self.n, block_allocation=True, hostname_localhost=True)

    def add(self, count: int) -> None:
        """Set the number of workers."""
        self.pool.max_workers = self.n + count

    def close(self) -> None:
        """Shut down."""
        self.pool.shutdown(wait=True, cancel_futures=True)
