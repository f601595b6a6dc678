"""What became of interrupts, and when that is certain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ipcluster_core.interrupts import Outcome, Why
from ipcluster_core.journal import Journal
from ipcluster_core.pursuit import PATIENCE_SECONDS, Pursuits, Target

#: Who asks.
ASKER = 7


@pytest.fixture
def journal() -> Iterator[Journal]:
    """The journal of an engine that runs task 2 of chunk 5."""
    made = Journal()
    made.open_chunk(5)
    for index in range(3):
        made.begin(index)
        if index < 2:
            made.finish(0, b"")
    yield made
    made.close()


def begun(*targets: Target) -> tuple[Pursuits, list[int]]:
    """Ask for interrupts at time 0; return those to signal as well."""
    pursuits = Pursuits()
    return pursuits, pursuits.begin(ASKER, targets, 0.0)


def test_what_runs_is_named_and_its_engine_is_to_be_signalled(journal: Journal) -> None:
    """Exactly that task, and not before it is certain what became of it is anything answered."""
    pursuits, signalled = begun(Target(3, journal))

    assert signalled == [3]
    assert journal.interrupts.take() == {(5, 2): Why.INTERRUPT}
    assert pursuits.settle(0.5) == {}
    assert pursuits.deadline(0.5) is not None


def test_a_task_that_left_in_time_was_interrupted(journal: Journal) -> None:
    """As the engine has noted; it is told at once."""
    pursuits, _ = begun(Target(3, journal))
    journal.interrupts.note(5, 2)
    journal.finish(1, b"")

    assert pursuits.settle(0.01) == {ASKER: {3: Outcome.INTERRUPTED}}
    assert pursuits.deadline(0.01) is None


def test_a_task_that_came_to_its_end_by_itself_was_not_interrupted(journal: Journal) -> None:
    """Nor is the next one, which runs already."""
    pursuits, _ = begun(Target(3, journal))
    journal.finish(0, b"")
    journal.open_chunk(6)
    journal.begin(0)

    assert pursuits.settle(0.01) == {ASKER: {3: Outcome.IDLE}}


@pytest.mark.parametrize("noted", [False, True])
def test_a_task_that_does_not_end_goes_on(journal: Journal, noted: bool) -> None:
    """Whether it is in C code, or handles the interrupt."""
    pursuits, _ = begun(Target(3, journal))
    if noted:
        journal.interrupts.note(5, 2)

    assert pursuits.settle(PATIENCE_SECONDS - 0.01) == {}
    assert pursuits.settle(PATIENCE_SECONDS) == {ASKER: {3: Outcome.GOES_ON}}


def test_idle_and_missing_engines_are_told_with_the_rest(journal: Journal) -> None:
    """The answer is one, and complete."""
    idle = Journal()
    pursuits, signalled = begun(Target(1, idle), Target(2, None), Target(3, journal))
    assert pursuits.settle(0.1) == {}
    pursuits.lost(journal)
    answers = pursuits.settle(0.2)
    idle.close()

    assert signalled == [3]
    assert answers == {ASKER: {1: Outcome.IDLE, 2: Outcome.NOT_UP, 3: Outcome.NOT_UP}}
