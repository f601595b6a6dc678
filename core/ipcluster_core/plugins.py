"""Finds what goes by a name: our own, or another package's through its entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .errors import ClusterError

__all__ = ["load"]


def load(kind: str, name: str, own: Mapping[str, str]) -> Any:  # noqa: ANN401 - the caller knows its contract
    """Load a plug-in by its name. Names, never class paths, are what handles and records keep.

    Parameters
    ----------
    kind
        "backend", "launcher" or "store"; the entry-point group is ``ipcluster_core.<kind>s``.
    name
        Name of the plug-in.
    own
        Ours, as ``module:attribute`` by name; found without a look at what is installed, which takes long.

    Returns
    -------
    object
        What the name stands for, not called.

    Raises
    ------
    ClusterError
        There is none of that name, or it cannot be imported; the message says why. The others are not affected.
    """
    if name in own:
        module, _, attribute = own[name].partition(":")
        return getattr(import_module(module), attribute)
    from importlib.metadata import entry_points

    found = entry_points(group=f"ipcluster_core.{kind}s")
    if name not in found.names:
        known = ", ".join(sorted(found.names | own.keys())) or "none"
        raise ClusterError(f"there is no {kind} {name!r}; there are: {known}")
    try:
        return found[name].load()
    except Exception as error:
        raise ClusterError(f"{kind} {name!r} ({found[name].value}) cannot be loaded: {error!r}") from error
