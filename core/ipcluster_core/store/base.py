"""The contract of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

__all__ = ["KINDS", "Document", "Kind", "Store", "check_key"]

Kind = Literal["record", "secret"]

#: What a store keeps: records are public to its users, secrets never leave it.
KINDS: tuple[Kind, ...] = ("record", "secret")


def check_key(key: str) -> str:
    """Return `key` when it may name a document in every store; ValueError otherwise."""
    if not key or "/" in key or "\0" in key or key.startswith("."):
        raise ValueError(f"{key!r} cannot be a key of a store")
    return key


class Document(NamedTuple):
    """A value together with the version that a change of it must name."""

    value: Mapping[str, Any]
    version: int


class Store(Protocol):
    """What every store does. All calls are safe from any thread and any process, and are atomic.

    Values are what JSON can hold. A version never comes again, also not when a key is deleted and made anew. A key
    that is empty, begins with a dot or holds a slash is refused with ValueError.
    """

    @property
    def url(self) -> str:
        """URL that opens the same store from another process; holds no secret."""
        ...

    def read(self, kind: Kind, key: str) -> Document | None:
        """Return the current document, whole, or None when there is none.

        Raises
        ------
        StoreError
            The store cannot be reached.
        StoreDamaged
            A document is there, and is not one: not JSON, half-written.
        """
        ...

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none.

        Raises
        ------
        StoreConflict
            There is one already.
        """
        ...

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version.

        Raises
        ------
        StoreConflict
            The version is no longer the current one.
        """
        ...

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version.

        Raises
        ------
        StoreConflict
            The version is no longer the current one.
        """
        ...

    def discard(self, kind: Kind, key: str) -> None:
        """Remove whatever stands under a key, of any version, also damaged or half-written. Idempotent.

        For what cannot be changed by its version, because it cannot be read; a concurrent change is lost.

        Raises
        ------
        StoreError
            The store cannot be reached, or does not let this user remove it.
        """
        ...

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted; those of damaged documents too."""
        ...

    def run_folder(self, uid: str) -> str:
        """Return where an incarnation keeps its sockets and logs on its host; the caller makes it."""
        ...
