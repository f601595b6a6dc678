"""The project that this benchmark belongs to."""

from __future__ import annotations

import os

from bench import tasks
from bench.peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bench.peers import Array, Function, Handle, Result
    from ipcluster_core import Client, Cluster


class Ours(Peer):
    """A named native cluster."""

    package = "ipcluster_core"

    cluster: Cluster
    client: Client

    def start(self) -> None:
        """Create the cluster and connect."""
        from ipcluster_core import Cluster

        # The limits are for a benchmark that is killed: nothing of it may stay.
        self.cluster = Cluster.create_sync(f"bench-{os.getpid()}", n=self.n, idle_timeout=900.0, lifetime=1800.0)
        self.client = self.cluster.client()

    def pids(self) -> list[int]:
        """Run on each engine."""
        return list(self.client.run(os.getpid).values())

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit."""
        return self.client.submit(function, *arguments)

    def map(self, function: Function, items: Sequence[Any], chunk: int) -> list[Result]:
        """Map in chunks."""
        return list(self.client.map(function, items, chunksize=chunk))

    def broadcast(self, array: Array) -> list[float]:
        """Put once where there is `put`; else send with each task."""
        put = getattr(self.client, "put", None)
        return list(self.client.run(tasks.touch, array if put is None else put(array)).values())

    def add(self, count: int) -> None:
        """Scale, and wait."""
        self.cluster.scale_sync(self.n + count)
        self.cluster.wait_sync(self.n + count)

    def restart(self, pid: int) -> None:
        """Restart it by its id; the verb waits until it is up."""
        [engine] = [engine for engine in self.cluster.status_sync().engines if engine.pid == pid]
        self.cluster.restart_sync([engine.id])

    def address(self) -> str:
        """Return the name; the store is in the environment."""
        return self.cluster.name

    @classmethod
    def connected(cls, address: str, function: Function, argument: str) -> Result:
        """Take the lean path."""
        from ipcluster_core import Client

        with Client.connect(address) as client:
            return client.submit(function, argument).result(tasks.PATIENCE)

    def close(self) -> None:
        """Tear down."""
        self.cluster.teardown_sync(force=True)
        self.client.shutdown(wait=False)

    @classmethod
    def sweep(cls, folder: str) -> None:
        """Tear down by name: that cures what is broken."""
        from ipcluster_core import ClusterManager

        manager = ClusterManager(f"file:{folder}/store")
        for cluster in manager.list_sync():
            manager.teardown_sync(cluster.name, force=True)
