"""What an MPI library leaves outside the cluster's own folders when a rank is killed, and its removal.

::

    rank: described() -> MPI_Init -> note(folder)     ...     whoever cleans up, when no rank is left: remove(folder)

Both MPIs put files into shared memory (16 MB for each rank) and unlink them in MPI_Finalize, which a killed rank never
comes to. Open MPI is told to put them into the cluster's own segments' folder, see `mpi.environment`. MPICH cannot be
told, nor its launcher, which writes a description of the machine for MPI_Init into /tmp: those are noted, by name and
inode, and removed.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Set as AbstractSet
from contextlib import suppress

from .segments import folder_of

__all__ = ["described", "note", "remove"]

#: How the files of notes begin, in an MPI set's folder.
_PREFIX = "remains-"

_SHARED = os.path.dirname(folder_of(""))

#: One job's files in shared memory: a name of its own, and numbers, of which more come in MPI_Win_allocate.
_NUMBERED = re.compile(r"(.*/mpich_shm_[0-9a-f]+_)\d+")

#: Where MPICH's launcher describes the machine: the template in its `hydra_pmi_proxy`.
_DESCRIPTIONS = "/tmp/hydra_hwloc_xmlfile_*"  # noqa: S108 - it has no other place


def described() -> frozenset[str]:
    """Return the descriptions of the machine that are there, by whichever launcher."""
    return frozenset(glob.glob(_DESCRIPTIONS))


def note(folder: str, rank: int, before: AbstractSet[str]) -> None:
    """Write down, in a set's folder, what there is of this rank's MPI library outside of it.

    Parameters
    ----------
    folder, rank
        Of the set, and which it is.
    before
        What was `described` before MPI_Init. If several came since, there is no telling whose they are.
    """
    with open("/proc/self/maps") as maps:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    outside = {path for path in mapped if os.path.dirname(path) == _SHARED}
    new = described() - before
    with open(os.path.join(folder, f"{_PREFIX}{rank}"), "w") as file:
        for path in sorted(outside | new if len(new) == 1 else outside):
            with suppress(OSError):  # unlinked by now
                file.write(f"{os.stat(path).st_ino} {path}\n")


def remove(folder: str) -> None:
    """Remove what the ranks of a set have noted in its folder, once none of them is left; safe to repeat."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"{_PREFIX}*")):
        with suppress(OSError), open(path) as file:
            for line in file.read().splitlines():
                inode, _, left = line.partition(" ")
                _remove(left, int(inode))


def _remove(path: str, inode: int) -> None:
    with suppress(OSError):
        if os.stat(path).st_ino != inode:
            return  # another job's by now
        numbered = _NUMBERED.fullmatch(path)
        for one in glob.glob(f"{glob.escape(numbered[1])}*") if numbered else [path]:
            os.unlink(one)
