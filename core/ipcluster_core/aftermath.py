"""Why a cluster is gone: from its record, from its nanny's absence, from its broker's log."""

from __future__ import annotations

import time

from .errors import ClusterBroken, ClusterEnded, ClusterError, StoreError
from .incarnation import find_record, log_path, tail_of
from .process import Identity, liveness
from .record import ClusterState, Liveness, Record
from .store import Store

__all__ = ["known_end", "verdict"]

#: Seconds to wait for a reason to appear in the record after the broker has gone.
_VERDICT_SECONDS = 3.0


def known_end(store: Store, record: Record) -> ClusterError | None:
    """Return how an incarnation ended, None if it seems to live."""
    try:
        found = find_record(store, record.name)
    except StoreError as error:
        return error
    if found is None or found[0].tag != record.tag:
        return ClusterEnded(f"{record.title} is over and its record is gone")
    if found[0].state is ClusterState.ENDED:
        return ClusterEnded(found[0].end_message())
    head = found[0].head
    nanny = None if head is None else head.nanny
    if nanny is not None and liveness(Identity.from_dict(nanny)) is Liveness.GONE:
        who = Identity.from_dict(nanny)
        return ClusterBroken(f"{record.title} is broken: its nanny ({who}) is gone; tear it down to clean up")
    return None


def verdict(store: Store, record: Record, fact: str) -> ClusterError:
    """Say why the broker is gone; wait a moment for the reason to be written into the record.

    Returns
    -------
    ClusterError
        `ClusterEnded` with the recorded reason, else `ClusterBroken` with the `fact` and the broker's last output.
    """
    deadline = time.monotonic() + _VERDICT_SECONDS
    tail = tail_of(log_path(record.folder, "broker"))
    while time.monotonic() < deadline:
        over = known_end(store, record)
        if isinstance(over, ClusterEnded):
            return over
        # Nothing announces a change of the record to a process that has lost its broker.
        time.sleep(0.02)
    return known_end(store, record) or ClusterBroken(f"{fact}\n{tail}".rstrip())
