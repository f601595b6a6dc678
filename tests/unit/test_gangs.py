"""Tasks that belong together are queued together."""

from __future__ import annotations

from ipcluster_core.gangs import Gangs
from ipcluster_core.works import Work


def work(base: int) -> Work:
    """A task."""
    return Work("c", base, 1, "f")


def test_a_task_that_stands_alone_goes_on() -> None:
    """With what is said against it."""
    alone = work(0)

    assert Gangs().join(1, None, alone, "no") == [(alone, "no")]


def test_members_wait_for_the_last_and_keep_their_order() -> None:
    """Whatever comes from others, or from other threads of the same client, in between."""
    gangs = Gangs()
    mine, other = [work(n) for n in range(3)], [work(n) for n in range(10, 12)]
    assert gangs.join(1, (0, 3), mine[0], "") == []
    assert gangs.join(1, (1, 2), other[0], "") == []
    assert gangs.join(2, (0, 3), work(5), "") == []
    assert gangs.join(1, (0, 3), mine[1], "") == []

    assert gangs.join(1, (1, 2), other[1], "") == [(member, "") for member in other]
    assert gangs.join(1, (0, 3), mine[2], "") == [(member, "") for member in mine]


def test_what_is_said_against_one_is_said_against_all() -> None:
    """None of them runs and waits for the others."""
    gangs, members = Gangs(), [work(n) for n in range(2)]
    gangs.join(1, (0, 2), members[0], "no such engine")

    assert gangs.join(1, (0, 2), members[1], "") == [(member, "no such engine") for member in members]


def test_a_client_that_leaves_leaves_no_half_gang() -> None:
    """Its members are returned, to be refused; another client's stay."""
    gangs, half = Gangs(), work(0)
    gangs.join(1, (0, 2), half, "")
    gangs.join(2, (0, 2), work(1), "")

    assert gangs.leave(1) == [half]
    assert gangs.leave(1) == []
    assert len(gangs.join(2, (0, 2), work(2), "")) == 2
