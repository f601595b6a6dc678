"""Messages between MPI ranks, measured by the same code on engines and under a bare mpiexec.

Run by mpiexec as ``python messages.py FOLDER``: each rank waits in the kernel for a line in its own pipe, so that
ranks that do not measure use no core, as engines that have no task.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What is measured: kind, bytes of a message, and how many are timed together: a millisecond or so, most of which the
#: kernel gives to nobody else.
WORK = (
    ("ping-pong", 8, 200),
    ("ping-pong", 1 << 16, 10),
    ("ping-pong", 1 << 20, 2),
    ("allreduce", 8, 200),
    ("allreduce", 1 << 20, 2),
)

#: Names of the pipes in the folder: of a rank's orders, and of rank 0's results.
ORDERS, RESULTS = "orders-{}", "results"


def measure(kind: str, size: int, together: int, times: int) -> list[float]:
    """Return how many seconds an exchange took, so many times; to be called by all ranks together."""
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    data, other = bytearray(size), bytearray(size)
    found = []
    for _ in range(times):
        world.Barrier()
        start = time.perf_counter()
        if kind == "allreduce":
            for _ in range(together):
                world.Allreduce([data, MPI.DOUBLE], [other, MPI.DOUBLE])
        elif world.rank == 0:
            for _ in range(together):
                world.Send(data, 1)
                world.Recv(data, 1)
        elif world.rank == 1:
            for _ in range(together):
                world.Recv(data, 0)
                world.Send(data, 0)
        found.append((time.perf_counter() - start) / together)
    world.Barrier()
    return found


def main() -> None:
    """Be a rank that does as it is told, until its pipe is closed or says so."""
    from mpi4py import MPI

    (folder,) = sys.argv[1:]
    rank = MPI.COMM_WORLD.rank
    with open(os.path.join(folder, ORDERS.format(rank))) as orders, open(os.path.join(folder, RESULTS), "w") as results:
        for line in orders:
            found = measure(*json.loads(line))
            if rank == 0:
                results.write(f"{json.dumps(found)}\n")
                results.flush()


if __name__ == "__main__":
    main()
