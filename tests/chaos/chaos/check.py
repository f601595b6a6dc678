"""Judges a report against its plan: what was promised and does not hold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .perform import Report
from .plan import FATAL, LOSING, Plan, TaskPlan
from .work import Outcome

__all__ = ["violations"]

#: How a client learns that its cluster is over.
_OVER = frozenset({"ClusterEnded", "ClusterBroken"})


def violations(plan: Plan, report: Report) -> list[str]:
    """Return each promise that was broken, in words."""
    return [
        *_outcomes(plan, report),
        *_runs(plan, report),
        *_verbs(plan, report),
        *_end(plan, report),
        *report.stuck,
    ]


def _may_end(plan: Plan, report: Report) -> bool:
    """Tell whether anything that happened may have ended the cluster."""
    modes = [*(plan.create_modes if plan.create == "race" else ()), *_modes(plan)]
    limits = "idle_timeout" in plan.spec or "lifetime" in plan.spec
    return bool(report.performed & FATAL) or "replace" in modes or limits


def _may_go_on(plan: Plan, report: Report) -> bool:
    """Tell whether the name may have gone on to another incarnation."""
    return _may_end(plan, report) and (plan.create == "race" or "create" in report.performed)


def _kills(plan: Plan, report: Report) -> bool:
    """Tell whether a writer of the store may have been killed: what it was writing goes with a later change."""
    return plan.create == "killed" or any(name.startswith("kill ") for name in report.performed)


def _modes(plan: Plan) -> list[str]:
    return [mode for action in plan.actions for mode in action.modes]


def _outcomes(plan: Plan, report: Report) -> Iterator[str]:
    """Each future has the task's value or exception, or an error that something explains."""
    tasks = {task.number: task for task in plan.tasks}
    for outcome in report.outcomes:
        if not _explained(tasks[outcome.number], outcome, plan, report):
            yield f"task {outcome.number}: {outcome.kind} {outcome.text}".rstrip()
    for outcome in report.fetched:
        task = tasks[outcome.number]
        # Large ones are kept only for a client that has not got them; another incarnation never had any.
        lost = outcome.kind == "ResultExpired" and (task.how == "large" or _may_go_on(plan, report))
        if not lost and not _explained(task, outcome, plan, report):
            yield f"task {outcome.number} by its id: {outcome.kind} {outcome.text}".rstrip()
    twice = [number for number, count in Counter(outcome.number for outcome in report.outcomes).items() if count > 1]
    if twice:
        yield f"tasks with two outcomes: {twice}"


def _explained(task: TaskPlan, outcome: Outcome, plan: Plan, report: Report) -> bool:
    match outcome.kind:
        case "value" | "raised":
            return (outcome.kind == "raised") == (task.how == "raise")
        case "cancelled":
            return task.number in report.asked
        case "interrupted":
            return "interrupt" in report.performed
        case "TaskTimeout":
            return task.limit is not None
        case "EngineLost":
            return bool(report.performed & LOSING)
        case kind if kind in _OVER:
            return _may_end(plan, report)
        case _:
            return False


def _runs(plan: Plan, report: Report) -> Iterator[str]:
    """No task ran more often than it may, and what has a result has run."""
    allowed = {task.number: 1 + task.retries for task in plan.tasks}
    for number, count in sorted(report.runs.items()):
        if count > allowed[number]:
            yield f"task {number} ran {count} times, {allowed[number]} are allowed"
    for outcome in [*report.outcomes, *report.fetched]:
        if outcome.kind in ("value", "raised") and not report.runs[outcome.number]:
            yield f"task {outcome.number} has an outcome and never ran"


def _verbs(plan: Plan, report: Report) -> Iterator[str]:
    """A verb is refused only when the cluster may be over, and never by a wait that was not bounded well."""
    refusals = list(report.refusals)
    for role, said in report.said:
        if "failed" in said:
            yield str(said["failed"])
        elif "error" in said and not (role == "create" and said["error"] == "ClusterExists"):
            refusals.append((role, said["error"], said["text"]))
        if said.get("leftovers"):
            yield f"a teardown left {said['leftovers']}"
    for verb, kind, text in refusals:
        if kind == "ClusterTimeout" or not _may_end(plan, report):
            yield f"{verb}: {kind}: {text}"
    outcomes = [said["outcome"] for role, said in report.said if role == "leave" and "outcome" in said]
    if outcomes and set(outcomes) == {"released"}:
        yield "all claims were given up and nobody ended the cluster"


def _end(plan: Plan, report: Report) -> Iterator[str]:
    """The record says why, when and by whom it ended, and nothing else is left."""
    record = report.record
    if record is None:
        yield "there is no record"
    elif record.state != "ended" or record.ended is None:
        yield f"the record says {record.state}"
    elif not (record.ended.reason and record.ended.by and record.ended.at):
        yield f"the record does not say how it ended: {record.ended}"
    if report.leftovers:
        yield f"the last teardown left {report.leftovers}"
    store = [path for path in report.store if not (_kills(plan, report) and "/." in path)]
    if store != [f"records/{plan.name}"]:
        yield f"in the store: {report.store}"
    if report.sockets:
        yield f"sockets that listen: {report.sockets}"
    if report.leaked:
        yield f"left behind:\n{report.leaked}"
