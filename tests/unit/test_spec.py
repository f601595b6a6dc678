"""What a user asks for, and what is refused before anything is started."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import ValidationError

from ipcluster_core import ClusterSpec, EngineSpec
from ipcluster_core.spec import SpecFields


def test_spec_has_defaults_for_everything() -> None:
    """Two engines, on this machine, until half an hour passes without work."""
    spec = ClusterSpec()

    assert spec.sets == {"default": EngineSpec(n=2)}
    assert (spec.backend, spec.launcher, spec.start_method) == ("native", "local", "fork")
    assert (spec.idle_timeout, spec.lifetime, spec.no_client_timeout) == (1800.0, None, None)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_number_is_short_for_the_default_set(n: int) -> None:
    """Also none: such a cluster is scaled up later."""
    spec = ClusterSpec(n=n)

    assert spec.sets == {"default": EngineSpec(n=n, kind="process")}
    assert spec.total == n


def test_sets_are_counted_together() -> None:
    """The total is what the cluster starts."""
    spec = ClusterSpec(engines={"small": EngineSpec(n=3), "large": EngineSpec(n=2)}, at_least=5)

    assert spec.total == 5
    assert list(spec.sets) == ["small", "large"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 1, "engines": {"a": EngineSpec(n=1)}}, "give n or engines, not both"),
    ({"n": 0, "engines": {"a": EngineSpec(n=1)}}, "give n or engines, not both"),
    ({"n": 2, "at_least": 3}, "at_least=3 is more than the 2 engines asked for"),
    ({"at_least": 3}, "at_least=3 is more than the 2 engines asked for"),
    ({"engines": {"a": EngineSpec(n=1)}, "at_least": 2}, "at_least=2 is more than the 1 engines asked for"),
    ({"n": -1}, "greater than or equal to 0"),
    ({"n": 1.5}, "valid integer"),
    ({"at_least": -1}, "greater than or equal to 0"),
    ({"engines": {"a": {"n": 1, "kind": "horse"}}}, "process"),
    ({"engines": {"a": {"n": 1, "colour": "red"}}}, "Extra inputs are not permitted"),
    ({"idle_timeout": 0}, "greater than 0"),
    ({"idle_timeout": -5.0}, "greater than 0"),
    ({"lifetime": float("nan")}, "greater than 0|finite"),
    ({"lifetime": float("inf")}, "finite"),
    ({"no_client_timeout": float("inf")}, "finite"),
    ({"no_client_timeout": "soon"}, "valid number"),
    ({"env": {"A": "x\0y"}}, "NUL"),
    ({"labels": {"x\0": "y"}}, "NUL"),
    ({"env": {"": "x"}}, "'' cannot name an environment variable"),
    ({"env": {"A=B": "x"}}, "'A=B' cannot name an environment variable"),
    ({"env": {"A": 1}}, "valid string"),
    ({"preload": "numpy"}, "valid list"),
    ({"start_method": "forkserver"}, "'fork' or 'spawn'"),
    ({"max_tasks": 0}, "greater than 0"),
    ({"max_memory_bytes": 0}, "greater than 0"),
    ({"max_restarts": -1}, "greater than or equal to 0"),
    ({"max_restarts": None}, "valid integer"),
    ({"adapt": (3, 2)}, "must be the least and the most engines"),
    ({"adapt": (-1, 2)}, "greater than or equal to 0"),
    ({"adapt": (1, 2), "n": 3}, "and the set be within"),
    ({"adapt": (0, 2), "engines": {"a": EngineSpec(n=1)}}, "adapt is for the set named default, and there is none"),
    ({"engine": 4}, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], text: str) -> None:
    """Before a process is started, with what is wrong."""
    with pytest.raises(ValidationError, match=text):
        ClusterSpec(**fields)


def test_limit_of_none_is_no_limit() -> None:
    """It has to be asked for."""
    spec = ClusterSpec(idle_timeout=None, lifetime=3600)

    assert (spec.idle_timeout, spec.lifetime) == (None, 3600.0)


def test_label_may_be_any_text() -> None:
    """Only variables have rules for their names."""
    assert ClusterSpec(labels={"a=b": "", "": "ä"}).labels == {"a=b": "", "": "ä"}


def test_spec_is_the_same_after_its_way_through_the_record() -> None:
    """As plain data."""
    spec = ClusterSpec(
        engines={"solver": EngineSpec(n=8)}, at_least=4, env={"OMP_NUM_THREADS": "1"}, labels={"team": "birds"}
    )

    assert ClusterSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_spec_cannot_be_changed() -> None:
    """It says what was asked for."""
    spec = ClusterSpec()

    with pytest.raises(ValidationError, match="frozen"):
        spec.n = 5


def test_keywords_are_the_fields() -> None:
    """What type checkers know of `Cluster.create(**fields)` is what a spec takes."""
    assert set(get_type_hints(SpecFields)) == set(ClusterSpec.model_fields)
