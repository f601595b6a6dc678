"""A Prefect flow around the MPI solver of `mpi_heat.py`: run, interrupt, restart, go on, plot; each a task of the flow.

    python examples/prefect_mpi_heat.py [PICTURE]

Needs no Prefect server, see `prefect_flights.py`; mpi4py and an MPI, see `mpi_heat.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mpi_heat
from prefect import flow, task
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from ipcluster_core import ClusterHandle, EngineSpec
from prefect_ipcluster import cluster

#: See `prefect_flights.py`.
SERVER = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120, PREFECT_SERVER_ANALYTICS_ENABLED: False}


@task
def begin(handle: ClusterHandle) -> None:
    """Give the plate to the ranks. The handle is all that this step gets."""
    mpi_heat.begin(handle, mpi_heat.beginning())


@task
def run_and_interrupt(handle: ClusterHandle, checkpoint: Path) -> dict[int, str]:
    """Have the ranks run, and interrupt them after a checkpoint."""
    return mpi_heat.run_and_interrupt(handle, str(checkpoint))


@task
def restart(handle: ClusterHandle) -> str:
    """Start the ranks anew: what they held is gone."""
    return mpi_heat.restart(handle)


@task
def go_on(handle: ClusterHandle, checkpoint: Path, picture: Path) -> tuple[int, float]:
    """Go on from the checkpoint, and draw; return the number of steps, and the difference to the serial solution."""
    found = mpi_heat.go_on(handle, str(checkpoint))
    mpi_heat.plot(found, picture)
    return found.step, mpi_heat.compare(found)


@flow(name="heat")
def heat(picture: Path, ranks: int = 2) -> tuple[int, float]:
    """Solve, steered from step to step; the cluster is named after this flow run, and ends with it."""
    checkpoint = picture.with_suffix(".npz")
    with cluster(engines={mpi_heat.SOLVER: EngineSpec(n=ranks, kind="mpi")}) as handle:
        begin(handle)
        for rank, outcome in run_and_interrupt(handle, checkpoint).items():
            print(f"rank {rank}: {outcome}")
        print(restart(handle))
        return go_on(handle, checkpoint, picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Solve the heat equation on a cluster of MPI ranks, as a flow.")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("heat.png"), help="PNG file to write")
    arguments = parser.parse_args()
    with temporary_settings(set_defaults=SERVER):
        step, difference = heat(arguments.picture)
    print(f"after {step} steps, the largest difference to the serial solution is {difference:.1e}")
    sys.exit(0 if difference < 1e-12 else 1)
