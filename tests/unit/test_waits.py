"""When a client that waits for engines is answered."""

from __future__ import annotations

from ipcluster_core.adaptive import Demand
from ipcluster_core.errors import ClusterTimeout, LaunchError
from ipcluster_core.lifecycle import ClusterLife
from ipcluster_core.policy import EnginePolicy
from ipcluster_core.waits import Wait

TITLE = "cluster 'x' #1"


def begin(n: int, *, up: int, max_restarts: int = 10) -> ClusterLife:
    """Return a ready cluster of `n` engines, some of which are up."""
    life = ClusterLife({"default": n}, 0, policy=EnginePolicy(max_restarts=max_restarts))
    list(life.begin(0.0))
    for engine in range(up):
        list(life.engine_up(engine, 0, 0.0))
    return life


def test_a_wait_is_over_when_enough_engines_are_up() -> None:
    """Not before, while there is time and hope."""
    life = begin(3, up=1)
    wait = Wait(b"client", 10.0, n=2)
    before = wait.answer(life, TITLE, 1.0)
    list(life.engine_up(1, 0, 2.0))

    assert before is None
    assert wait.answer(life, TITLE, 2.0) == {"up": 2}


def test_a_wait_fails_when_its_time_is_over() -> None:
    """It says how many are up."""
    error = Wait(b"client", 10.0, n=2).answer(begin(2, up=1), TITLE, 10.0)

    assert isinstance(error, ClusterTimeout)
    assert str(error) == "1 of 2 engines of cluster 'x' #1 are up"


def test_a_wait_fails_at_once_when_so_many_cannot_come() -> None:
    """It says why: one has failed, or so many were never asked for."""
    life = begin(2, up=1, max_restarts=0)
    list(life.engine_died(1, "exit code 1", "no lizard", 1.0))
    failed = Wait(b"client", 10.0, n=2).answer(life, TITLE, 1.0)
    too_many = Wait(b"client", 10.0, n=3).answer(begin(2, up=2), TITLE, 1.0)

    assert isinstance(failed, LaunchError)
    assert str(failed).startswith("1 of 2 engines of cluster 'x' #1 are up, and no more than 1 can be: engine 1 could")
    assert str(failed).endswith("no lizard")
    assert "it has a size of 2: scale it first" in str(too_many)


def test_a_wait_for_engines_that_the_load_may_bring_goes_on() -> None:
    """Up to the maximum of the set that adapts; those that failed will be tried again."""
    life = begin(0, up=0)
    list(life.adapt("default", 0, 4, 0.0))

    list(life.load(None, None, 1.0, Demand(tasks=1, unmeasured=1)))
    for now in (1.0, 2.0, 3.0):
        list(life.engine_died(0, "exit code 1", "", now))
        list(life.tick(now + 0.5))

    assert [engine.state for engine in life.engines.values()] == ["failed"]
    assert Wait(b"client", 10.0, n=4).answer(life, TITLE, 1.0) is None
    assert isinstance(Wait(b"client", 10.0, n=5).answer(life, TITLE, 1.0), LaunchError)


def test_a_wait_for_restarted_engines_is_over_when_their_successors_are_up() -> None:
    """An engine that is still up as it was does not count."""
    life = begin(1, up=1)
    wait = Wait(b"client", 10.0, was={0: 0})
    list(life.restart([0], 1.0))
    list(life.engine_died(0, "signal SIGTERM", "", 1.0))
    before = wait.answer(life, TITLE, 1.0)
    list(life.engine_up(0, 1, 2.0))

    assert before is None
    assert wait.answer(life, TITLE, 2.0) == {"up": 1}


def test_a_wait_for_restarted_engines_fails_when_one_fails_or_goes() -> None:
    """And when it takes too long."""
    life = begin(1, up=1, max_restarts=0)
    wait = Wait(b"client", 10.0, was={0: 0})
    late = wait.answer(life, TITLE, 10.0)
    list(life.engine_died(0, "exit code 1", "", 1.0))
    failed, unknown = wait.answer(life, TITLE, 1.0), Wait(b"client", 10.0, was={7: 0}).answer(life, TITLE, 1.0)

    assert str(late) == "engines [0] of cluster 'x' #1 are not up again"
    assert str(failed).startswith("engines [0] of cluster 'x' #1 did not come back\nengine 0 ended and is not replaced")
    assert isinstance(unknown, LaunchError)
