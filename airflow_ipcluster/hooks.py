"""Where Airflow finds its clusters: the store that a connection names, and the core's verbs on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from .links import fill
from .watching import is_name

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

    from ipcluster_core import Client, Cluster, ClusterManager, Store, TeardownReport

__all__ = ["AnyCluster", "ClusterHook"]

#: A cluster by name, by handle as a dict (what `CreateClusterOperator` returns), or by handle as JSON.
AnyCluster: TypeAlias = str | Mapping[str, Any]

#: Where the templates of links stand in a connection's extra.
_PAGES = {"cluster": "cluster_page", "logs": "logs_page"}


class ClusterHook(BaseHook):
    """The clusters of one store, and what a connection says of them.

    Without a connection of the default id all is as on the command line: the store is the host's default
    (`ipcluster_core.open_store`).

    Parameters
    ----------
    ipcluster_conn_id
        Connection of type ``ipcluster``. Its host is the URL of the store. Its extra may have ``spec`` (fields of
        `ipcluster_core.ClusterSpec` for clusters that are created, where the task says nothing else), and
        ``cluster_page`` and ``logs_page``: templates of links, see `links`.
    """

    conn_name_attr = "ipcluster_conn_id"
    default_conn_name = "ipcluster_default"
    conn_type = "ipcluster"
    hook_name = "IPCluster"

    def __init__(self, ipcluster_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ipcluster_conn_id = ipcluster_conn_id
        self._store: Store | None = None

    @cached_property
    def connection(self) -> Connection | None:
        """The connection; asks Airflow for it once. None when there is none of the default id.

        Raises
        ------
        AirflowNotFoundException
            There is no such connection, and it is not the default one.
        """
        try:
            return self.get_connection(self.ipcluster_conn_id)
        except AirflowNotFoundException:
            if not self._is_default:
                raise
            return None

    @classmethod
    async def reached(cls, ipcluster_conn_id: str) -> Self:
        """Return a hook that has asked for its connection where a loop must not be held up, as in the triggerer.

        Returns
        -------
        ClusterHook
            It will not ask again.

        Raises
        ------
        AirflowNotFoundException
            As for `connection`.
        """
        hook = cls(ipcluster_conn_id)
        try:
            hook.connection = await cls.aget_connection(ipcluster_conn_id)
        except AirflowNotFoundException:
            if not hook._is_default:
                raise
            hook.connection = None
        return hook

    @property
    def _is_default(self) -> bool:
        return self.ipcluster_conn_id == self.default_conn_name

    @property
    def store(self) -> Store:
        """The store."""
        if self._store is None:
            from ipcluster_core import open_store

            self._store = open_store((self.connection.host or None) if self.connection else None)
        return self._store

    @property
    def extra(self) -> dict[str, Any]:
        """What the connection says beside the store."""
        return self.connection.extra_dejson if self.connection else {}

    @property
    def defaults(self) -> dict[str, Any]:
        """Fields of the spec of clusters that are created.

        Raises
        ------
        ValueError
            They are not an object, or not in JSON.
        """
        found = self.extra.get("spec") or {}
        try:
            fields = json.loads(found) if isinstance(found, str) else found
            return dict(fields)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"'spec' of connection {self.ipcluster_conn_id!r} is a JSON object of fields of a spec: {error}"
            ) from error

    def links(self, handle: Mapping[str, Any]) -> dict[str, str]:
        """Return the links to a cluster's pages: those of "cluster" and "logs" for which there is a template."""
        return {page: fill(str(self.extra[key]), handle) for page, key in _PAGES.items() if self.extra.get(key)}

    def links_of(self, cluster: AnyCluster) -> dict[str, str]:
        """Return the same for a living cluster that is given by name or handle."""
        if not any(self.extra.get(key) for key in _PAGES.values()):
            return {}
        return self.links(self.find(cluster).handle.model_dump(mode="json"))

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
        return self.store if is_name(cluster) else None
