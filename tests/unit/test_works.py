"""Runs of tasks, and where each task stands."""

from __future__ import annotations

import pytest

from ipcluster_core.works import SETTLED, Slice, Work, Works


def test_a_work_is_found_by_the_number_of_any_of_its_tasks() -> None:
    """In whatever order works came; a number between two of them belongs to none."""
    works, first, second = Works(), Work("client", 0, 3, "f"), Work("client", 10, 2, "f")
    works.add(second)
    works.add(first)

    assert [works.find(number) for number in (0, 2, 3, 9, 10, 11, 12)] == [
        first,
        first,
        None,
        None,
        second,
        second,
        None,
    ]
    with pytest.raises(ValueError, match="task 10 of this client is there already"):
        works.add(Work("client", 10, 1, "f"))


def test_a_work_that_is_over_is_not_found() -> None:
    """However many there were before."""
    works = Works()
    made = [Work("client", number, 1, "f") for number in range(20)]
    for work in made:
        works.add(work)
    for work in made[:-1]:
        works.remove(work)

    assert works
    assert [works.find(number) for number in range(20)] == [None] * 19 + [made[-1]]
    works.remove(made[-1])
    assert not works


def test_a_slice_counts_the_tasks_that_are_queued() -> None:
    """Cancelled ones are holes in it."""
    work = Work("client", 0, 10, "f")
    work.state[3:5] = bytes((SETTLED,)) * 2

    assert Slice(work, 0, 10).queued == 8
    assert Slice(work, 3, 5).queued == 0
    assert Slice(work, 2, 4).queued == 1
