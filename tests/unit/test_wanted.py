"""What is wanted of a cluster, as plain data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ipcluster_core import ClusterSpec, EngineSpec, SpecFields
from ipcluster_core.wanted import at_least_of, bounds_of, plain_spec, sets_of


@pytest.mark.parametrize("n", [None, 0, 1, 7])
def test_the_quick_way_gives_what_the_model_gives(n: int | None) -> None:
    """The two must not drift apart."""
    assert plain_spec(None, {"n": n}) == ClusterSpec(n=n).model_dump(mode="json")


def test_no_fields_give_the_models_defaults() -> None:
    """Two engines, with the default limits."""
    plain = plain_spec(None, {})

    assert plain == ClusterSpec().model_dump(mode="json")
    assert sets_of(plain) == {"default": 2}
    assert at_least_of(plain) == 2


@pytest.mark.parametrize("value", [None, 1, 0.5, 86400])
@pytest.mark.parametrize("limit", ["idle_timeout", "lifetime", "no_client_timeout"])
def test_the_quick_way_takes_limits_too(limit: str, value: float | None) -> None:
    """As the model takes them."""
    fields = {"n": 3, limit: value}

    assert plain_spec(None, fields) == ClusterSpec(**fields).model_dump(mode="json")  # type: ignore[arg-type]
    assert type(plain_spec(None, fields)[limit]) is type(ClusterSpec(**fields).model_dump()[limit])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 1, 10**9])
@pytest.mark.parametrize("limit", ["max_tasks", "max_memory_bytes"])
def test_the_quick_way_takes_limits_of_engines_too(limit: str, value: int | None) -> None:
    """As the model takes them."""
    fields = {limit: value, "max_restarts": 0}

    assert plain_spec(None, fields) == ClusterSpec(**fields).model_dump(mode="json")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": -1},
        {"max_tasks": 0},
        {"max_restarts": None},
        {"max_restarts": -1},
        {"n": "many"},
        {"n": 2.5},
        {"lifetime": 0},
        {"idle_timeout": float("inf")},
        {"x": None},
    ],
)
def test_what_is_not_valid_is_refused_by_the_model(fields: SpecFields) -> None:
    """With its message."""
    with pytest.raises(ValueError, match="validation error for ClusterSpec"):
        plain_spec(None, fields)


def test_a_spec_and_fields_together_are_refused() -> None:
    """Nobody could say which one wins."""
    with pytest.raises(ValueError, match="give a spec or its fields, not both: n"):
        plain_spec(ClusterSpec(n=1), {"n": 2})


def test_sets_and_the_number_that_makes_it_ready_come_from_the_spec() -> None:
    """By set; `at_least` may be fewer."""
    plain = plain_spec(ClusterSpec(engines={"a": EngineSpec(n=3), "b": EngineSpec(n=1)}, at_least=2), {})

    assert sets_of(plain) == {"a": 3, "b": 1}
    assert at_least_of(plain) == 2


@pytest.mark.parametrize(("n", "begins_with"), [(None, 1), (3, 3)])
def test_a_set_that_adapts_begins_with_its_least_or_with_n(n: int | None, begins_with: int) -> None:
    """It is the one named default."""
    plain = plain_spec(None, {"adapt": (1, 4), "n": n})

    assert sets_of(plain) == {"default": begins_with}
    assert at_least_of(plain) == ClusterSpec(adapt=(1, 4), n=n).total == begins_with
    assert bounds_of(plain) == {"default": (1, 4)}
    assert bounds_of(plain_spec(None, {})) == {}


def test_creating_a_number_of_engines_does_not_load_the_model_library() -> None:
    """It would cost a third of a cold start."""
    code = """if True:
        import sys
        from ipcluster_core import Cluster
        with Cluster("cold", n=1) as cluster, cluster.client() as client:
            assert client.submit(abs, -1).result(10) == 1
        print("pydantic" in sys.modules)
    """

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
