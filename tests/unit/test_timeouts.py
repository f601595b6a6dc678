"""When a task has run for too long."""

from __future__ import annotations

from ipcluster_core.timeouts import GRACE_SECONDS, Overdue, Timeouts


def test_a_task_that_ends_in_time_is_left_alone() -> None:
    """Nothing is due, and nothing was done to it."""
    timeouts = Timeouts()
    timeouts.start(1, 0, 5.0, now=100.0)

    assert timeouts.deadline() == 105.0
    assert list(timeouts.due(104.9)) == []
    assert timeouts.stop(1, 0) is None
    assert timeouts.deadline() is None
    assert list(timeouts.due(200.0)) == []


def test_a_task_is_interrupted_once_and_then_its_engine_has_to_go() -> None:
    """After a grace; what is stuck is told of once."""
    timeouts = Timeouts()
    timeouts.start(1, 0, 5.0, now=0.0)
    timeouts.start(2, 7, 60.0, now=0.0)

    assert list(timeouts.due(5.0)) == [Overdue(1, 0, 5.0, stuck=False)]
    assert list(timeouts.due(5.1)) == []
    assert timeouts.deadline() == 5.0 + GRACE_SECONDS
    assert list(timeouts.due(5.0 + GRACE_SECONDS)) == [Overdue(1, 0, 5.0, stuck=True)]
    assert list(timeouts.due(50.0)) == []
    assert timeouts.deadline() == 60.0
    assert timeouts.lost(1) == 5.0


def test_whoever_asks_how_it_ended_learns_of_the_limit_only_if_that_was_why() -> None:
    """So an engine that dies by itself is not said to have been too slow."""
    timeouts = Timeouts()
    timeouts.start(1, 0, 5.0, now=0.0)
    timeouts.start(2, 0, 5.0, now=3.0)
    list(timeouts.due(5.0))

    assert timeouts.stop(1, 0) == 5.0
    assert timeouts.stop(1, 0) is None
    assert timeouts.lost(2) is None
    assert timeouts.lost(3) is None
