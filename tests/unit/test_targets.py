"""Which engines a verb is for."""

from __future__ import annotations

import pytest

from ipcluster_core.errors import ClusterError
from ipcluster_core.lifecycle import ClusterLife
from ipcluster_core.targets import choose, log_parts


@pytest.fixture
def life() -> ClusterLife:
    """Two sets of two."""
    made = ClusterLife({"default": 2, "solver": 2, "none": 0}, 4)
    list(made.begin(0.0))
    return made


@pytest.mark.parametrize(
    ("engines", "ids"),
    [(None, [0, 1, 2, 3]), ([3, 0], [3, 0]), ([], []), ("solver", [2, 3]), ("none", [])],
)
def test_engines_are_all_or_some_by_id_or_a_set(
    life: ClusterLife, engines: str | list[int] | None, ids: list[int]
) -> None:
    """In the order given."""
    assert choose(life, engines, "cluster 'c' #1") == ids


def test_an_unknown_engine_is_refused_with_those_that_there_are(life: ClusterLife) -> None:
    """Also beside one that is known."""
    with pytest.raises(ClusterError, match=r"cluster 'c' #1 has no engine \[9\]; it has: \[0, 1, 2, 3\]"):
        choose(life, [0, 9], "cluster 'c' #1")


def test_an_unknown_set_is_refused_with_those_that_there_are(life: ClusterLife) -> None:
    """By name."""
    with pytest.raises(ClusterError, match=r"has no engine set 'sover'; it has: default, none, solver"):
        choose(life, "sover", "cluster 'c' #1")


@pytest.mark.parametrize(
    ("engines", "parts"),
    [
        (None, ["nanny", "controller", "broker", "mpiexec-1", "engine-0", "engine-1", "engine-2"]),
        ("solver", ["mpiexec-1", "engine-1", "engine-2"]),
        ("default", ["engine-0"]),
        ([2, 7], ["engine-2", "engine-7"]),
        ([], []),
    ],
)
def test_logs_are_of_all_parts_or_of_engines(engines: str | list[int] | None, parts: list[str]) -> None:
    """A set's with its mpiexec; and of an engine that is gone."""
    life = ClusterLife({"default": 1, "solver": 2}, 3, units=frozenset({"solver"}))
    list(life.begin(0.0))

    assert log_parts(life, engines, "cluster 'c' #1") == parts


def test_logs_of_an_unknown_set_are_refused(life: ClusterLife) -> None:
    """As its engines are."""
    with pytest.raises(ClusterError, match="has no engine set 'sover'"):
        log_parts(life, "sover", "cluster 'c' #1")
