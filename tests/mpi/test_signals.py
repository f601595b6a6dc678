"""Signals to ranks and to their launcher, and interrupts of what ranks run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import steps
import storm
from ipcluster_core import Client, Cluster, EngineSpec, errors

#: Seconds within which an interrupt has had its effect.
SOON = 10.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An ordinary engine, and an MPI set of three ranks."""
    sets = {"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")}
    with Cluster("heard", engines=sets) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("heard")
    yield made
    made.shutdown(wait=False)


def listen(folder: str) -> None:
    """Note each SIGUSR1 that this engine gets from now on, as a byte in a file of its own."""
    path = Path(folder, os.environ["IPCLUSTER_ENGINE"])
    path.touch()

    def note(signum: int, frame: object) -> None:
        with path.open("a") as file:
            file.write(".")

    signal.signal(signal.SIGUSR1, note)


def test_a_signal_reaches_exactly_those_that_it_is_for(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """One rank, all ranks, or their mpiexec: both MPIs' pass SIGUSR1 on to each rank, once, and go on themselves."""
    folder = tmp_path / "heard"
    folder.mkdir()
    client.run(listen, str(folder))
    before = processes(cluster)

    def heard() -> dict[int, int]:
        # After a task that each engine runs now, as Python's handlers run between two steps of Python code.
        client.run(os.getpid, timeout=SOON)
        return {int(path.name): path.stat().st_size for path in folder.iterdir()}

    assert cluster.signal_sync(signal.SIGUSR1, [2]) == [2]
    steps.wait_until(lambda: heard() == {0: 0, 1: 0, 2: 1, 3: 0})
    assert cluster.signal_sync(signal.SIGUSR1, "solver") == [1, 2, 3]
    steps.wait_until(lambda: heard() == {0: 0, 1: 1, 2: 2, 3: 1})
    assert cluster.signal_sync(signal.SIGUSR1, "solver", target="launcher") == []
    steps.wait_until(lambda: heard() == {0: 0, 1: 2, 2: 3, 3: 2})
    assert cluster.signal_sync(signal.SIGUSR1) == [0, 1, 2, 3]
    steps.wait_until(lambda: heard() == {0: 1, 1: 3, 2: 4, 3: 3})
    assert processes(cluster) == before


def processes(cluster: Cluster) -> list[tuple[int, int, int | None]]:
    """Return id, incarnation and process of all engines."""
    return [(engine.id, engine.incarnation, engine.pid) for engine in cluster.status_sync().engines]


def test_an_end_asked_of_the_launcher_is_the_end_of_its_set_alone(cluster: Cluster) -> None:
    """The set comes back; a set without a launcher is named."""
    with pytest.raises(errors.ClusterError, match="set 'default' has no launcher of its own"):
        cluster.signal_sync(signal.SIGUSR1, "default", target="launcher")
    assert cluster.signal_sync(signal.SIGTERM, "solver", target="launcher") == []
    steps.wait_until(lambda: [e.incarnation for e in cluster.status_sync().engines if e.state == "up"] == [0, 1, 1, 1])


def work(folder: str) -> None:
    """Tell that this rank has begun, and sleep for a minute."""
    Path(folder, os.environ["IPCLUSTER_ENGINE"]).touch()
    time.sleep(60)


def rank() -> tuple[int, int]:
    """Return rank and the sum of all, which no rank finds alone."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)


def test_an_interrupt_of_a_set_ends_what_its_ranks_run(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """In each rank that is meant, and the ranks live on with what they hold."""
    folder = tmp_path / "begun"
    folder.mkdir()
    before = processes(cluster)
    client.push({"x": 1}, engines="solver")
    futures = {engine: client.options(engines=[engine]).submit(work, str(folder)) for engine in (1, 2, 3)}
    steps.wait_until(lambda: len(list(folder.iterdir())) == 3)

    assert cluster.interrupt_sync([2]) == {2: "interrupted"}
    assert cluster.interrupt_sync("solver") == {1: "interrupted", 2: "idle", 3: "interrupted"}
    for future in futures.values():
        with pytest.raises(KeyboardInterrupt):
            future.result(SOON)
    assert client.run(rank, engines="solver", timeout=SOON) == {1: (0, 3), 2: (1, 3), 3: (2, 3)}
    assert client.pull("x", engines="solver", timeout=SOON) == {1: 1, 2: 1, 3: 1}
    assert processes(cluster) == before


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_interrupts_at_random_moments_hit_no_wrong_task(cluster: Cluster, client: Client, seed: int) -> None:
    """As many tasks are interrupted as answers say, no rank dies, and every task has an outcome."""
    storm.check_interrupts(cluster, client, [1, 2, 3], seed)
    assert client.run(rank, engines="solver", timeout=SOON) == {1: (0, 3), 2: (1, 3), 3: (2, 3)}
