"""ray on one node, without its dashboard."""

from __future__ import annotations

from bench import tasks
from bench.peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar

    from bench.peers import Array, Function, Handle, Result

#: Bytes of its shared-memory store.
_STORE_BYTES = 1 << 30


class Ray(Peer):
    """As many CPUs as engines, one task on each."""

    package = "ray"
    lacks: ClassVar[Mapping[str, str]] = {
        "map": "sends one item at a time",
        "add": "scales by nodes",
        "restart": "no such call",
        "restart_busy": "no such call",
    }
    environment: ClassVar[Mapping[str, str]] = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }

    def __init__(self, n: int, folder: str) -> None:
        super().__init__(n, folder)
        self._remote: dict[Function, Any] = {}

    def start(self) -> None:
        """Start the node."""
        import ray

        ray.init(
            num_cpus=self.n,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=f"{self.folder}/ray",
        )

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit, each task at most once as with the others."""
        remote = self._remote.get(function)
        if remote is None:
            import ray

            remote = self._remote[function] = ray.remote(max_retries=0)(function)
        return remote.remote(*arguments)

    def result(self, handle: Handle, timeout: float | None = None) -> Result:
        """Get one result."""
        import ray

        return ray.get(handle, timeout=timeout)

    def results(self, handles: Sequence[Handle]) -> list[Result]:
        """Get all."""
        import ray

        return list(ray.get(list(handles)))

    def broadcast(self, array: Array) -> list[float]:
        """Put once, read everywhere."""
        import ray

        held, folder = ray.put(array), self.meeting()
        return self.results([self.submit(tasks.meet_with, held, folder, self.n) for _ in range(self.n)])

    def address(self) -> str:
        """Return the address of the head."""
        import ray

        return str(ray.get_runtime_context().gcs_address)

    @classmethod
    def connected(cls, address: str, function: Function, argument: str) -> Result:
        """Connect as a driver."""
        import ray

        ray.init(address=address, log_to_driver=False)
        try:
            return ray.get(ray.remote(function).remote(argument), timeout=tasks.PATIENCE)
        finally:
            ray.shutdown()

    def close(self) -> None:
        """Shut down."""
        import ray

        ray.shutdown()
