"""loky's reusable executor."""

from __future__ import annotations

from bench.peers import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class Loky(Pool):
    """A pool of spawned workers that can be resized."""

    package = "loky"
    lacks: ClassVar[Mapping[str, str]] = {
        "connect": "the pool is private to its client",
        "restart": "no such call",
        "restart_busy": "no such call",
    }

    def start(self) -> None:
        """Get the executor."""
        self._get(self.n)

    def _get(self, n: int) -> None:
        from loky import get_reusable_executor

        self.pool = get_reusable_executor(max_workers=n, timeout=None)

    def add(self, count: int) -> None:
        """Get the same executor with another size."""
        self._get(self.n + count)

    def close(self) -> None:
        """Kill the workers: waiting for them is waiting for their tasks."""
        self.pool.shutdown(kill_workers=True)
