"""dask.distributed: a LocalCluster, its scheduler and nannies in the client's process."""

from __future__ import annotations

import os

from bench import tasks
from bench.peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, ClassVar

    from bench.peers import Array, Function, Handle, Result


class Dask(Peer):
    """Workers of one thread each; no dashboard."""

    package = "distributed"
    lacks: ClassVar[Mapping[str, str]] = {"map": "batches submission only"}

    cluster: Any
    client: Any

    def start(self) -> None:
        """Start the cluster and connect."""
        import dask
        from distributed import Client, LocalCluster

        # By default a task whose worker died is run three times more; a failure is to be seen as one.
        dask.config.set({"distributed.scheduler.allowed-failures": 0})
        self.cluster = LocalCluster(
            n_workers=self.n, threads_per_worker=1, dashboard_address=None, local_directory=self.folder
        )
        self.client = Client(self.cluster)

    def pids(self) -> list[int]:
        """Run on each worker."""
        self.client.wait_for_workers(self.n)
        return list(self.client.run(os.getpid).values())

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit, without the key by content that makes equal calls one."""
        return self.client.submit(function, *arguments, pure=False)

    def results(self, handles: Sequence[Handle]) -> list[Result]:
        """Gather."""
        return list(self.client.gather(list(handles)))

    def broadcast(self, array: Array) -> list[float]:
        """Scatter to all, then have each worker read its own."""
        [held] = self.client.scatter([array], broadcast=True)
        workers = list(self.client.scheduler_info(n_workers=-1)["workers"])
        return self.results([self.client.submit(tasks.touch, held, workers=[w], pure=False) for w in workers])

    def add(self, count: int) -> None:
        """Scale."""
        self.cluster.scale(self.n + count)

    def restart(self, pid: int) -> None:
        """Restart a worker by its address."""
        [worker] = [worker for worker, its in self.client.run(os.getpid).items() if its == pid]
        self.client.restart_workers([worker], timeout=tasks.PATIENCE)
        self.client.wait_for_workers(self.n)

    def address(self) -> str:
        """Return the scheduler's."""
        return str(self.cluster.scheduler_address)

    @classmethod
    def connected(cls, address: str, function: Function, argument: str) -> Result:
        """Connect to the scheduler."""
        from distributed import Client

        with Client(address) as client:
            return client.submit(function, argument, pure=False).result(tasks.PATIENCE)

    def close(self) -> None:
        """Close both."""
        self.client.close()
        self.cluster.close()
