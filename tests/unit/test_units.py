"""An MPI set is one unit: started, up, lost, restarted and given up as a whole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ipcluster_core.actions import (
    Action,
    DropEngine,
    Ready,
    RefuseTasks,
    RestartEngine,
    StartEngine,
    StopEngine,
)
from ipcluster_core.lifecycle import ClusterLife
from ipcluster_core.policy import EnginePolicy
from ipcluster_core.roster import EngineState


def do(actions: Iterable[Action]) -> list[Action]:
    """Return what is decided."""
    return list(actions)


def up(life: ClusterLife, engines: Iterable[int], incarnation: int = 0, now: float = 1.0) -> list[Action]:
    """Tell that engines are up; return what follows."""
    return [action for engine in engines for action in life.engine_up(engine, incarnation, now)]


@pytest.fixture
def life() -> ClusterLife:
    """One engine, and an MPI set of three, all up."""
    made = ClusterLife({"default": 1, "solver": 3}, 4, units=frozenset({"solver"}))
    assert do(made.begin(0.0)) == [StartEngine(0, 0, "default"), StartEngine(1, 0, "solver", 3)]
    assert up(made, range(4)) == [Ready()]
    return made


def test_a_set_is_up_with_its_last_rank() -> None:
    """Not before; each counts as an engine."""
    made = ClusterLife({"solver": 2}, 2, units=frozenset({"solver"}))
    do(made.begin(0.0))

    assert up(made, [1]) == []
    assert made.count(EngineState.STARTING) == 2
    assert up(made, [1]) == []
    assert up(made, [0]) == [Ready()]
    assert made.count(EngineState.UP) == 2


def test_a_set_that_is_lost_comes_back_as_a_whole_under_its_ids(life: ClusterLife) -> None:
    """The engine beside it is not touched; the next incarnation counts on for each rank."""
    assert do(life.engine_died(1, "rank 2 ended", "", 20.0, incarnation=0)) == [StartEngine(1, 1, "solver", 3)]
    assert up(life, [1, 2, 3], incarnation=0) == []
    assert life.count(EngineState.UP) == 1
    up(life, [1, 2, 3], incarnation=1)
    assert life.count(EngineState.UP) == 4
    assert {engine.incarnation for engine in life.engines.values()} == {0, 1}


def test_a_restart_of_any_rank_is_one_of_the_set(life: ClusterLife) -> None:
    """Once, whichever ranks are named."""
    assert do(life.restart([3, 1], 2.0)) == [RestartEngine(1, 3)]
    assert do(life.engine_died(1, "stopped", "", 3.0, incarnation=0)) == [StartEngine(1, 1, "solver", 3)]


def test_another_size_is_another_world(life: ClusterLife) -> None:
    """The old one is ended and, when nothing of it is left, the new one started."""
    assert do(life.scale("solver", 2, 2.0)) == [StopEngine(1)]
    assert do(life.scale("solver", 5, 2.5)) == []
    assert life.possible() == 6
    gone = do(life.engine_died(1, "stopped", "", 3.0, incarnation=0))

    assert [action.engine for action in gone if isinstance(action, DropEngine)] == [1, 2, 3]
    assert gone[-1] == StartEngine(1, 1, "solver", 5)
    assert sorted(life.engines) == [0, 1, 2, 3, 4, 5]


def test_a_set_of_none_is_ended_and_comes_back_when_wanted(life: ClusterLife) -> None:
    """Its tasks are not kept."""
    do(life.scale("solver", 0, 2.0))
    do(life.engine_died(1, "stopped", "", 3.0, incarnation=0))
    assert sorted(life.engines) == [0]

    assert do(life.scale("solver", 1, 4.0)) == [StartEngine(1, 1, "solver")]


def test_ranks_have_ids_in_a_row(life: ClusterLife) -> None:
    """A set that is too large for the gap takes ids behind the others."""
    do(life.scale("default", 2, 2.0))
    up(life, [4])
    do(life.scale("solver", 4, 3.0))

    assert do(life.engine_died(1, "stopped", "", 4.0, incarnation=0))[-1] == StartEngine(5, 0, "solver", 4)


def test_a_set_that_cannot_be_started_is_given_up_and_tasks_for_it_with_it() -> None:
    """Others go on: those that any engine may take are not refused."""
    life = ClusterLife({"default": 1, "solver": 2}, 1, policy=EnginePolicy(), units=frozenset({"solver"}))
    do(life.begin(0.0))
    up(life, [0])
    actions: list[Action] = []
    for start in range(3):
        actions = do(life.engine_died(1, "no mpiexec", "not found", start + 1.0, incarnation=start))
        do(life.tick(start + 1.9))

    assert [(action.engine, action.expected) for action in actions if isinstance(action, DropEngine)] == [
        (1, (0,)),
        (2, (0,)),
    ]
    assert life.reasons() == ["MPI set 'solver' could not be started (no mpiexec):\nnot found"]
    assert not any(isinstance(action, RefuseTasks) for action in actions)
    assert do(life.restart([2], 9.0)) == [StartEngine(1, 3, "solver", 2)]


def test_tasks_for_any_engine_are_refused_when_only_ranks_are_left() -> None:
    """Ranks take only what names them."""
    life = ClusterLife({"default": 1, "solver": 1}, 2, policy=EnginePolicy(max_restarts=0), units=frozenset({"solver"}))
    do(life.begin(0.0))
    up(life, [0, 1])

    assert any(isinstance(action, RefuseTasks) for action in life.engine_died(0, "it died", "", 2.0, incarnation=0))


def test_it_is_known_where_each_rank_runs_while_it_is_up(life: ClusterLife) -> None:
    """The next incarnation may be elsewhere."""
    do(life.engine_died(1, "rank 2 ended", "", 20.0, incarnation=0))
    gone = dict(life.engines[1].hosts)
    do(life.engine_up(3, 1, 21.0, "node2"))

    assert gone == {}
    assert life.engines[1].hosts == {3: "node2"}
