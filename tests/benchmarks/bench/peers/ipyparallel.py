"""ipyparallel with its default controller and schedulers."""

from __future__ import annotations

import os

from bench import tasks
from bench.peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bench.peers import Array, Function, Handle, Result


class Ipyparallel(Peer):
    """A local cluster of the default profile."""

    package = "ipyparallel"

    cluster: Any
    client: Any
    view: Any

    def start(self) -> None:
        """Start the cluster and connect."""
        import ipyparallel

        self.cluster = ipyparallel.Cluster(n=self.n)
        self.client = self.cluster.start_and_connect_sync(activate=False)
        self.view = self.client.load_balanced_view()

    def pids(self) -> list[int]:
        """Run on each engine."""
        self.client.wait_for_engines(self.n, timeout=tasks.PATIENCE, interactive=False)
        return list(self.client[:].apply_sync(os.getpid))

    def submit(self, function: Function, *arguments: Any) -> Handle:
        """Submit to any engine."""
        return self.view.apply_async(function, *arguments)

    def result(self, handle: Handle, timeout: float | None = None) -> Result:
        """Get one result."""
        return handle.get(timeout)

    def results(self, handles: Sequence[Handle]) -> list[Result]:
        """Get each."""
        return [handle.get() for handle in handles]

    def map(self, function: Function, items: Sequence[Any], chunk: int) -> list[Result]:
        """Map in chunks."""
        return list(self.view.map_sync(function, items, chunksize=chunk))

    def broadcast(self, array: Array) -> list[float]:
        """Push, then have each engine read its own."""
        from ipyparallel import Reference

        engines = self.client[:]
        engines.push({"held": array}, block=True)
        return list(engines.apply_sync(tasks.touch, Reference("held")))

    def add(self, count: int) -> None:
        """Start another set."""
        self.cluster.start_engines_sync(count)

    def restart(self, pid: int) -> None:
        """Restart the set: one engine of it cannot be."""
        self.cluster.restart_engines_sync()
        tasks.wait_for(lambda: pid not in self.pids(), "engines up again")

    def address(self) -> str:
        """Return the path of the client's connection file."""
        return f"{self.cluster.profile_dir}/security/ipcontroller-{self.cluster.cluster_id}-client.json"

    @classmethod
    def connected(cls, address: str, function: Function, argument: str) -> Result:
        """Connect by the connection file, which is cheaper than by the cluster's."""
        import ipyparallel

        with ipyparallel.Client(address) as client:
            return client.load_balanced_view().apply_async(function, argument).get(tasks.PATIENCE)

    def close(self) -> None:
        """Stop engines and controller."""
        self.cluster.stop_cluster_sync()
        self.client.close()
