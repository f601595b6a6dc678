"""Which versions must agree between the parts of a cluster and those who talk to it, and whether they do.

Byte code of another Python crashes an engine, a pickle of another cloudpickle cannot be read: both are to be refused at
the door, with a table, and not to be seen as a task's strange error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module

from .errors import VersionMismatch

__all__ = ["check", "ours"]

#: How many leading numbers of a version must be equal: code objects change with Python's minor version, cloudpickle
#: promises to read what its own major version wrote, and so do we until there is a reason not to.
_LEADING = {"python": 2, "ipcluster-core": 2, "cloudpickle": 1}

#: The same for packages that the spec names.
_LEADING_OF_PACKAGES = 2

_MISSING = "missing"


def ours(packages: Iterable[str] = ()) -> Mapping[str, str]:
    """Return the versions of this process, by what they are of.

    Parameters
    ----------
    packages
        More of them, by the names under which they are installed.

    Returns
    -------
    dict
        A package that is not installed is "missing".
    """
    return {**_our_own(), **{name: _installed(name) for name in packages}}


@functools.cache
def _our_own() -> Mapping[str, str]:
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "ipcluster-core": _version("ipcluster_core") or _MISSING,
        "cloudpickle": _version("cloudpickle") or _MISSING,
    }


def check(
    title: str,
    role: str,
    here: Mapping[str, str],
    there: Mapping[str, str],
    engines: Collection[Mapping[str, str]] = (),
) -> None:
    """Compare the versions of a cluster with those of a client or an engine.

    Parameters
    ----------
    title
        How messages name the cluster.
    role
        What the other is: "client" or "engine".
    here, there
        The controller's versions, and the other's.
    engines
        Those of the engines that are up, for the table.

    Raises
    ------
    VersionMismatch
        Some do not agree; the message has a table of all.
    """
    names = [*here, *(name for name in there if name not in here)]
    rows = [(name, str(there.get(name, _MISSING)), str(here.get(name, _MISSING))) for name in names]
    wrong = [name for name, one, other in rows if _leading(name, one) != _leading(name, other)]
    if not wrong:
        return
    marked = [(f"{name} *" if name in wrong else name, *versions) for name, *versions in rows]
    lines = [("", role, "controller"), *marked]
    if engines:
        shared = [sorted({str(engine.get(name, _MISSING)) for engine in engines}) for name in names]
        lines = [(*line, cell) for line, cell in zip(lines, ["engines", *map(", ".join, shared)], strict=True)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    raise VersionMismatch(
        f"the versions of {title} and of this {role} do not agree (marked *):\n{table}\n"
        "use the same on both sides: install them alike, or create the cluster with python= of this environment"
    )


def _leading(name: str, version: str) -> list[str]:
    return version.split(".")[: _LEADING.get(name, _LEADING_OF_PACKAGES)]


def _installed(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _MISSING


def _version(package: str) -> str | None:
    """Return a package's version without importing it or reading its metadata, which would take a step 10 ms."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    beside = next((folder for folder in sys.path if os.path.isdir(os.path.join(folder, package))), None)
    for name in os.listdir(beside or ".") if beside is not None else ():
        if name.startswith(f"{package}-") and name.endswith(".dist-info"):
            return name.removesuffix(".dist-info").rpartition("-")[2]
    try:  # it is installed in a way of its own
        return str(getattr(import_module(package), "__version__", None))
    except ImportError:
        return None
