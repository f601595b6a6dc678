"""A store in this process's memory: for tests, and for trying things out."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ..errors import StoreConflict, StoreDamaged
from .base import Document, Kind, check_key

__all__ = ["MemoryStore"]


class MemoryStore:
    """See `Store` for the contract. Stores of one name share their documents."""

    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()
        # JSON text and version: what the other stores cannot keep is not kept here either.
        self._documents: dict[tuple[Kind, str], tuple[str, int]] = {}
        self._versions = 0

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return this process's store of that name; an empty name gives a new private one."""
        return cls._named.setdefault(name, cls(name)) if name else cls()

    @classmethod
    def drop(cls, name: str) -> None:
        """Forget this process's store of that name."""
        cls._named.pop(name, None)

    @property
    def url(self) -> str:
        """URL of this store; it opens the same store in this process only."""
        return f"memory:{self._name}"

    def read(self, kind: Kind, key: str) -> Document | None:
        """Return the current document or None."""
        with self._lock:
            found = self._documents.get((kind, check_key(key)))
        try:
            return None if found is None else Document(json.loads(found[0]), found[1])
        except ValueError as error:
            raise StoreDamaged(f"{kind} {key!r} in {self.url} is not JSON: {error}") from error

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none; StoreConflict where there is one."""
        return self._put(kind, key, value, None)

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version; StoreConflict if it changed."""
        return self._put(kind, key, value, version)

    def _put(self, kind: Kind, key: str, value: Mapping[str, Any], version: int | None) -> Document:
        text = json.dumps(dict(value))
        with self._lock:
            self._expect(kind, key, version)
            self._versions += 1
            self._documents[kind, key] = text, self._versions
            return Document(value, self._versions)

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version; StoreConflict if it changed."""
        with self._lock:
            self._expect(kind, key, version)
            del self._documents[kind, key]

    def discard(self, kind: Kind, key: str) -> None:
        """Remove whatever stands under a key; nothing there is no error."""
        with self._lock:
            self._documents.pop((kind, check_key(key)), None)

    def _expect(self, kind: Kind, key: str, version: int | None) -> None:
        current = self._documents.get((kind, check_key(key)))
        if (current[1] if current else None) != version:
            raise StoreConflict(f"{kind} {key!r} in {self.url} is not at version {version}")

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted."""
        with self._lock:
            return iter(sorted(key for of, key in self._documents if of == kind))

    def run_folder(self, uid: str) -> str:
        """Return a folder for sockets and logs below the temporary folder."""
        return os.path.join(tempfile.gettempdir(), f"ipcluster-{uid}")
