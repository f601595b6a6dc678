"""Where records and secrets live, keyed by name: the truth that every process shares.

A store is a table of small JSON documents in two kinds. Each document has a version; every change names the
version it replaces, so of any number of concurrent writers one wins and the others get `StoreConflict`.
"""

from .base import KINDS, Document, Kind, Store, open_store

__all__ = ["KINDS", "Document", "Kind", "Store", "open_store"]
