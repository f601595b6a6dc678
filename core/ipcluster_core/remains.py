"""What MPI libraries leave outside the cluster's own folders when ranks are killed, and its removal.

Both MPIs put files into shared memory (16 MB for each rank) and unlink them in MPI_Finalize, which a killed rank never
comes to. Open MPI's go into a folder of the cluster's, see `mpi` and `rank`. MPICH's have names in ``/dev/shm`` that
nobody needs once all ranks of a host have mapped them; which ones can be told as long as one of them lives. MPICH's
launcher writes a description of the machine for MPI_Init into /tmp: the ranks note which, by name and inode.

::

    rank:       described() -> MPI_Init -> unlink(find()), note(folder)
    at the end: find() -> kill -> unlink(), remove(folder)
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress

__all__ = ["described", "find", "note", "remove", "unlink"]

_MPICH = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's choice

#: Where MPICH's launcher describes the machine: the template in its `hydra_pmi_proxy`.
_DESCRIPTIONS = "/tmp/hydra_hwloc_xmlfile_*"  # noqa: S108 - it has no other place

#: How the files of notes begin, in an MPI set's folder.
_NOTES = "remains-"


def find(pids: Iterable[int | str]) -> set[str]:
    """Return the paths of what processes share by way of MPICH; "self" is this process."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/maps") as file:
            found |= {line[line.index(_MPICH) :].split()[0] for line in file if _MPICH in line}
    return found


def unlink(paths: Iterable[str]) -> None:
    """Remove the names; those that are gone already are no error."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def described() -> frozenset[str]:
    """Return the descriptions of the machine that are there, by whichever launcher."""
    return frozenset(glob.glob(_DESCRIPTIONS))


def note(folder: str, rank: int, before: AbstractSet[str]) -> None:
    """Write down, in a set's folder, which description came in this rank's MPI_Init.

    Parameters
    ----------
    folder, rank
        Of the set, and which it is.
    before
        What was `described` before. If several came since, there is no telling whose they are.
    """
    new = described() - before
    if len(new) == 1:
        with suppress(OSError), open(os.path.join(folder, f"{_NOTES}{rank}"), "w") as file:
            file.writelines(f"{os.stat(path).st_ino} {path}\n" for path in new)


def remove(folder: str) -> None:
    """Remove what the ranks of a set have noted in its folder, once none of them is left; safe to repeat."""
    for path in glob.glob(os.path.join(glob.escape(folder), f"{_NOTES}*")):
        with suppress(OSError, ValueError), open(path) as file:
            inode, _, noted = file.read().rstrip("\n").partition(" ")
            if os.stat(noted).st_ino == int(inode):  # else it is another job's by now
                os.unlink(noted)
