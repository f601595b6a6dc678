"""Where Airflow finds its clusters: the store that a connection names, and the core's verbs on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

if TYPE_CHECKING:
    from ipcluster_core import Client, Cluster, ClusterManager, Store, TeardownReport

__all__ = ["AnyCluster", "ClusterHook"]

#: A cluster by name, by handle as a dict (what `CreateClusterOperator` returns), or by handle as JSON.
AnyCluster: TypeAlias = str | Mapping[str, Any]


class ClusterHook(BaseHook):
    """The clusters of one store.

    Parameters
    ----------
    ipcluster_conn_id
        Connection of type ``ipcluster``; its host is the URL of the store. Without host, and when there is no
        connection of the default id, the store is the host's default (`ipcluster_core.open_store`).
    """

    conn_name_attr = "ipcluster_conn_id"
    default_conn_name = "ipcluster_default"
    conn_type = "ipcluster"
    hook_name = "IPCluster"

    def __init__(self, ipcluster_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ipcluster_conn_id = ipcluster_conn_id
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store; asks Airflow for the connection once.

        Raises
        ------
        AirflowNotFoundException
            There is no such connection, and it is not the default one.
        """
        if self._store is None:
            from ipcluster_core import open_store

            self._store = open_store(self._store_url())
        return self._store

    def _store_url(self) -> str | None:
        try:
            connection = self.get_connection(self.ipcluster_conn_id)
        except AirflowNotFoundException:
            if self.ipcluster_conn_id != self.default_conn_name:
                raise
            return None
        return connection.host or None

    def get_conn(self) -> ClusterManager:
        """Return the manager of the store's clusters: list them, get one, end one."""
        from ipcluster_core import ClusterManager

        return ClusterManager(self.store)

    def test_connection(self) -> tuple[bool, str]:
        """Tell whether the store can be read from this host; for the connection form's *Test* button."""
        from ipcluster_core.errors import ClusterError

        try:
            found = self.get_conn().list_sync()
        except (ClusterError, OSError, ValueError) as error:
            return False, str(error)
        return True, f"{self.store.url} holds {len(found)} living clusters"

    def create(self, name: str, **options: Any) -> Cluster:
        """Create a cluster; takes the keywords of `ipcluster_core.Cluster.create`."""
        from ipcluster_core import Cluster

        return Cluster.create_sync(name, store=self.store, **options)

    def find(self, cluster: AnyCluster, *, timeout: float = 30.0) -> Cluster:
        """Find a cluster again, see `ipcluster_core.Cluster.connect`. A handle brings its own store."""
        from ipcluster_core import Cluster

        return Cluster.connect_sync(cluster, store=self._store_for(cluster), timeout=timeout)

    def connect(self, cluster: AnyCluster, *, timeout: float = 30.0) -> Client:
        """Connect a client, to be used in a ``with`` block; see `ipcluster_core.Client.connect`."""
        from ipcluster_core import Client

        return Client.connect(cluster, store=self._store_for(cluster), timeout=timeout)

    def teardown(self, cluster: AnyCluster, **options: Any) -> TeardownReport:
        """End a cluster, or give up a claim on it; see `ipcluster_core.ClusterManager.teardown`."""
        return self.get_conn().teardown_sync(cluster, **options)

    def _store_for(self, cluster: AnyCluster) -> Store | None:
        by_name = isinstance(cluster, str) and not cluster.lstrip().startswith("{")
        return self.store if by_name else None
