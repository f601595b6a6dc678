"""One incarnation's things in the store and on disk: its record, its secret, its folder with sockets and logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress

from .errors import ClusterNotFound, NotAuthorized, StoreConflict, StoreError
from .record import ClusterState, Record
from .store import Store

__all__ = ["TASK", "find_record", "forget", "log_path", "read_record", "secret_of", "tail_of", "update"]

#: Name of the task socket in an incarnation's folder.
TASK = "task"

#: How much of a log is quoted when its process failed.
_TAIL_BYTES = 4096
_TAIL_LINES = 20


def find_record(store: Store, name: str) -> tuple[Record, int] | None:
    """Return a name's record and its version, None when there is none; StoreError if it is damaged."""
    document = store.read("record", name)
    return None if document is None else (Record.from_dict(document.value), document.version)


def read_record(store: Store, name: str) -> Record:
    """Read the record of a name.

    Returns
    -------
    Record
        Whatever its state.

    Raises
    ------
    ClusterNotFound
        There is none.
    StoreError
        It is damaged or of a newer schema.
    """
    found = find_record(store, name)
    if found is None:
        raise ClusterNotFound(f"there is no cluster {name!r} in {store.url}")
    return found[0]


def update(store: Store, tag: str, change: Callable[[Record], Record | None]) -> Record | None:
    """Change the record of exactly one incarnation, whoever else writes.

    `change` gets the current record and returns the new one, or None to leave it; it may be called again after a
    conflict. An ended record is never changed.

    Returns
    -------
    Record or None
        The new record; None when it was left, is ended, or the name has gone on to another incarnation.
    """
    while True:
        found = find_record(store, tag.partition("/")[0])
        if found is None or found[0].tag != tag or found[0].state is ClusterState.ENDED:
            return None
        changed = change(found[0])
        if changed is None:
            return None
        with suppress(StoreConflict):
            store.swap("record", changed.name, changed.to_dict(), found[1])
            return changed


def secret_of(store: Store, record: Record) -> str:
    """Read the secret of an incarnation.

    Returns
    -------
    str
        What each partner has to show.

    Raises
    ------
    NotAuthorized
        The store does not hold it (any more), or this user may not read it.
    """
    try:
        document = store.read("secret", record.secret)
    except StoreError as error:
        raise NotAuthorized(f"the secret of {record.title} cannot be read: {error}") from error
    if document is None:
        raise NotAuthorized(f"the secret of {record.title} is not in {store.url}: the cluster has ended")
    return str(document.value["key"])


def forget(store: Store, tag: str, folder: str) -> None:
    """Remove an incarnation's secret and folder; what is gone already is no error."""
    name, incarnation, _ = tag.split("/")
    key = f"{name}.{incarnation}"
    with suppress(StoreConflict):
        document = store.read("secret", key)
        if document is not None:
            store.delete("secret", key, document.version)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(os.path.dirname(folder))


def log_path(folder: str, part: str) -> str:
    """Return the log of a part: "nanny", "controller", "broker" or "engine-<id>"."""
    return os.path.join(folder, f"{part}.log")


def tail_of(path: str, start: int = 0, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, from byte `start` on; empty when there is no log."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - max(_TAIL_BYTES, lines * 200)))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
