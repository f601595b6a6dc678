"""What the broker tells the controller of its load, and when."""

from __future__ import annotations

from ipcluster_core.adaptive import Demand
from ipcluster_core.load import LoadReport, demand_of
from ipcluster_core.scheduling import Scheduler, Work


def busy(*, up: int = 0) -> Scheduler:
    """Return a scheduler with three tasks, as far as engines are there with an engine."""
    scheduler = Scheduler()
    for engine in range(up):
        scheduler.engine_up(engine)
    scheduler.submit(Work("client", 0, 3, "f"))
    scheduler.assign()
    return scheduler


def test_idleness_and_loneliness_begin_when_they_begin() -> None:
    """And not anew with each look."""
    report = LoadReport(0.0, 0.0)
    report.note(Scheduler(), 0, 5.0)
    report_then = (report.idle_since, report.alone_since)
    report.note(busy(), 1, 6.0)
    while_busy = (report.idle_since, report.alone_since)
    report.note(Scheduler(), 0, 7.0)
    report.note(Scheduler(), 0, 8.0)

    assert report_then == (0.0, 0.0)
    assert while_busy == (None, None)
    assert (report.idle_since, report.alone_since) == (7.0, 7.0)


def test_the_controller_is_told_once_when_what_it_was_told_is_over() -> None:
    """What it was not told of need not be taken back."""
    report = LoadReport(0.0, 0.0)
    untold = [report.note(busy(), 1, 1.0), report.note(Scheduler(), 0, 2.0)]
    report.note(busy(), 1, 3.0)
    report.tell(busy(), 1)
    over = report.note(Scheduler(), 0, 4.0)
    report.tell(Scheduler(), 0)

    assert untold == [False, False]
    assert over
    assert not report.note(Scheduler(), 0, 5.0)


def test_the_controller_is_told_when_tasks_begin_to_wait_if_a_set_adapts() -> None:
    """Once; and again when they begin to wait again."""
    report = LoadReport(0.0, 0.0, adapts=True)
    looks = [busy(), busy(), Scheduler(), busy(up=3), busy(up=2)]
    silent = LoadReport(0.0, 0.0)

    assert [report.note(look, 1, 1.0) for look in looks] == [True, False, False, False, True]
    assert not any(silent.note(look, 1, 1.0) for look in looks)


def test_what_is_told_has_the_numbers() -> None:
    """What waits is estimated for a set that adapts only."""
    report = LoadReport(0.0, None, adapts=True)
    scheduler = busy(up=1)
    report.note(scheduler, 2, 1.0)

    assert report.tell(scheduler, 2) == {
        "queued": 2,
        "running": 1,
        "settled": 0,
        "clients": 2,
        "engines": {"0": 1},
        "idle_since": None,
        "alone_since": None,
        "backlog": (2, 2, 0.0),
    }
    assert LoadReport(0.0, 0.0).tell(scheduler, 0)["backlog"] is None


def test_what_is_told_is_a_demand_for_engines() -> None:
    """Who holds a task is busy; there is none when no set adapted."""
    scheduler = busy(up=2)
    scheduler.engine_up(7)

    assert demand_of(LoadReport(0.0, 0.0, adapts=True).tell(scheduler, 0)) == Demand(1, 1, 0.0, frozenset([0, 1]))
    assert demand_of(LoadReport(0.0, 0.0).tell(scheduler, 0)) is None


def test_idle_time_begins_anew_with_what_arrives() -> None:
    """It goes on from the last that came, so that a client which is stuck keeps no cluster; busy stays busy."""
    report, scheduler = LoadReport(0.0, None), Scheduler()
    report.touch(5.0)
    report.note(scheduler, 1, 6.0)
    assert report.idle_since == 5.0
    report.note(busy(up=1), 1, 7.0)
    report.touch(8.0)

    assert report.idle_since is None
