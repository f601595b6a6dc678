"""What is left of clusters, found without their records: by the mark on each process and on each folder.

A process is a store's when its environment names that store, see `process.STORE_VARIABLE`. It is a stray when no
record of the store speaks of its incarnation any more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from .errors import StoreDamaged
from .incarnation import MARK, find_record
from .process import tagged_processes
from .record import ClusterState, Record, seconds_since
from .store import Store

__all__ = [
    "Folder",
    "Stray",
    "find_strays",
    "folders_of",
    "incarnation_of",
    "is_tag",
    "judge",
    "pids_text",
    "processes_of",
    "uid_of",
]

#: What marks an incarnation: name, number, random id. Whatever else stands there is none of ours.
_TAG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[0-9]+/[0-9a-f]+")

#: Seconds that the processes of an incarnation may take to go after its record has ended or gone on.
PARTING_SECONDS = 30.0

#: Most pids that a message names.
_MOST_PIDS = 10


class Stray(NamedTuple):
    """Processes of one incarnation that no record speaks of any more, and why they are strays."""

    tag: str
    pids: tuple[int, ...]
    reason: str

    @property
    def name(self) -> str:
        """Name of the cluster that they were of."""
        return self.tag.partition("/")[0]


class Folder(NamedTuple):
    """The folder of an incarnation, and the host that made it."""

    path: str
    host: str


def is_tag(text: str) -> bool:
    """Tell whether a text marks an incarnation."""
    return _TAG.fullmatch(text) is not None


def incarnation_of(tag: str) -> int:
    """Return the number of an incarnation."""
    return int(tag.split("/")[1])


def uid_of(tag: str) -> str:
    """Return the random id of an incarnation."""
    return tag.rpartition("/")[2]


def processes_of(store: Store, name: str | None = None) -> dict[str, list[int]]:
    """Return the pids of a store's clusters on this host (or of one name), by tag; this process is not among them."""
    place = cache(_place)
    found: dict[str, list[int]] = {}
    # A store in memory is of one process: others that name it mean their own.
    for process in tagged_processes() if not store.url.startswith("memory:") else ():
        mine = is_tag(process.tag) and name in (None, process.tag.partition("/")[0])
        if mine and place(process.store) == place(store.url):
            found.setdefault(process.tag, []).append(process.pid)
    return found


def _place(url: str) -> str:
    """Return a URL that is the same for all ways to one store."""
    scheme, _, path = url.partition(":")
    return f"file:{os.path.realpath(path)}" if scheme == "file" else url


def folders_of(store: Store, name: str) -> dict[str, Folder]:
    """Return the folders of a name's incarnations that can be seen from here, by tag."""
    parent, pattern = os.path.split(store.run_folder("*"))
    return {tag: folder for tag, folder in _marked(store, parent, pattern) if tag.startswith(f"{name}/")}


def _marked(store: Store, parent: str, pattern: str) -> Iterator[tuple[str, Folder]]:
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in os.listdir(parent) if fnmatchcase(name, pattern)]
    for folder in (os.path.join(parent, name) for name in names):
        with suppress(OSError, ValueError), open(os.path.join(folder, MARK)) as file:
            tag, url, host = file.read().splitlines()
            if is_tag(tag) and _place(url) == _place(store.url) and os.fstat(file.fileno()).st_uid == os.geteuid():
                yield tag, Folder(folder, host)


def find_strays(store: Store, name: str | None = None, *, now: float | None = None) -> list[Stray]:
    """Find the processes of a store's clusters (or of one name) that no record speaks of, by tag.

    Those whose record is damaged are not among them: they may be in use.

    Parameters
    ----------
    store
        Its records are looked at.
    name
        Of this name only.
    now
        As `time.time` has it, which is the default.

    Returns
    -------
    list of Stray
        Sorted by tag. Processes of other users, hosts and PID namespaces are not seen.
    """
    # Processes first: an incarnation is in its record before it has any.
    living = processes_of(store, name)
    found = []
    for tag in sorted(living):
        try:
            known = find_record(store, tag.partition("/")[0])
        except StoreDamaged:
            continue
        why = judge(tag, known[0] if known else None, time.time() if now is None else now)
        if why is not None:
            found.append(Stray(tag, tuple(sorted(living[tag])), f"{why}: {pids_text(living[tag])}"))
    return found


def judge(tag: str, record: Record | None, now: float) -> str | None:
    """Decide whether processes with a tag are strays, given the record of their name.

    Returns
    -------
    str or None
        Why they are; None when they are not, or may be on their way out.
    """
    if record is None:
        return "processes without a record"
    if record.tag != tag:
        why, since = f"processes of #{incarnation_of(tag)}, which is over", record.created
    elif record.state is ClusterState.ENDED:
        why, since = "processes that outlived their cluster", "" if record.ended is None else record.ended.at
    else:
        return None
    age = seconds_since(since, now)
    return why if age is None or age > PARTING_SECONDS else None


def pids_text(pids: list[int]) -> str:
    """Name processes in a message."""
    shown = ", ".join(map(str, sorted(pids)[:_MOST_PIDS]))
    return f"pids {shown}" + (f" and {len(pids) - _MOST_PIDS} more" if len(pids) > _MOST_PIDS else "")
