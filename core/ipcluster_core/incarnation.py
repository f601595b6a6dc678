"""One incarnation's things in the store and on disk: its record, its secret, its folder with sockets and logs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from . import segments
from .errors import (
    ClusterBroken,
    ClusterError,
    ClusterNotFound,
    NotAuthorized,
    StaleHandle,
    StoreConflict,
    StoreDamaged,
    StoreError,
)
from .process import Identity, is_here
from .record import ClusterState, Record, secret_key_of, title_of
from .store import Store, open_store

if TYPE_CHECKING:
    from .handle import ClusterHandle

__all__ = [
    "CONTROL",
    "LOG_FORMAT",
    "MARK",
    "TASK",
    "Reference",
    "find_record",
    "forget",
    "log_path",
    "make_folder",
    "note",
    "older_log",
    "read_record",
    "refer",
    "require_here",
    "resolve",
    "secret_of",
    "tail_of",
    "update",
]

#: Names of the sockets in an incarnation's folder: the broker's and the controller's.
TASK = "task"
CONTROL = "control"

#: How each part writes a line of its log.
LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"

#: What is needed of a handle to find its cluster.
_HANDLE_KEYS = ("name", "incarnation", "uid", "store")

#: Name of the file in an incarnation's folder that says whose it is: tag, store and host, a line each.
MARK = "tag"

#: How much of a log is quoted when its process failed.
_TAIL_BYTES = 4096
_TAIL_LINES = 20

#: Bytes that a line of a log may have on average for a longer tail to be complete.
_LINE_BYTES = 1000


def find_record(store: Store, name: str) -> tuple[Record, int] | None:
    """Return a name's record and its version, None when there is none; StoreDamaged if it cannot be read."""
    try:
        document = store.read("record", name)
    except StoreDamaged as error:
        raise StoreDamaged(f"the record of cluster {name!r} is damaged ({error}): tear it down to clean up") from error
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
    StoreDamaged
        It is damaged or of a newer schema.
    """
    found = find_record(store, name)
    if found is None:
        raise ClusterNotFound(f"there is no cluster {name!r} in {store.url}")
    return found[0]


class Reference(NamedTuple):
    """What somebody calls a cluster: its name, and which incarnation of it if that was said."""

    name: str
    incarnation: int | None = None
    uid: str | None = None

    @property
    def tag(self) -> str | None:
        """What marks the processes of that incarnation; None when none was said."""
        return None if self.uid is None else f"{self.name}/{self.incarnation}/{self.uid}"


def refer(cluster: str | Mapping[str, Any] | ClusterHandle, store: str | Store | None) -> tuple[Store, Reference]:
    """Understand a name, handle, dict or JSON.

    Returns
    -------
    tuple
        The store that is meant, and who is meant; neither is looked at.

    Raises
    ------
    ClusterError
        The handle is of a newer schema.
    TypeError
        It is given in none of these forms.
    ValueError
        The JSON is damaged, or the dict is not that of a handle.
    """
    # A handle is told by its method, so that its class and the model library need not be loaded here.
    dump = getattr(cluster, "model_dump", None)
    text: object = cluster if dump is None else dump()
    if isinstance(text, str) and text.lstrip().startswith("{"):
        try:
            text = json.loads(text)
        except ValueError as error:
            raise ValueError(f"this is not the JSON of a handle: {error}") from error
    if isinstance(text, str):
        opened = store if store is not None and not isinstance(store, str) else open_store(store)
        return opened, Reference(text)
    if not isinstance(text, Mapping):
        raise TypeError(f"a cluster is given by name, handle, dict or JSON, not by {type(cluster).__name__}")
    if text.get("schema") != 1:
        raise ClusterError(f"a handle of schema {text.get('schema')!r} cannot be read by this version: it reads 1")
    missing = [key for key in _HANDLE_KEYS if key not in text]
    if missing:
        raise ValueError(f"this is not a handle: it has no {', '.join(missing)}")
    opened = store if store is not None and not isinstance(store, str) else open_store(store or text["store"])
    return opened, Reference(text["name"], text["incarnation"], text["uid"])


def resolve(cluster: str | Mapping[str, Any] | ClusterHandle, store: str | Store | None) -> tuple[Store, Record]:
    """Find a cluster given by name, handle, dict or JSON.

    Returns
    -------
    tuple
        Its store and its record.

    Raises
    ------
    ClusterNotFound
        There is no such record.
    StaleHandle
        The handle is of another incarnation.
    ClusterError, TypeError, ValueError
        As for `refer`.
    """
    opened, reference = refer(cluster, store)
    record = read_record(opened, reference.name)
    if reference.uid not in (None, record.uid):
        raise StaleHandle(
            f"the handle is of cluster {reference.name!r} #{reference.incarnation}, which is over; "
            f"that name now belongs to #{record.incarnation} ({record.state})"
        )
    return opened, record


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


def note(store: Store, tag: str, change: Callable[[Record], Record | None]) -> None:
    """Change a record as `update` does, but go on when the store fails: what is being ended must end all the same."""
    try:
        update(store, tag, change)
    except StoreError:
        import logging  # what runs a step's tasks never comes here, and starts without it

        logging.getLogger(__name__).exception("the record of %s cannot be changed", title_of(tag))


def require_here(record: Record) -> None:
    """Make sure that the incarnation's sockets may be reached: they belong to the machine on which its nanny runs.

    Raises
    ------
    ClusterBroken
        It runs on another one.
    """
    nanny = None if record.head is None else record.head.nanny
    if nanny is not None and not is_here(Identity.from_dict(nanny)):
        where = Identity.from_dict(nanny).host
        raise ClusterBroken(f"{record.title} runs on host {where!r} and cannot be reached from {os.uname().nodename!r}")


def secret_of(store: Store, tag: str) -> str:
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
        document = store.read("secret", secret_key_of(tag))
    except StoreError as error:
        raise NotAuthorized(f"the secret of {title_of(tag)} cannot be read: {error}") from error
    if document is None:
        raise NotAuthorized(f"the secret of {title_of(tag)} is not in {store.url}: the cluster has ended")
    key = document.value.get("key")
    if not isinstance(key, str):
        raise NotAuthorized(f"the secret of {title_of(tag)} in {store.url} is damaged: tear the cluster down")
    return key


def make_folder(store: Store, tag: str, folder: str) -> None:
    """Make an incarnation's folder, for its user only, and mark it, so that it can be found without a record.

    What is around it stays as it is, if it is there: it may be the folder for temporary files, which is others' too.
    """
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent):
        os.makedirs(parent, exist_ok=True)
        os.chmod(parent, 0o700)
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o700)
    with open(os.path.join(folder, MARK), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{tag}\n{store.url}\n{os.uname().nodename}\n")


def forget(store: Store, tag: str, folder: str) -> None:
    """Remove an incarnation's secret and folder; what is gone already is no error."""
    import glob
    import shutil

    from . import remains

    for unit in glob.glob(os.path.join(glob.escape(folder), "mpi-*")):
        remains.remove(unit)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(segments.folder_of(tag.rpartition("/")[2]), ignore_errors=True)
    with suppress(StoreError):  # it cannot be reached: whoever ends a cluster goes on
        if not _has_passed_on(store, tag):
            store.discard("secret", secret_key_of(tag))


def _has_passed_on(store: Store, tag: str) -> bool:
    """Tell whether an incarnation's number, and so the key of its secret, is another one's: its record was removed."""
    try:
        found = find_record(store, tag.partition("/")[0])
    except StoreDamaged:
        return False
    return found is not None and found[0].tag != tag and found[0].secret == secret_key_of(tag)


def log_path(folder: str, part: str) -> str:
    """Return the log of a part: "nanny", "controller", "broker", "engine-<id>" or "mpiexec-<id>"."""
    return os.path.join(folder, f"{part}.log")


def older_log(path: str) -> str:
    """Return where the older half of a log is: a log that is full begins anew."""
    return f"{path}.1"


def tail_of(path: str, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log; empty when there is no log."""
    wanted = _TAIL_BYTES if lines <= _TAIL_LINES else lines * _LINE_BYTES
    data = b""
    for file in (path, older_log(path)):
        data = _end_of(file, wanted - len(data)) + data
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:]) if lines > 0 else ""


def _end_of(path: str, length: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - length))
            return file.read()
    except OSError:
        return b""
