"""Which engines are connected, and which of a set can be given work."""

from __future__ import annotations

import pytest

from ipcluster_core.seats import Seats


@pytest.fixture
def seats() -> Seats:
    """One engine of an ordinary set, and two of the three ranks of an MPI set."""
    made = Seats("cluster 'c' #1", {"default", "solver", "empty"})
    made.join(10, {"engine": 0, "incarnation": 2, "host": "h", "set": "default", "ranks": None})
    for rank in range(2):
        made.join(11 + rank, {"engine": 1 + rank, "incarnation": 0, "host": "h", "set": "solver", "ranks": 3})
    return made


def test_partners_are_known_as_engines_while_they_are_seated(seats: Seats) -> None:
    """With the incarnation that has said hello."""
    assert (seats.engine_of(12), seats[0].incarnation) == (2, 2)
    seats.leave(2)
    assert (seats.engine_of(12), sorted(seats)) == (None, [0, 1])


def test_an_engine_that_holds_tasks_is_silent_since_it_was_heard_of(seats: Seats) -> None:
    """Those that hold none have nothing to say."""
    seats[1].silent_since = 10.0

    assert seats.silent(52.5) == {"1": 42.5}


def test_all_that_are_up_can_be_given_work_unless_they_are_leaving(seats: Seats) -> None:
    """Ranks too."""
    assert seats.answer(None, ()) == {"engines": [0, 1, 2]}
    assert seats.answer(None, {0, 2}) == {"engines": [1]}
    assert seats.answer("default", ()) == {"engines": [0]}


def test_an_mpi_set_is_given_work_when_all_of_it_is_up(seats: Seats) -> None:
    """Until then it is said how many are."""
    early = seats.answer("solver", ())
    seats.join(13, {"engine": 3, "incarnation": 0, "host": "h", "set": "solver", "ranks": 3})

    assert early == {"error": "2 of the 3 ranks of MPI set 'solver' of cluster 'c' #1 are up: wait for all"}
    assert seats.answer("solver", ()) == {"engines": [1, 2, 3]}
    assert seats.have_ranks([0, 3])
    assert not seats.have_ranks([0, 9])


def test_a_set_that_can_be_given_nothing_says_why(seats: Seats) -> None:
    """There is none of that name, or none of it is up."""
    assert seats.answer("sover", ()) == {"error": "cluster 'c' #1 has no engine set 'sover'"}
    assert seats.answer("empty", ()) == {"error": "no engine of set 'empty' of cluster 'c' #1 is up"}


def test_an_engine_that_asks_for_it_gets_buffers_in_its_messages() -> None:
    """It is on another host, and sees no shared memory of this one."""
    made = Seats("cluster 'c' #1", {"solver"}, lambda buffers: [bytes(buffer).upper() for buffer in buffers])
    hello = {"incarnation": 0, "host": "h", "set": "solver", "ranks": 2}
    _, near = made.join(1, {**hello, "engine": 0})
    _, far = made.join(2, {**hello, "engine": 1, "inline": True})

    assert near.shelf.inline is None
    assert far.shelf.inline is not None
    assert far.shelf.inline([b"reference"]) == [b"REFERENCE"]
