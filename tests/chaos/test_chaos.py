"""Rounds of chaos on real processes, each from its seed; `run.py` beside this file runs as many as you like."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from chaos.check import violations
from chaos.perform import Report, perform
from chaos.plan import FATAL, Action, Plan, TaskPlan, make_plan
from chaos.work import Outcome
from ipcluster_core.record import ClusterState, Ended, Record


@pytest.mark.parametrize("seed", range(15))
def test_promises_hold_whatever_dies(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are settled, right and not run too often; the end is recorded; nothing is left."""
    monkeypatch.setenv("IPCLUSTER_STORE", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = make_plan(seed)
    report = perform(plan, tmp_path)

    assert violations(plan, report) == [], f"{plan}\n{report}"


def test_a_seed_is_a_plan() -> None:
    """The same whenever it is asked for, and printed in words; all kinds of disturbances occur."""
    plans = [make_plan(seed) for seed in range(200)]
    names = {action.name for plan in plans for action in plan.actions}

    assert plans == [make_plan(seed) for seed in range(200)]
    assert str(plans[0]).startswith("seed 0: ")
    assert names >= FATAL | {
        "kill engine",
        "kill client",
        "stop nanny",
        "scale",
        "restart",
        "interrupt",
        "cancel",
        "fetch",
        "create",
    }
    assert {plan.create for plan in plans} == {"plain", "killed", "race"}
    assert {plan.n for plan in plans} == {0, 1, 2, 3, 4}


PLAN = Plan(
    seed=1,
    n=1,
    spec={},
    create="plain",
    create_kill=0.0,
    create_modes=(),
    tasks=(TaskPlan(0, 0, 0.0, 0.0, "value", 0), TaskPlan(1, 0, 0.0, 0.0, "raise", 1)),
    actions=(Action(0.0, "kill engine"),),
)
RECORD = Record("chaos-1", 1, "u", ClusterState.ENDED, ended=Ended("torn down", "2026-01-01T00:00:00Z", "me"))


def report(*outcomes: Outcome, **changes: object) -> Report:
    """Return a report in which nothing is wrong, but for changes."""
    good = Report(outcomes=list(outcomes), record=RECORD, store=["records/chaos-1"])
    good.runs.update(outcome.number for outcome in outcomes)
    for name, value in changes.items():
        setattr(good, name, value)
    return good


VALUE, RAISED = Outcome(0, "value"), Outcome(1, "raised")
BROKEN: list[tuple[Report, str]] = [
    (report(Outcome(0, "hang")), "task 0: hang"),
    (report(Outcome(0, "wrong", "5")), "task 0: wrong 5"),
    (report(Outcome(0, "raised")), "task 0: raised"),
    (report(Outcome(0, "cancelled")), "task 0: cancelled"),
    (report(Outcome(0, "EngineLost", "gone")), "task 0: EngineLost gone"),
    (report(Outcome(0, "ClusterEnded", "why")), "task 0: ClusterEnded why"),
    (report(Outcome(0, "interrupted")), "task 0: interrupted"),
    (report(Outcome(0, "TaskTimeout", "late")), "task 0: TaskTimeout late"),
    (report(VALUE, VALUE, RAISED), "tasks with two outcomes: [0]"),
    (report(VALUE, runs=Counter({0: 2})), "task 0 ran 2 times, 1 are allowed"),
    (report(VALUE, fetched=[Outcome(1, "raised")]), "task 1 has an outcome and never ran"),
    (report(fetched=[Outcome(0, "ResultExpired")]), "task 0 by its id: ResultExpired"),
    (report(stuck=["submit does not end"]), "submit does not end"),
    (report(refusals=[("scale", "ClusterBroken", "x")]), "scale: ClusterBroken: x"),
    (report(said=[("leave", {"outcome": "released"})]), "all claims were given up and nobody ended the cluster"),
    (report(said=[("create", {"failed": "create hangs"})]), "create hangs"),
    (report(record=None), "there is no record"),
    (report(record=RECORD._replace(state=ClusterState.RUNNING)), "the record says running"),
    (report(leftovers=("pid 7",)), "the last teardown left ('pid 7',)"),
    (report(store=["records/chaos-1", "run/u"]), "in the store: ['records/chaos-1', 'run/u']"),
    (report(sockets=["/x/task"]), "sockets that listen: ['/x/task']"),
    (report(leaked="process 7"), "left behind:\nprocess 7"),
]


@pytest.mark.parametrize(("broken", "text"), BROKEN, ids=lambda value: str(value)[:40].partition("\n")[0])
def test_each_broken_promise_is_seen(broken: Report, text: str) -> None:
    """The judge is not blind: what a round must not come to is named."""
    assert text in violations(PLAN, broken)


def test_what_a_disturbance_explains_is_no_broken_promise() -> None:
    """A task may be lost with its engine when one was killed, and cancelled when somebody asked for it."""
    good = [
        report(VALUE, RAISED),
        report(Outcome(0, "EngineLost"), performed={"kill engine"}),
        report(Outcome(0, "cancelled"), asked={0}),
        report(Outcome(0, "interrupted"), performed={"interrupt"}),
        report(Outcome(0, "ClusterEnded"), performed={"kill broker"}),
    ]

    assert [violations(PLAN, one) for one in good] == [[], [], [], [], []]
