"""Creating a cluster: one winner for a name, the intent in the store before anything starts.

A create that is killed leaves a record that says who was creating it. The next create with that name adopts what
lives, or cleans up and starts the next incarnation.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from . import ending
from .adoption import Creation, IfExists, decide_creation
from .backends import get_backend
from .control import ask
from .errors import ClusterEnded, ClusterError, ClusterExists, ClusterTimeout, LaunchError, StoreConflict
from .incarnation import find_record, make_folder, update
from .launchers import get_launcher
from .process import Identity, identify, liveness
from .record import ClusterState, Liveness, Record, check_name, utc_now
from .store import Store
from .wanted import at_least_of, bounds_of, sets_of

__all__ = ["create", "take_claim"]

logger = logging.getLogger(__name__)

#: Seconds for each of the two ways of ending what could not be created: asking, and force. Whoever has interrupted the
#: create may not wait for long (Airflow: 5 s).
_UNDO_SECONDS = 2.0

#: Seconds between looks at a record that somebody else is changing.
_LOOK_SECONDS = 0.02

#: Seconds after the creator's limit at which a cluster that is not ready ends by itself: who would end it is gone.
_GRACE_SECONDS = 10.0


async def create(
    store: Store,
    name: str,
    spec: Mapping[str, Any],
    *,
    if_exists: IfExists,
    claim: str | None,
    owned: bool,
    timeout: float,
) -> tuple[Record, bool]:
    """Create a cluster, or attach to the one that is there.

    Returns
    -------
    tuple
        The running incarnation's record, and whether it was created here.

    Raises
    ------
    ClusterExists
        There is one, and ``if_exists="fail"``.
    LaunchError
        It could not be started; the message ends with the last output of what failed. Nothing is left of it.
    ClusterTimeout
        It was not ready in time. Nothing is left of it.
    ValueError
        The name, or `if_exists`, is not valid.
    """
    check_name(name)
    if if_exists not in ("attach", "fail", "replace"):
        raise ValueError(f"if_exists is 'attach', 'fail' or 'replace', not {if_exists!r}")
    deadline = time.monotonic() + timeout
    while True:
        found = find_record(store, name)
        record = found[0] if found else None
        decision = _decide(record, if_exists)
        if decision is Creation.START:
            made = _declare(store, name, spec, claim, found)
            if made is not None:
                return await _start(store, made, owned=owned, deadline=deadline), True
        elif decision is Creation.ATTACH and record is not None:
            taken = take_claim(store, record, claim)
            if taken is not None:
                logger.info("attached to %s, which was created by %s", record.title, _creator(record))
                return taken, False
        elif record is not None:
            await _clear_the_way(store, record, decision, deadline)
        if time.monotonic() > deadline:
            state = "not there" if record is None else str(record.state)
            raise ClusterTimeout(
                f"cluster {name!r} is still {state} after {timeout:g} s; another create may be at work"
            )


async def _clear_the_way(store: Store, record: Record, decision: Creation, deadline: float) -> None:
    """Do what has to be done about the record of a name before its cluster can be created."""
    left = max(1.0, deadline - time.monotonic())
    match decision:
        case Creation.REFUSE:
            raise ClusterExists(
                f"{record.title} exists ({record.state}), created {record.created} by {_creator(record)}: "
                "attach to it, replace it, or take another name"
            )
        case Creation.CLEAN:
            logger.warning("%s was left %s by %s and is cleaned up", record.title, record.state, _creator(record))
            reason = f"found {record.state} without its processes, and cleaned up"
            await ending.clean(store, record, reason, ending.this_process(), left)
        case Creation.REPLACE:
            reason = "replaced by a new cluster"
            await ending.teardown(store, record, claim=None, counter=None, force=True, timeout=left, reason=reason)
        case _:
            # A record cannot be waited for, only read again.
            await asyncio.sleep(_LOOK_SECONDS)


def _decide(record: Record | None, if_exists: IfExists) -> Creation:
    if record is None:
        return decide_creation(None, None, None, if_exists)
    creator = None if record.creator is None else liveness(Identity.from_dict(record.creator))
    return decide_creation(str(record.state), ending.head_liveness(record), creator, if_exists)


def _creator(record: Record) -> str:
    return "an unknown process" if record.creator is None else str(Identity.from_dict(record.creator))


def _declare(
    store: Store, name: str, spec: Mapping[str, Any], claim: str | None, found: tuple[Record, int] | None
) -> Record | None:
    """Put the intent into the store; None when somebody else was first."""
    uid = os.urandom(6).hex()
    record = Record(
        name=name,
        incarnation=1 if found is None else found[0].incarnation + 1,
        uid=uid,
        state=ClusterState.CREATING,
        backend=spec["backend"],
        launcher=spec["launcher"],
        created=utc_now(),
        spec=spec,
        sets=sets_of(spec),
        adapting=bounds_of(spec),
        labels=spec["labels"],
        creator=identify().to_dict(),
        folder=store.run_folder(uid),
        claims={} if claim is None else {claim: 1},
        claims_taken=0 if claim is None else 1,
    )
    try:
        if found is None:
            store.create("record", name, record.to_dict())
        else:
            store.swap("record", name, record.to_dict(), found[1])
    except StoreConflict:
        return None
    return record


def take_claim(store: Store, record: Record, claim: str | None) -> Record | None:
    """Add a claim to a running cluster; None when it has ended meanwhile."""
    if claim is None:
        return record

    def change(current: Record) -> Record | None:
        if current.state is not ClusterState.RUNNING:
            return None
        taken = current.claims_taken + 1
        return current._replace(claims={**current.claims, claim: taken}, claims_taken=taken)

    return update(store, record.tag, change)


async def _start(store: Store, record: Record, *, owned: bool, deadline: float) -> Record:
    try:
        key = os.urandom(32).hex()
        store.create("secret", record.secret, {"key": key})
        make_folder(store, record.tag, record.folder)
        left = max(1.0, deadline - time.monotonic())
        boot = {**_boot_document(store, record, owned=owned), "start_seconds": left + _GRACE_SECONDS}
        await get_launcher(record.launcher).start(boot, timeout=left)
        left = max(1.0, deadline - time.monotonic())
        await ask(record, key, "wait", timeout=left + 2, n=boot["at_least"], limit=left)
    except BaseException as error:
        interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        reason = f"it was interrupted by {ending.this_process()}" if interrupted else str(error) or repr(error)
        cleaning = asyncio.ensure_future(_undo(store, record, f"it could not be created: {reason}"))
        # Once begun, the clean-up is not interrupted by the cancellation that led to it.
        await asyncio.shield(cleaning)
        if isinstance(error, ClusterEnded):
            raise LaunchError(str(error)) from error
        raise
    found = find_record(store, record.name)
    if found is None or found[0].tag != record.tag:
        raise ClusterEnded(f"{record.title} was replaced while it was created")
    return found[0].require_living()


async def _undo(store: Store, record: Record, reason: str) -> None:
    found = find_record(store, record.name)
    current = found[0] if found is not None and found[0].tag == record.tag else record
    by = ending.this_process()
    job = current.head
    if job is not None and ending.head_liveness(current) is Liveness.ALIVE:
        try:
            await ending.ask_to_end(store, current, job, reason=reason, by=by, timeout=_UNDO_SECONDS)
        except ClusterError as error:
            logger.info("%s does not answer (%s) and is ended by force", record.title, error)
    await ending.clean(store, current, reason, by, _UNDO_SECONDS)


def _boot_document(store: Store, record: Record, *, owned: bool) -> dict[str, Any]:
    """Return all that a nanny must know; it holds no secret."""
    spec = record.spec
    cwd = spec["cwd"]
    if cwd is None:
        try:
            cwd = os.getcwd()
        except FileNotFoundError:
            cwd = os.path.expanduser("~")
    roles: Mapping[str, str] = get_backend(record.backend).roles()
    return {
        "tag": record.tag,
        "store": store.url,
        "folder": record.folder,
        "launcher": record.launcher,
        "roles": dict(roles),
        "spec": dict(spec),
        "sets": dict(record.sets),
        "adapting": dict(record.adapting),
        "at_least": at_least_of(spec),
        "preload": spec["preload"],
        "env": spec["env"],
        "cwd": cwd,
        "python": spec["python"],
        "owner": identify().to_dict() if owned else None,
    }
