"""What is wanted of a cluster, as the plain data that creation, record and nanny work with.

It is what a `ClusterSpec` dumps. The model library costs a process a third of a cold start (100 of 300 ms of CPU), so
where nothing but a number of engines is asked for, its defaults are taken from here; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spec import ClusterSpec, SpecFields

__all__ = ["at_least_of", "plain_spec", "sets_of"]

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
    "labels": {},
    "env": {},
    "cwd": None,
    "preload": [],
    "python": None,
    "start_method": "fork",
}


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
    n = fields.get("n")
    if spec is None and fields.keys() <= {"n"} and (n is None or (type(n) is int and n >= 0)):
        return {**_DEFAULTS, "n": n}
    from .spec import ClusterSpec

    return (spec or ClusterSpec(**fields)).model_dump(mode="json")


def sets_of(plain: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of engines wanted by set; neither `n` nor sets means two."""
    if plain["engines"]:
        return {name: int(engines["n"]) for name, engines in plain["engines"].items()}
    return {"default": 2 if plain["n"] is None else int(plain["n"])}


def at_least_of(plain: Mapping[str, Any]) -> int:
    """Return how many engines make the cluster ready."""
    return sum(sets_of(plain).values()) if plain["at_least"] is None else int(plain["at_least"])
