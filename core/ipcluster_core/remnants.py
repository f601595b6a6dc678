"""What MPICH's ranks share in memory, and leave behind for ever when they are killed.

It has a name in ``/dev/shm`` that nobody needs once all ranks of a host have mapped it; which one can be told as long
as one of them lives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["find", "remove"]

_PREFIX = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's choice


def find(pids: Iterable[int | str]) -> set[str]:
    """Return the paths of what processes share by way of MPICH; "self" is this process."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/maps") as file:
            found |= {line[line.index(_PREFIX) :].split()[0] for line in file if _PREFIX in line}
    return found


def remove(paths: Iterable[str]) -> None:
    """Remove the names; those that are gone already are no error."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
