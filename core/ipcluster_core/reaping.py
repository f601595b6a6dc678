"""Ends what nobody needs any more: clusters that are old, idle or broken, and what has no record.

`decide` looks at one record and is pure; the rest asks controllers and ends, many at a time, and no failure of one
cluster keeps the others from their end.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from . import ending
from .control import ask
from .cure import cure_record, cure_strays, is_newer
from .ending import TeardownReport
from .errors import ClusterError, ClusterInUse, StoreDamaged
from .incarnation import Reference, find_record, secret_of
from .record import ClusterState, Record, seconds_since
from .store import Store
from .strays import Stray, find_strays, incarnation_of

__all__ = ["ReapResult", "Rule", "Rules", "decide", "reap"]

logger = logging.getLogger(__name__)

#: Seconds that a controller gets to answer.
_ANSWER_SECONDS = 5.0

#: Most clusters that are asked or ended at one time.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ReapResult:
    """What became of one cluster, or of processes without a record.

    `outcome` is "ended", "would end" in a dry run, or "failed: " and the reason; `leftovers` names what could not be
    ended.
    """

    name: str
    incarnation: int
    why: str
    outcome: str
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What is to end. `max_age` and `idle_for` are seconds, None for no such rule."""

    max_age: float | None = None
    idle_for: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    broken: bool = True


class Rule(enum.Enum):
    """Why a cluster may have to end."""

    BROKEN = "its processes are gone"
    AGE = "too old"
    IDLE = "idle, if its controller says so"


class _Case(NamedTuple):
    """Something to end. `error` is there when not even that could be found out."""

    name: str
    incarnation: int = 0
    rule: Rule | None = None
    why: str = ""
    record: Record | None = None
    stray: Stray | None = None
    error: str = ""


def decide(record: Record, *, broken: bool, rules: Rules, now: float) -> Rule | None:
    """Decide by which rule a cluster is to end.

    Parameters
    ----------
    record
        Its record.
    broken
        Whether its processes are certainly gone.
    rules
        What is to end. One that is being created, and one that ends already, is left alone unless it is broken.
    now
        As `time.time` has it.

    Returns
    -------
    Rule or None
        None when it is to live. For IDLE the controller has the last word.
    """
    if record.state is ClusterState.ENDED or not rules.labels.items() <= record.labels.items():
        return None
    if broken:
        return Rule.BROKEN if rules.broken else None
    if record.state is not ClusterState.RUNNING:
        return None
    age = seconds_since(record.created, now)
    if rules.max_age is not None and age is not None and age >= rules.max_age:
        return Rule.AGE
    return None if rules.idle_for is None else Rule.IDLE


async def reap(store: Store, rules: Rules, *, dry_run: bool, timeout: float) -> list[ReapResult]:
    """End what the rules name.

    Returns
    -------
    list of ReapResult
        By name; empty when there was nothing to do.
    """
    cases = await asyncio.to_thread(_survey, store, rules, time.time())
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(case: _Case) -> ReapResult | None:
        async with free:
            return await _reap_one(store, case, rules, dry_run=dry_run, timeout=timeout)

    results = await asyncio.gather(*(one(case) for case in cases))
    return [result for result in results if result is not None]


def _survey(store: Store, rules: Rules, now: float) -> list[_Case]:
    cases = [case for name in store.keys("record") if (case := _look(store, name, rules, now)) is not None]
    if rules.broken and not rules.labels:
        cases += [_Case(s.name, incarnation_of(s.tag), why=s.reason, stray=s) for s in find_strays(store, now=now)]
    return sorted(cases, key=lambda case: (case.name, case.incarnation))


def _look(store: Store, name: str, rules: Rules, now: float) -> _Case | None:
    try:
        found = find_record(store, name)
    except StoreDamaged as error:
        # A newer version's cluster is well as far as anybody here can tell; only a teardown by its name ends it.
        wanted = rules.broken and not rules.labels and not is_newer(store, name)
        return _Case(name, why=str(error)) if wanted else None
    if found is None:
        return None
    record = found[0]
    if not rules.labels.items() <= record.labels.items():
        return None
    try:
        rule = decide(record, broken=ending.is_broken(record), rules=rules, now=now)
    except ClusterError as error:
        # Its launcher cannot be loaded here.
        return _Case(name, record.incarnation, why="unknown", error=str(error))
    if rule is None:
        return None
    why = {
        Rule.BROKEN: f"its processes are gone, it was {record.state}",
        Rule.AGE: f"older than {rules.max_age or 0:g} s",
        Rule.IDLE: "idle",  # for how long is asked later
    }
    return _Case(name, record.incarnation, rule, why[rule], record)


async def _reap_one(store: Store, case: _Case, rules: Rules, *, dry_run: bool, timeout: float) -> ReapResult | None:
    """Carry one case out, whatever comes of it; None when there was nothing to do after all."""
    try:
        return await _carry_out(store, case, rules, dry_run=dry_run, timeout=timeout)
    except ClusterInUse:
        return None  # work has come since it was asked
    except ClusterError as error:
        failed = str(error)
    except Exception as error:
        # The top for one cluster: whatever is wrong with it, the others are reaped.
        logger.exception("cluster %r cannot be reaped", case.name)
        failed = repr(error)
    if await asyncio.to_thread(_is_over, store, case):
        return None
    return ReapResult(case.name, case.incarnation, case.why, f"failed: {failed}")


async def _carry_out(store: Store, case: _Case, rules: Rules, *, dry_run: bool, timeout: float) -> ReapResult | None:
    if case.error:
        raise ClusterError(case.error)
    if case.rule is Rule.IDLE and case.record is not None:
        idle = await _idle_seconds(store, case.record, timeout)
        if idle is None or idle < (rules.idle_for or 0.0):
            return None
        case = case._replace(why=f"idle for {idle:.0f} s")
    if dry_run:
        return ReapResult(case.name, case.incarnation, case.why, "would end")
    report = await _end(store, case, rules, timeout)
    if report.outcome != "ended":
        return None  # somebody else was first
    return ReapResult(case.name, case.incarnation, case.why, "ended", report.leftovers)


async def _idle_seconds(store: Store, record: Record, timeout: float) -> float | None:
    secret = await asyncio.to_thread(secret_of, store, record.tag)
    status = await ask(record, secret, "status", timeout=min(_ANSWER_SECONDS, timeout))
    idle = status["idle_seconds"]
    return None if idle is None else float(idle)


async def _end(store: Store, case: _Case, rules: Rules, timeout: float) -> TeardownReport:
    reason = f"reaped: {case.why}"
    if case.stray is not None:
        return await cure_strays(store, [case.stray], timeout=timeout, reason=reason)
    if case.record is None:
        return await cure_record(
            store, Reference(case.name), claim=None, force=True, timeout=timeout, reason="reaped", elsewhere=False
        )
    by, job = ending.this_process(), case.record.head
    if case.rule is Rule.IDLE and job is not None:
        await ending.ask_to_end(store, case.record, job, reason=reason, by=by, timeout=timeout, idle_for=rules.idle_for)
        left = await ending.clean(store, case.record, reason, by, timeout)
        return TeardownReport(case.name, "ended", reason, tuple(left))
    return await ending.teardown(
        store, case.record, claim=None, counter=None, force=True, timeout=timeout, reason=reason
    )


def _is_over(store: Store, case: _Case) -> bool:
    """Tell whether a cluster that could not be asked or ended has ended by itself meanwhile."""
    if case.record is None:
        return False
    try:
        found = find_record(store, case.name)
    except ClusterError:
        return False
    return found is None or found[0].tag != case.record.tag or found[0].state is ClusterState.ENDED
