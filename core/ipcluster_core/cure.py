"""Ends what has no record that could be read: found by its tag, ended, removed, and told.

What has to be cured is a record that is damaged, half-made or of a newer schema, and processes without a record.
Afterwards the name has a record again, which says that it ended, so that its incarnations go on counting.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .ending import TeardownReport, this_process
from .errors import ClusterBroken, ClusterInUse, StoreConflict, StoreDamaged
from .incarnation import Reference, forget
from .process import end_all
from .record import SCHEMA, ClusterState, Ended, Record, utc_now
from .store import Store
from .strays import Folder, Stray, folders_of, incarnation_of, is_tag, pids_text, processes_of, uid_of

__all__ = ["cure_record", "cure_strays", "is_newer"]

#: Most seconds that processes get to end by themselves: a nanny ends best what it has started.
_GRACE_SECONDS = 5.0


class _Salvage(NamedTuple):
    """What can still be told from a record that cannot be read as one."""

    tag: str | None = None
    schema: object = None
    claims: frozenset[str] = frozenset()


def _salvage(store: Store, name: str) -> _Salvage:
    try:
        document = store.read("record", name)
    except StoreDamaged:
        return _Salvage()
    value: Mapping[str, Any] = {} if document is None else document.value
    tag = f"{name}/{value.get('incarnation')}/{value.get('uid')}"
    claims = value.get("claims")
    taken = frozenset(map(str, claims)) if isinstance(claims, Mapping) else frozenset[str]()
    return _Salvage(tag if is_tag(tag) else None, value.get("schema"), taken)


def is_newer(store: Store, name: str) -> bool:
    """Tell whether a record that cannot be read is whole, and of a newer version of this package."""
    schema = _salvage(store, name).schema
    return isinstance(schema, int) and schema > SCHEMA


async def cure_record(
    store: Store,
    who: Reference,
    *,
    claim: str | None,
    force: bool,
    timeout: float,
    reason: str = "torn down",
    elsewhere: bool | None = None,
) -> TeardownReport:
    """End a cluster whose record cannot be read, and put one that says so in its place.

    Parameters
    ----------
    store, who
        With an incarnation, only what is of that incarnation is touched.
    claim, force
        As for a teardown, as far as the claims can be read.
    timeout
        Seconds.
    reason
        Why it ended.
    elsewhere
        Do it although another host may run it; default: as `force` says.

    Returns
    -------
    TeardownReport
        What was found, and what could not be ended.

    Raises
    ------
    ClusterInUse
        Its record names claims of others, and `force` is not set.
    ClusterBroken
        Another host may run it.
    """
    salvage = await asyncio.to_thread(_salvage, store, who.name)
    others = salvage.claims - {claim}
    if others and not force and who.tag in (None, salvage.tag):
        raise ClusterInUse(
            f"cluster {who.name!r}, whose record cannot be read by this version, is in use by: "
            f"{', '.join(sorted(others))}; use force to end it for them"
        )
    folders = await asyncio.to_thread(folders_of, store, who.name)
    hosts = {folder.host for tag, folder in folders.items() if who.tag in (None, tag)} - {os.uname().nodename}
    if hosts and not (force if elsewhere is None else elsewhere):
        raise ClusterBroken(
            f"the record of cluster {who.name!r} cannot be read, and its folder is of another host "
            f"({', '.join(sorted(hosts))}): tear it down there, or use force if that host is gone"
        )
    return await asyncio.to_thread(_cure_record, store, who, salvage, folders, timeout, reason)


def _cure_record(  # noqa: PLR0917 - all of what is known, handed to a thread
    store: Store, who: Reference, salvage: _Salvage, folders: Mapping[str, Folder], timeout: float, reason: str
) -> TeardownReport:
    salvaged = () if salvage.tag is None else (salvage.tag,)
    known = {*processes_of(store, who.name), *folders, *salvaged}
    mine = known if who.tag is None else {who.tag}
    found, left = _end(store, who.name, mine, folders, timeout)
    message = f"the record of cluster {who.name!r} could not be read; {found}"
    if known - mine:
        # The record may be that of another incarnation: it is not this one's to touch.
        return TeardownReport(who.name, "ended" if known & mine else "already gone", message, tuple(left), cured=True)
    # Nobody can say of which incarnations the secrets are, and none of them lives.
    for key in [key for key in store.keys("secret") if key.rpartition(".")[0] == who.name]:
        store.discard("secret", key)
    _bury(store, who.name, mine, f"{reason}; its record could not be read; {found}")
    return TeardownReport(who.name, "ended", message, tuple(left), cured=True)


def _end(
    store: Store, name: str, tags: Collection[str], folders: Mapping[str, Folder], timeout: float
) -> tuple[str, list[str]]:
    """End the processes that carry tags and remove what belongs to them; say what was found, and what is left."""

    def pids() -> list[int]:
        return [pid for tag, found in processes_of(store, name).items() if tag in tags for pid in found]

    before = pids()
    left = [str(who) for who in end_all(pids, grace=min(_GRACE_SECONDS, timeout / 2), timeout=timeout)]
    said = [f"ended {pids_text(before)}" if before else "none of its processes was found"]
    for tag in sorted(tags):
        folder = folders[tag].path if tag in folders else store.run_folder(uid_of(tag))
        found = os.path.lexists(folder)
        forget(store, tag, folder)
        if os.path.lexists(folder):
            left.append(f"folder {folder}")
        elif found:
            said.append(f"removed {folder}")
    return ", ".join(said), left


def _bury(store: Store, name: str, tags: Collection[str], reason: str) -> None:
    """Put a record that says how a name ended in the place of one that cannot be read, or of none."""
    last = max(tags, key=incarnation_of, default=f"{name}/1/{os.urandom(6).hex()}")
    ended = Ended(reason, utc_now(), this_process())
    record = Record(name, incarnation_of(last), uid_of(last), ClusterState.ENDED, created=ended.at, ended=ended)
    with suppress(StoreConflict):  # somebody else has cured it meanwhile
        try:
            document = store.read("record", name)
        except StoreDamaged:
            store.discard("record", name)
            document = None
        if document is None:
            store.create("record", name, record.to_dict())
        elif not _is_readable(document.value):
            store.swap("record", name, record.to_dict(), document.version)


def _is_readable(value: Mapping[str, Any]) -> bool:
    try:
        Record.from_dict(value)
    except StoreDamaged:
        return False
    return True


async def cure_strays(
    store: Store, strays: Collection[Stray], *, timeout: float, reason: str = "torn down"
) -> TeardownReport:
    """End processes of one name that no record speaks of, and remove what belongs to them.

    Returns
    -------
    TeardownReport
        What was found, and what could not be ended.
    """
    return await asyncio.to_thread(_cure_strays, store, strays, timeout, reason)


def _cure_strays(store: Store, strays: Collection[Stray], timeout: float, reason: str) -> TeardownReport:
    (name,) = {stray.name for stray in strays}
    tags = {stray.tag for stray in strays}
    found, left = _end(store, name, tags, folders_of(store, name), timeout)
    if store.read("record", name) is None:
        _bury(store, name, tags, f"{reason}; it had no record; {found}")
    message = "; ".join([f"cluster {name!r} had {stray.reason}" for stray in strays] + [found])
    return TeardownReport(name, "ended", message, tuple(left), cured=True)
