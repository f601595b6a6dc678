"""mpi4py.futures in a world that `mpiexec` makes: rank 0 is the client, the others are engines."""

from __future__ import annotations

import os
import pathlib
import sys

from bench.peers import Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class Mpi4py(Pool):
    """The pool of `python -m mpi4py.futures`."""

    package = "mpi4py"
    lacks: ClassVar[Mapping[str, str]] = {
        "connect": "the pool is private to its client",
        "add": "a world has one size",
        "restart": "no such call",
        "restart_busy": "no such call",
        "teardown": "waits for tasks that have begun",
        "kill": "mpiexec ends the whole job, the client too",
    }
    # More ranks than cores, by any user; without the search for network hardware that costs each rank a second; ranks
    # that wait give up their core.
    environment: ClassVar[Mapping[str, str]] = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mtl": "^ofi",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }

    @classmethod
    def command(cls, n: int, arguments: list[str]) -> list[str]:
        """Start all ranks at once."""
        beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
        mpiexec = beside if pathlib.Path(beside).exists() else "mpiexec"
        return [mpiexec, "-n", str(n + 1), sys.executable, "-m", "mpi4py.futures", *arguments]

    def start(self) -> None:
        """Take the ranks that are there."""
        from mpi4py.futures import MPIPoolExecutor

        self.pool = MPIPoolExecutor()

    def close(self) -> None:
        """Shut down."""
        self.pool.shutdown()
