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
from .process import Identity, liveness, tagged, whereabouts
from .record import ClusterState, Ended, Job, Liveness, Record, utc_now
from .store import Store

__all__ = [
    "TeardownReport",
    "ask_to_end",
    "clean",
    "fate_of",
    "head_liveness",
    "is_broken",
    "life_of",
    "teardown",
    "this_process",
]


#: Seconds between two looks at a record: it cannot be waited for, only read again.
_LOOK_SECONDS = 0.02

#: Seconds that a controller whose nanny is gone gets to clean up by itself.
_CONTROLLER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TeardownReport:
    """What a teardown did.

    `outcome` is "ended", "already gone", or "released": the claim was given up and the cluster lives on for others.
    `leftovers` names what could not be ended; `cured` tells that record and processes did not agree, or one of them
    was missing or could not be read, and `message` then says what was found.
    """

    name: str
    outcome: Literal["ended", "already gone", "released"]
    message: str = ""
    leftovers: tuple[str, ...] = field(default=())
    cured: bool = False


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


def life_of(record: Record) -> Liveness:
    """Tell whether what a record speaks of lives: its head job, or who is creating it."""
    head = head_liveness(record)
    if head is not None:
        return head
    return Liveness.GONE if record.creator is None else liveness(Identity.from_dict(record.creator))


def is_broken(record: Record) -> bool:
    """Tell whether a record that is not ended has certainly lost its processes."""
    return record.state is not ClusterState.ENDED and life_of(record) is Liveness.GONE


def fate_of(record: Record) -> str:
    """Say what became of the processes of a record that is not seen to live."""
    if record.head is not None and record.head.nanny is not None:
        return f"its nanny: {whereabouts(Identity.from_dict(record.head.nanny))}"
    return "" if record.creator is None else f"its creator: {whereabouts(Identity.from_dict(record.creator))}"


async def teardown(
    store: Store,
    record: Record,
    *,
    claim: str | None,
    counter: int | None,
    force: bool,
    timeout: float,
    reason: str = "torn down",
    unseen: bool = False,
) -> TeardownReport:
    """End exactly this incarnation, or give up a claim on it.

    `unseen` allows to forget one that does not answer and whose processes cannot be seen from here.

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
    by, fate = this_process(), fate_of(record) if life_of(record) is Liveness.GONE else ""
    forgotten, left = await _end(store, record, f"{reason}{hit}", by, deadline, unseen=unseen)
    if not left and not _is_mine(store, record, by):
        return _gone(store, record, left)
    found = f"; it was broken ({fate})" if fate else hit
    if forgotten:
        found = f"; it is forgotten here, and not ended ({forgotten})"
    return TeardownReport(
        record.name, "ended", f"{record.title} ended{found}", tuple(left), cured=bool(fate or forgotten)
    )


def _gone(store: Store, record: Record, left: list[str]) -> TeardownReport:
    found = find_record(store, record.name)
    message = found[0].end_message() if found and found[0].tag == record.tag else f"{record.title} is over"
    return TeardownReport(record.name, "already gone", message, tuple(left))


def _is_mine(store: Store, record: Record, by: str) -> bool:
    """Tell whether an incarnation was ended by `by`, and not by somebody who was first."""
    found = find_record(store, record.name)
    ended = found[0].ended if found is not None and found[0].tag == record.tag else None
    return ended is None or ended.by == by


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


async def _end(
    store: Store, record: Record, reason: str, by: str, deadline: float, *, unseen: bool
) -> tuple[str, list[str]]:
    """End a cluster; return what became of the processes of one that was only forgotten, and what is left."""
    forgotten = ""
    launcher, job = get_launcher(record.launcher), record.head
    if job is not None and launcher.poll(job) is not Liveness.GONE:
        try:
            await ask_to_end(store, record, job, reason=reason, by=by, timeout=max(0.1, deadline - time.monotonic()))
        except ClusterError as error:
            if launcher.poll(job) is Liveness.UNKNOWN:
                forgotten = fate_of(record)
            if forgotten and not unseen:
                raise ClusterBroken(
                    f"{record.title} cannot be ended from here ({forgotten}): {error}; end it there, or, if it is gone "
                    "for sure, use force (ipclusterctl teardown --force) to forget it"
                ) from error
    return forgotten, await clean(store, record, reason, by, max(1.0, deadline - time.monotonic()))


async def ask_to_end(
    store: Store, record: Record, job: Job, *, reason: str, by: str, timeout: float, idle_for: float | None = None
) -> None:
    """Ask a controller to end its cluster (only if it was idle for so many seconds), and wait until the job is gone.

    Raises
    ------
    ClusterInUse
        It was not idle for so long.
    ClusterError
        It cannot be asked, or does not answer, and its nanny is not gone.
    """
    secret = secret_of(store, record.tag)
    gone = asyncio.ensure_future(_wait_gone(store, record, job, timeout))
    request = {"reason": reason, "by": by, "idle_for": idle_for}
    asking = asyncio.ensure_future(ask(record, secret, "end", timeout=min(5.0, timeout), **request))
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


async def _wait_gone(store: Store, record: Record, job: Job, timeout: float) -> None:
    launcher = get_launcher(record.launcher)
    if launcher.poll(job) is not Liveness.UNKNOWN:
        await launcher.wait(job, timeout=timeout)
        return
    # What cannot be seen from here says in its record that it has ended.
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = find_record(store, record.name)
        if found is None or found[0].tag != record.tag or found[0].state is ClusterState.ENDED:
            return
        await asyncio.sleep(_LOOK_SECONDS)


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
    elif current.head is not None:
        # What has said that it is over is gone in a moment.
        await _wait_gone(store, current, current.head, min(_CONTROLLER_SECONDS, timeout))
    # Also when it has ended by itself: its nanny may have been killed between saying so and this.
    with suppress(ClusterError):
        forget(store, record.tag, record.folder)
    return left
