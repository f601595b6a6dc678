"""How the ranks of an MPI set are started: the command, its environment, the way that a rank learns what it is. Pure.

Nothing here imports mpi4py: whoever imports its MPI module is a rank.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

__all__ = ["BOOT", "ERRAND", "MARK_VARIABLE", "RANKS", "command", "environment", "find_mpiexec", "mark_of", "rank_of"]

#: Environment variable of all processes of one incarnation of an MPI set, see `mark_of`.
MARK_VARIABLE = "IPCLUSTER_MPI"

#: Name of the file in an MPI set's folder that tells its ranks what they need to know; it holds no secret.
BOOT = "boot.json"

#: Name of the head nanny's socket for the ranks' nannies.
RANKS = "ranks"

#: What streams of errands are called, see `errand`.
ERRAND = "errand"

#: What makes MPI quick to start on one machine, where the user's environment says nothing else. Open MPI: no search
#: for network hardware, which costs each rank a second; more ranks than cores; root, in containers. MPICH needs none.
_SINGLE_NODE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mtl": "^ofi",
    "OMPI_MCA_btl": "^ofi",
}

#: Where the two MPIs tell a process its rank before MPI_Init.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def mark_of(tag: str, first: int, incarnation: int) -> str:
    """Return the mark of an MPI set by the tag of its cluster, its first engine, and which life of it this is."""
    return f"{tag}/{first}/{incarnation}"


def find_mpiexec(asked: str | None, python: str, path: str | None) -> str:
    """Return the command that starts ranks.

    Parameters
    ----------
    asked
        What the spec says.
    python
        The interpreter: the wheels of both MPIs put theirs beside it.
    path
        PATH, to look at last.

    Returns
    -------
    str
        Its path, or a name that cannot be found.
    """
    if asked is not None:
        return shutil.which(asked, path=path) or asked
    beside = os.path.join(os.path.dirname(python), "mpiexec")
    return beside if os.access(beside, os.X_OK) else shutil.which("mpiexec", path=path) or "mpiexec"


def command(mpiexec: str, ranks: int, arguments: Sequence[str], python: str, folder: str) -> list[str]:
    """Return the command line of a set's ranks."""
    program = [python, "-P", "-m", "ipcluster_core.rank", folder]
    return [mpiexec, "-n", str(ranks), *arguments, *program]


def environment(
    given: Mapping[str, str],
    asked: Mapping[str, str],
    *,
    mark: str,
    folder: str,
    ranks: int,
    cores: int,
) -> dict[str, str]:
    """Return the environment of mpiexec.

    Parameters
    ----------
    given
        The nanny's.
    asked
        The spec's, which is stronger.
    mark
        Of this incarnation of the set.
    folder
        Of the set: whatever Open MPI leaves behind goes with it.
    ranks, cores
        Ranks that wait give up their core when there are fewer cores than ranks.

    Returns
    -------
    dict
        Complete.
    """
    preset = {**_SINGLE_NODE, "PRTE_MCA_prte_local_tmpdir_base": folder}
    if ranks > cores:
        preset["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return {**preset, **given, **asked, MARK_VARIABLE: mark}


def rank_of(variables: Mapping[str, str]) -> int:
    """Return the rank that mpiexec gave to this process.

    Returns
    -------
    int
        Known before MPI_Init.

    Raises
    ------
    ValueError
        It gave none that is known here.
    """
    for name in _RANK_VARIABLES:
        if name in variables:
            return int(variables[name])
    raise ValueError(f"mpiexec told no rank: none of {', '.join(_RANK_VARIABLES)} is set; is it of Open MPI or MPICH?")
