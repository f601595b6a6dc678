"""Which versions must agree between the parts of a cluster and those who talk to it, and whether they do.

Byte code of another Python crashes an engine, a pickle of another cloudpickle cannot be read: both are to be refused at
the door, with a table, and not to be seen as a task's strange error.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from importlib import import_module

from .errors import VersionMismatch

__all__ = ["check", "ours"]

#: How many leading numbers of a version must be equal: code objects change with Python's minor version, cloudpickle
#: promises to read what its own major version wrote, and so do we until there is a reason not to.
_LEADING = {"python": 2, "ipcluster-core": 2, "cloudpickle": 1}


@functools.cache
def ours() -> Mapping[str, str]:
    """Return the versions of this process, by what they are of."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "ipcluster-core": _version("ipcluster_core") or "missing",
        "cloudpickle": _version("cloudpickle") or "missing",
    }


def check(title: str, role: str, here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Compare the versions of a cluster with those of a client or an engine.

    Raises
    ------
    VersionMismatch
        Some do not agree; the message has a table of all.
    """
    names = [*here, *(name for name in there if name not in here)]
    rows = [(name, str(here.get(name, "missing")), str(there.get(name, "missing"))) for name in names]
    wrong = [name for name, one, other in rows if _leading(name, one) != _leading(name, other)]
    if not wrong:
        return
    marked = [(f"{name} *" if name in wrong else name, one, other) for name, one, other in rows]
    lines = [("", "cluster", role), *marked]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    raise VersionMismatch(
        f"the versions of {title} and of this {role} do not agree (marked *):\n{table}\n"
        "use the same on both sides: install them alike, or create the cluster with python= of this environment"
    )


def _leading(name: str, version: str) -> list[str]:
    return version.split(".")[: _LEADING.get(name, 3)]


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
