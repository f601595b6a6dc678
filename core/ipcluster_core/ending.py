"""Ending a cluster: give up a claim, ask the controller, and clean up whatever is left by itself.

Idempotent, part by part, bounded in time. "Already gone" is success.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from .control import ask
from .errors import ClusterBroken, ClusterError, ClusterInUse
from .incarnation import find_record, forget, secret_of, update
from .launchers import get_launcher
from .process import Identity, liveness, tagged
from .record import ClusterState, Ended, Job, Liveness, Record, utc_now
from .store import Store

__all__ = [
    "TeardownReport",
    "ask_to_end",
    "clean",
    "head_liveness",
    "is_broken",
    "teardown",
    "this_process",
]


#: Seconds that a controller whose nanny is gone gets to clean up by itself.
_CONTROLLER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TeardownReport:
    """What a teardown did.

    `outcome` is "ended", "already gone", or "released": the claim was given up and the cluster lives on for others.
    `leftovers` names what could not be ended.
    """

    name: str
    outcome: Literal["ended", "already gone", "released"]
    message: str = ""
    leftovers: tuple[str, ...] = field(default=())


def this_process() -> str:
    """Name this process as the author of something."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}, pid {os.getpid()}"


def head_liveness(record: Record) -> Liveness | None:
    """Tell whether the head job lives; None when its nanny has not registered."""
    job = record.head
    return None if job is None else get_launcher(job.launcher).poll(job)


def is_broken(record: Record) -> bool:
    """Tell whether a record that is not ended has certainly lost its processes."""
    if record.state is ClusterState.ENDED:
        return False
    head = head_liveness(record)
    if head is not None:
        return head is Liveness.GONE
    return record.creator is None or liveness(Identity.from_dict(record.creator)) is Liveness.GONE


async def teardown(
    store: Store,
    record: Record,
    *,
    claim: str | None,
    counter: int | None,
    force: bool,
    timeout: float,
    reason: str = "torn down",
) -> TeardownReport:
    """End exactly this incarnation, or give up a claim on it.

    Returns
    -------
    TeardownReport
        What was done.

    Raises
    ------
    ClusterInUse
        Others hold claims, none was given, and `force` is not set.
    ClusterBroken
        It runs on another host and does not answer from here.
    """
    deadline = time.monotonic() + timeout
    others = _give_up(store, record, claim, counter)
    if others is None:
        # Who wrote that it ended may still be cleaning up, or may have been killed before it came to that.
        left = await clean(store, record, reason, this_process(), max(1.0, deadline - time.monotonic()))
        return _gone(store, record, left)
    if others and not force:
        names = ", ".join(sorted(others))
        if claim is None:
            raise ClusterInUse(
                f"{record.title} is in use by: {names}; give up a claim, or use force to end it for them"
            )
        return TeardownReport(record.name, "released", f"{record.title} lives on for: {names}")
    hit = f"; it was in use by: {', '.join(sorted(others))}" if others else ""
    left = await _end(store, record, f"{reason}{hit}", this_process(), deadline)
    return TeardownReport(record.name, "ended", f"{record.title} ended{hit}", tuple(left))


def _gone(store: Store, record: Record, left: list[str]) -> TeardownReport:
    found = find_record(store, record.name)
    message = found[0].end_message() if found and found[0].tag == record.tag else f"{record.title} is over"
    return TeardownReport(record.name, "already gone", message, tuple(left))


def _give_up(store: Store, record: Record, claim: str | None, counter: int | None) -> frozenset[str] | None:
    """Take a claim off the record; return the claims that are left, None when the incarnation is over."""
    left: frozenset[str] | None = None

    def change(current: Record) -> Record | None:
        nonlocal left
        mine = claim if claim is not None and counter in (None, current.claims.get(claim)) else None
        claims = {name: taken for name, taken in current.claims.items() if name != mine}
        left = frozenset(claims)
        return current._replace(claims=claims) if mine in current.claims else None

    update(store, record.tag, change)
    return left


async def _end(store: Store, record: Record, reason: str, by: str, deadline: float) -> list[str]:
    launcher, job = get_launcher(record.launcher), record.head
    if job is not None and launcher.poll(job) is not Liveness.GONE:
        try:
            await ask_to_end(store, record, job, reason=reason, by=by, timeout=max(0.1, deadline - time.monotonic()))
        except ClusterError as error:
            if launcher.poll(job) is Liveness.UNKNOWN:
                where = Identity.from_dict(job.nanny) if job.nanny else "another host"
                raise ClusterBroken(f"{record.title} ({where}) cannot be ended from here: {error}") from error
    return await clean(store, record, reason, by, max(1.0, deadline - time.monotonic()))


async def ask_to_end(store: Store, record: Record, job: Job, *, reason: str, by: str, timeout: float) -> None:
    """Ask a controller to end its cluster, and wait until the head job is gone.

    Raises
    ------
    ClusterError
        It cannot be asked, or does not answer, and its nanny is not gone.
    """
    secret = secret_of(store, record.tag)
    gone = asyncio.ensure_future(get_launcher(record.launcher).wait(job, timeout=timeout))
    asking = asyncio.ensure_future(ask(record, secret, "end", timeout=min(5.0, timeout), reason=reason, by=by))
    try:
        # One that is at its end already does not answer any more.
        await asyncio.wait({gone, asking}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            await asking
            await gone
    finally:
        # Neither outlives this: a wait that goes on would hold up the end of the process that has asked.
        gone.cancel()
        asking.cancel()
        await asyncio.gather(gone, asking, return_exceptions=True)


async def _ended_by_itself(record: Record, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    left: list[int] = await asyncio.to_thread(tagged, record.tag)
    while left and time.monotonic() < deadline:
        await asyncio.sleep(0.02)  # nothing announces the end of processes that are not known by pid
        left = await asyncio.to_thread(tagged, record.tag)


async def clean(store: Store, record: Record, reason: str, by: str, timeout: float) -> list[str]:
    """End what may be left of an incarnation's processes, and make its record say that it ended.

    Returns
    -------
    list of str
        What could not be ended.
    """
    if head_liveness(record) is Liveness.GONE:
        # Its controller, which sees the nanny's end too, may be cleaning up at this moment: do not cut it short.
        await _ended_by_itself(record, min(_CONTROLLER_SECONDS, timeout / 2))
    found = find_record(store, record.name)
    current = found[0] if found is not None and found[0].tag == record.tag else record
    left: list[str] = []
    if current.state is not ClusterState.ENDED:
        ended = Ended(reason, utc_now(), by)
        update(store, record.tag, lambda now: now.with_state(ClusterState.ENDING, ended=now.ended or ended))
        left = await get_launcher(record.launcher).stop(current.head, record.tag, timeout=timeout)
        update(store, record.tag, lambda now: now.with_state(ClusterState.ENDED, ended=now.ended or ended))
    # Also when it has ended by itself: its nanny may have been killed between saying so and this.
    with suppress(ClusterError):
        forget(store, record.tag, record.folder)
    return left
