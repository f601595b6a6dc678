"""parsl with its high-throughput executor on one block."""

from __future__ import annotations

from bench.peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar

    from bench.peers import Function, Handle


class Parsl(Peer):
    """Tasks as Python apps, so with parsl's data flow kernel."""

    package = "parsl"
    lacks: ClassVar[Mapping[str, str]] = {
        "connect": "the kernel is private to its client",
        "map": "sends one item at a time",
        "add": "scales by blocks",
        "restart": "no such call",
        "restart_busy": "no such call",
    }

    def __init__(self, n: int, folder: str) -> None:
        super().__init__(n, folder)
        self._apps: dict[Function, Any] = {}

    def start(self) -> None:
        """Load a configuration."""
        import parsl
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        executor = HighThroughputExecutor(
            address="127.0.0.1",
            loopback_address="127.0.0.1",
            max_workers_per_node=self.n,
            cores_per_worker=1e-6,  # else there are no more workers than cores
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
        parsl.load(Config(executors=[executor], run_dir=f"{self.folder}/parsl", usage_tracking=0))

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Call the function's app."""
        app = self._apps.get(function)
        if app is None:
            from parsl import python_app

            app = self._apps[function] = python_app(function)
        return app(*arguments)

    def close(self) -> None:
        """Clean up the kernel."""
        import parsl

        parsl.dfk().cleanup()
        parsl.clear()
