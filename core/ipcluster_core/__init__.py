"""A parallel cluster that the steps of a pipeline share by name.

::

    create  ->  a named, reloadable handle  ->  connect / scale, any step, any process  ->  teardown

Names are imported when they are first used, so ``import ipcluster_core`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import errors
    from .client import Client
    from .cluster import Cluster
    from .ending import TeardownReport
    from .futures import TaskFuture
    from .handle import ClusterHandle
    from .manager import ClusterManager, ClusterSummary
    from .namespaces import namespace
    from .notes import send_note
    from .reaping import ReapResult
    from .record import ClusterState
    from .refs import Ref
    from .spec import ClusterSpec, EngineSpec, SpecFields
    from .status import ClusterEvent, ClusterStatus, EngineStatus
    from .store import Document, Store, open_store

__all__ = [
    "Client",
    "Cluster",
    "ClusterEvent",
    "ClusterHandle",
    "ClusterManager",
    "ClusterSpec",
    "ClusterState",
    "ClusterStatus",
    "ClusterSummary",
    "Document",
    "EngineSpec",
    "EngineStatus",
    "ReapResult",
    "Ref",
    "SpecFields",
    "Store",
    "TaskFuture",
    "TeardownReport",
    "errors",
    "namespace",
    "open_store",
    "send_note",
]

_WHERE = {
    "Client": "client",
    "Cluster": "cluster",
    "ClusterEvent": "status",
    "ClusterHandle": "handle",
    "ClusterManager": "manager",
    "ClusterSpec": "spec",
    "ClusterState": "record",
    "ClusterStatus": "status",
    "ClusterSummary": "manager",
    "Document": "store",
    "EngineSpec": "spec",
    "EngineStatus": "status",
    "ReapResult": "reaping",
    "Ref": "refs",
    "SpecFields": "spec",
    "Store": "store",
    "TaskFuture": "futures",
    "TeardownReport": "ending",
    "namespace": "namespaces",
    "open_store": "store",
    "send_note": "notes",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "errors":
            return import_module(".errors", __name__)
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
