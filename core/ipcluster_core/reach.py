"""Reaching exactly one incarnation: wait until it runs, ask its controller, and say what is wrong where that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import ending
from .control import ask
from .errors import ClusterBroken, ClusterNotFound, ClusterTimeout, StaleHandle
from .incarnation import find_record, resolve, secret_of
from .record import ClusterState, Record
from .store import Store

if TYPE_CHECKING:
    from .handle import ClusterHandle

__all__ = ["ask_controller", "current", "find_running"]

#: Seconds between two looks at a record: it cannot be waited for, only read again.
_LOOK_SECONDS = 0.02


async def find_running(
    cluster: str | Mapping[str, Any] | ClusterHandle, store: str | Store | None, timeout: float
) -> tuple[Store, Record]:
    """Find a cluster that runs, or wait for one that is still being created; see `Cluster.connect` for the errors."""
    deadline = time.monotonic() + timeout
    opened, record = await asyncio.to_thread(resolve, cluster, store)
    while record.require_living().state is ClusterState.CREATING:
        _require_head(record)
        if time.monotonic() > deadline:
            raise ClusterTimeout(f"{record.title} is still being created after {timeout:g} s")
        await asyncio.sleep(_LOOK_SECONDS)
        opened, record = await asyncio.to_thread(resolve, record.name, opened)
    _require_head(record)
    return opened, record


def current(store: Store, record: Record) -> Record:
    """Return the record as it is now.

    Returns
    -------
    Record
        Of the same incarnation.

    Raises
    ------
    ClusterNotFound
        It is gone.
    StaleHandle
        The name has gone on to another incarnation.
    """
    found = find_record(store, record.name)
    if found is None:
        raise ClusterNotFound(f"the record of {record.title} is gone from {store.url}")
    if found[0].tag != record.tag:
        raise StaleHandle(f"{record.title} is over; that name now belongs to #{found[0].incarnation}")
    return found[0]


async def ask_controller(
    store: Store, record: Record, verb: str, *, timeout: float, **arguments: Any
) -> Mapping[str, Any]:
    """Ask this incarnation's controller; when it does not answer, say what the record and the kernel know."""
    found = current(store, record).require_living()
    _require_head(found)
    return await ask(found, secret_of(store, found.tag), verb, timeout=timeout, **arguments)


def _require_head(record: Record) -> None:
    """Raise ClusterBroken when the processes of a living record are gone."""
    if ending.is_broken(record):
        raise ClusterBroken(
            f"{record.title} is broken: it was {record.state}, and its processes are gone ({ending.fate_of(record)}); "
            "tear it down to clean up"
        )
