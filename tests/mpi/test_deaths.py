"""SIGKILL of each kind of process of a cluster with an MPI set: who notices, how soon, and what is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, EngineSpec, errors
from ipcluster_core.process import carrying, children

#: Seconds within which a loss is told, and after which nothing of what was lost lives.
SOON = 5.0

rows: list[tuple[str, float, float, str]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what was found."""
    rows.clear()
    yield
    print(f"\n{'SIGKILL of':22} {'told after':>10} {'gone after':>10}  what was told")  # noqa: T201
    for victim, told, gone, text in rows:
        print(f"{victim:22} {told:8.2f} s {gone:8.2f} s  {text}")  # noqa: T201


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An ordinary engine, and an MPI set of three ranks."""
    made = Cluster.create_sync("mortal", engines={"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")})
    yield made
    made.teardown_sync(force=True)


def members() -> list[int]:
    """Return the processes of the first incarnation of the set."""
    uid = steps.record_of("mortal").uid
    return carrying(f"IPCLUSTER_MPI=1/0/{uid}")


def rank(cluster: Cluster) -> int:
    """Return the process of rank 1."""
    return cluster.status_sync().engines[2].pid or 0


def rank_nanny(cluster: Cluster) -> int:
    """Return the nanny beside rank 1."""
    (nanny,) = [child for child in children(rank(cluster)) if os.getsid(child) == child]
    return nanny


def mpiexec(cluster: Cluster) -> int:
    """Return the set's launcher."""
    (found,) = [pid for pid in children(steps.part("mortal", "nanny")) if pid in members()]
    return found


def mpiexec_group(cluster: Cluster) -> int:
    """Return the process group of the set's launcher, as a pid for kill(2)."""
    return -os.getpgid(mpiexec(cluster))


def wait_in_all(cluster: Cluster, client: Client) -> dict[int, Future[None]]:
    """Have each engine work."""
    futures = {engine: client.options(engines=[engine]).submit(time.sleep, 60) for engine in range(4)}
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 4)
    return futures


def lives(pid: int) -> bool:
    """Tell whether a process is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("victim", "text"),
    [
        (rank, r"rank 1 \(engine 2\).* ended; mpiexec: exit code"),
        (rank_nanny, r"the nanny of rank 1 \(engine 2\) ended"),
        (mpiexec, r"mpiexec ended: signal SIGKILL"),
        (mpiexec_group, r"mpiexec ended: signal SIGKILL"),
    ],
)
def test_what_belongs_to_the_set_ends_the_set_alone(
    cluster: Cluster, victim: Callable[[Cluster], int], text: str
) -> None:
    """Its tasks fail with the cause, all its processes go, it comes back; the engine beside it works on."""
    client = Client.connect("mortal")
    futures, old = wait_in_all(cluster, client), members()
    children_of_ranks = client_children(cluster)
    start = time.monotonic()
    os.kill(victim(cluster), signal.SIGKILL)
    found = [futures[engine].exception(SOON) for engine in (1, 2, 3)]
    told = time.monotonic() - start
    gone = told + steps.wait_until(lambda: not any(map(lives, [*old, *children_of_ranks])), SOON)
    rows.append((victim.__name__, told, gone, str(found[0]).partition("(")[2].partition(") while")[0]))
    cluster.wait_sync(4, timeout=10)

    for error in found:
        with pytest.raises(errors.EngineLost, match=text):
            raise error or AssertionError
    assert not futures[0].done()
    assert [engine.incarnation for engine in cluster.status_sync().engines] == [0, 1, 1, 1]
    assert len(client.run(os.getpid, engines="solver", timeout=10)) == 3
    client.shutdown(wait=False)


def client_children(cluster: Cluster) -> list[int]:
    """Return what ranks have started besides their nannies."""
    return [pid for engine in cluster.status_sync().engines[1:] for pid in children(engine.pid or 0)]


@pytest.mark.parametrize("victim", ["nanny", "controller", "broker"])
def test_what_belongs_to_the_cluster_ends_it_with_all_ranks(cluster: Cluster, victim: str) -> None:
    """Who waits learns what died, and nothing is left."""
    client = Client.connect("mortal")
    futures = wait_in_all(cluster, client)
    start = time.monotonic()
    os.kill(steps.part("mortal", victim), signal.SIGKILL)
    for future in futures.values():
        with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
            future.result(SOON)
    told = time.monotonic() - start
    gone = told + steps.wait_until(lambda: not steps.living("mortal"), SOON)
    rows.append((f"head's {victim}", told, gone, f"its {victim} died"))
    client.shutdown()

    assert steps.left_in_store() == ["records/mortal"]
    assert not members()


def test_the_loss_of_a_set_harms_no_set_of_another_cluster(cluster: Cluster) -> None:
    """Also where both have the same name, ids and incarnation."""
    with Cluster("beside", engines={"default": EngineSpec(n=1), "solver": EngineSpec(n=2, kind="mpi")}) as other:
        before = [engine.pid for engine in other.status_sync().engines]
        os.kill(rank(cluster), signal.SIGKILL)
        steps.wait_until(lambda: [e.incarnation for e in cluster.status_sync().engines] == [0, 1, 1, 1])
        cluster.wait_sync(4, timeout=30)

        assert [engine.pid for engine in other.status_sync().engines] == before
        assert [engine.incarnation for engine in other.status_sync().engines] == [0, 0, 0]
