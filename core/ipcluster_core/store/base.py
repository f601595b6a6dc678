"""The contract of a store, and the way from a URL to one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..errors import StoreError

__all__ = ["KINDS", "Document", "Kind", "Store", "open_store"]

Kind = Literal["record", "secret"]

#: What a store keeps: records are public to its users, secrets never leave it.
KINDS: tuple[Kind, ...] = ("record", "secret")


@dataclass(frozen=True, slots=True)
class Document:
    """A value together with the version that a change of it must name."""

    value: Mapping[str, Any]
    version: int


class Store(Protocol):
    """What every store does. All calls are safe from any thread and any process, and are atomic."""

    @property
    def url(self) -> str:
        """URL that opens the same store from another process; holds no secret."""

    def read(self, kind: Kind, key: str) -> Document | None:
        """Return the current document, whole, or None when there is none.

        Raises
        ------
        StoreError
            The document cannot be read or is not JSON.
        """

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none.

        Raises
        ------
        StoreConflict
            There is one already.
        """

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version.

        Raises
        ------
        StoreConflict
            The version is no longer the current one.
        """

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version.

        Raises
        ------
        StoreConflict
            The version is no longer the current one.
        """

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted."""

    def run_folder(self, uid: str) -> str:
        """Return where an incarnation keeps its sockets and logs on its host; the caller makes it."""


def _default_url() -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return f"file:{os.path.join(home, 'ipcluster')}"


def open_store(url: str | None = None) -> Store:
    """Open a store by its URL.

    Parameters
    ----------
    url
        ``file:/absolute/folder`` (``~`` is expanded), or ``memory:name`` for one that lives in this process only.
        Default: the environment variable ``IPCLUSTER_STORE``, else ``ipcluster`` in the per-user state folder.

    Returns
    -------
    Store
        Nothing is created until something is written.

    Raises
    ------
    StoreError
        The URL is of no known kind.
    """
    url = url or os.environ.get("IPCLUSTER_STORE") or _default_url()
    scheme, _, rest = url.partition(":")
    if scheme == "file" and rest:
        from .file import FileStore

        path = os.path.expanduser(rest.removeprefix("//"))
        return FileStore(os.path.abspath(path))
    if scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore.named(rest)
    raise StoreError(f"no store for {url!r}: use file:/some/folder or memory:some-name")
