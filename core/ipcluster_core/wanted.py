"""What is wanted of a cluster, as the plain data that creation, record and nanny work with.

It is what a `ClusterSpec` dumps. The model library costs a process a third of a cold start (100 of 300 ms of CPU), so
where nothing but a number of engines and limits are asked for, its defaults are taken from here; a test holds the two
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spec import ClusterSpec, SpecFields

__all__ = ["at_least_of", "bounds_of", "kinds_of", "plain_spec", "sets_of"]

#: What ``ClusterSpec()`` dumps.
_DEFAULTS: Mapping[str, Any] = {
    "n": None,
    "engines": {},
    "at_least": None,
    "backend": "native",
    "launcher": "local",
    "idle_timeout": 1800.0,
    "lifetime": None,
    "no_client_timeout": None,
    "keep_results": 3600.0,
    "labels": {},
    "env": {},
    "cwd": None,
    "preload": [],
    "packages": [],
    "check_versions": True,
    "python": None,
    "start_method": "fork",
    "adapt": None,
    "max_tasks": None,
    "max_memory_bytes": None,
    "max_restarts": 10,
}


#: The fields that are whole numbers, with the smallest that each may be.
_NUMBERS = {"n": 0, "max_tasks": 1, "max_memory_bytes": 1, "max_restarts": 0}

#: The fields that are seconds.
_LIMITS = frozenset({"idle_timeout", "lifetime", "no_client_timeout"})


def _is_plainly_valid(name: str, value: object) -> bool:
    """Tell whether a field needs no model to be found valid."""
    match value:
        case None:
            return name in _NUMBERS.keys() - {"max_restarts"} or name in _LIMITS
        case bool():
            return False
        case int():
            return value >= _NUMBERS[name] if name in _NUMBERS else name in _LIMITS and value > 0
        case float():
            return name in _LIMITS and 0 < value < float("inf")
        case _:
            return False


def plain_spec(spec: ClusterSpec | None, fields: SpecFields) -> dict[str, Any]:
    """Return a spec, or the one that its fields make, as plain data.

    Returns
    -------
    dict
        Valid.

    Raises
    ------
    ValueError
        Both are given, or the fields are not valid.
    """
    if spec is not None and fields:
        raise ValueError(f"give a spec or its fields, not both: {', '.join(sorted(fields))}")
    if spec is None and all(_is_plainly_valid(name, value) for name, value in fields.items()):
        given: dict[str, Any] = dict(fields)
        limits = {name: float(given[name]) for name in _LIMITS & given.keys() if given[name] is not None}
        return {**_DEFAULTS, **given, **limits}
    from .spec import ClusterSpec

    return (spec or ClusterSpec(**fields)).model_dump(mode="json")


def sets_of(plain: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of engines wanted by set at first; neither `n` nor sets means two, or the least of `adapt`."""
    if plain["engines"]:
        return {name: int(engines["n"]) for name, engines in plain["engines"].items()}
    least = 2 if plain["adapt"] is None else int(plain["adapt"][0])
    return {"default": least if plain["n"] is None else int(plain["n"])}


def kinds_of(plain: Mapping[str, Any]) -> dict[str, str]:
    """Return the kind of each engine set: "process" or "mpi"."""
    return {name: str(engines["kind"]) for name, engines in plain["engines"].items()} or {"default": "process"}


def bounds_of(plain: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the least and the most engines of each set that is sized by its load."""
    return {} if plain["adapt"] is None else {"default": (int(plain["adapt"][0]), int(plain["adapt"][1]))}


def at_least_of(plain: Mapping[str, Any]) -> int:
    """Return how many engines make the cluster ready."""
    return sum(sets_of(plain).values()) if plain["at_least"] is None else int(plain["at_least"])
