"""SIGKILL of each kind of process of a cluster with an MPI set: who notices, how soon, and what is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pytest

import steps
import tables
from ipcluster_core import Client, Cluster, EngineSpec, errors
from ipcluster_core.mpi import MARK_VARIABLE, mark_of
from ipcluster_core.process import carrying, children

#: Seconds within which a loss is told, and after which nothing of what was lost lives.
SOON = 5.0

#: Seconds after which it is looked again that nothing is left.
LATER = 15.0


class Found(NamedTuple):
    """What came of a death."""

    victim: str
    noticed_by: str
    told: float
    gone: float
    text: str
    pids: set[int]
    at: float


found: list[Found] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Look again, and have a table printed of what was found."""
    found.clear()
    yield
    steps.wait_until(lambda: time.monotonic() > max(row.at for row in found) + LATER, LATER + 5)
    left = {row.victim: sum(map(lives, row.pids)) for row in found}
    head = ("SIGKILL of", "noticed by", "told after", "gone after", f"left {LATER:g} s later", "what was told")
    rows = [
        (row.victim, row.noticed_by, f"{row.told:.2f} s", f"{row.gone:.2f} s", str(left[row.victim]), row.text)
        for row in found
    ]
    tables.add("deaths in a cluster with an MPI set", head, rows)
    assert set(left.values()) == {0}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An ordinary engine, and an MPI set of three ranks."""
    made = Cluster.create_sync("mortal", engines={"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")})
    yield made
    made.teardown_sync(force=True)


def rank(cluster: Cluster) -> int:
    """Return the process of rank 1."""
    return cluster.status_sync().engines[2].pid or 0


def rank_nanny(cluster: Cluster) -> int:
    """Return the nanny beside rank 1."""
    (nanny,) = [child for child in children(rank(cluster)) if os.getsid(child) == child]
    return nanny


def marked() -> list[int]:
    """Return the processes of the first life of the set."""
    record = steps.record_of("mortal")
    return carrying(f"{MARK_VARIABLE}={mark_of(record.tag, 1, 0)}")


def mpiexec(cluster: Cluster) -> int:
    """Return the set's launcher."""
    (found,) = [pid for pid in children(steps.part("mortal", "nanny")) if pid in marked()]
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
    ("victim", "noticed_by", "text"),
    [
        (rank, "its nanny", r"rank \d \(engine \d\) ended(: signal SIGKILL)?; .*mpiexec: exit code"),
        (rank_nanny, "head nanny", r"the nanny of rank 1 \(engine 2\) ended"),
        (mpiexec, "head nanny", r"mpiexec ended: signal SIGKILL"),
        (mpiexec_group, "head nanny", r"mpiexec ended: signal SIGKILL"),
    ],
)
def test_what_belongs_to_the_set_ends_the_set_alone(
    cluster: Cluster, victim: Callable[[Cluster], int], noticed_by: str, text: str
) -> None:
    """Its tasks fail with the cause, all its processes go, it comes back; the engine beside it works on."""
    client = Client.connect("mortal")
    futures = wait_in_all(cluster, client)
    old = {*marked(), *children_of_ranks(cluster)}
    start = time.monotonic()
    os.kill(victim(cluster), signal.SIGKILL)
    lost = [futures[engine].exception(SOON) for engine in (1, 2, 3)]
    told = time.monotonic() - start
    gone = told + steps.wait_until(lambda: not any(map(lives, old)), SOON)
    cause = str(lost[0]).partition("(")[2].partition(") while")[0]
    name = victim.__name__.replace("_", " ")
    found.append(Found(name, noticed_by, told, gone, cause, old, time.monotonic()))
    cluster.wait_sync(4, timeout=10)

    for error in lost:
        with pytest.raises(errors.EngineLost, match=text):
            raise error or AssertionError
    assert not futures[0].done()
    assert [engine.incarnation for engine in cluster.status_sync().engines] == [0, 1, 1, 1]
    assert len(client.run(os.getpid, engines="solver", timeout=10)) == 3
    client.shutdown(wait=False)


def children_of_ranks(cluster: Cluster) -> list[int]:
    """Return what ranks have started besides their nannies."""
    return [pid for engine in cluster.status_sync().engines[1:] for pid in children(engine.pid or 0)]


@pytest.mark.parametrize(
    ("victim", "noticed_by"), [("nanny", "all below it"), ("controller", "head nanny"), ("broker", "head nanny")]
)
def test_what_belongs_to_the_cluster_ends_it_with_all_ranks(cluster: Cluster, victim: str, noticed_by: str) -> None:
    """Who waits learns what died, and nothing is left."""
    client = Client.connect("mortal")
    futures = wait_in_all(cluster, client)
    old = set(steps.living("mortal"))
    start = time.monotonic()
    os.kill(steps.part("mortal", victim), signal.SIGKILL)
    for future in futures.values():
        with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
            future.result(SOON)
    told = time.monotonic() - start
    gone = told + steps.wait_until(lambda: not steps.living("mortal"), SOON)
    name = "head nanny" if victim == "nanny" else victim
    found.append(Found(name, noticed_by, told, gone, f"its {victim} died", old, time.monotonic()))
    client.shutdown()

    assert steps.left_in_store() == ["records/mortal"]
    assert not marked()
