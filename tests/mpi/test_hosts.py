"""MPI sets whose ranks run on other hosts: real ones as far as the kernel goes, with real ssh between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import leaks
import steps
from ipcluster_core import Client, Cluster, EngineStatus, errors
from ipcluster_core.process import children, descendants
from machines import Machines, machines, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no hosts can be made here: {why_not()}")

#: Seconds for what takes no more than a few processes to start or end.
SOON = 30.0

#: Seconds within which a host that says nothing is told as lost, and nothing is left on it: ten, and some to end it.
LOST = 30.0

#: Ranks 0 and 1 on one host, 2 and 3 on another, as engines 1 to 4; an ordinary engine, and ranks at the head.
CREATE = """
import sys
from ipcluster_core import Cluster, EngineSpec

ssh = sys.argv[2:]
sets = {
    "default": EngineSpec(n=1),
    "solver": EngineSpec(n=4, kind="mpi", hosts=["node1", "node2:2"], ssh=ssh),
    "near": EngineSpec(n=1, kind="mpi"),
}
env = {"UCX_TLS": "tcp,self"}  # MPICH would take the hosts for one, as they have one kernel
Cluster.create_sync(sys.argv[1], engines=sets, env=env, at_least=1, timeout=60)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two hosts besides the head."""
    with machines(tmp_path_factory.getbasetemp(), ["node1", "node2"]) as made:
        yield made


@pytest.fixture
def leak_policy() -> leaks.Policy:
    """Allow what the hosts consist of: a test may start one again, and sshd wait for a peer whose cable was cut."""
    return leaks.Policy(processes=("sshd: *", "unshare *"))


@pytest.fixture
def cluster(hosts: Machines) -> Iterator[Cluster]:
    """Made on the head, and used from there: a network is what tests are not in."""
    command = [*hosts.at_head, sys.executable, "-c", CREATE, "far", *hosts.ssh]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    made = Cluster.connect_sync("far")
    try:
        try:
            made.wait_sync(6, timeout=60)
        except errors.ClusterTimeout as error:
            logs = {**made.logs_sync(), **made.logs_sync(engines=list(range(6)))}
            pytest.fail(f"{error}: {made.status_sync()}, {logs}", pytrace=False)
        yield made
    finally:
        made.teardown_sync(force=True)
    hosts.wait_until_empty(SOON)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("far")
    yield made
    made.shutdown(wait=False)


def world() -> tuple[int, int, int, str]:
    """Return rank, size, the sum of all ranks, and the host."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    print(f"rank {comm.rank} is here")  # noqa: T201 - to be found in its log
    return comm.rank, comm.size, comm.allreduce(comm.rank), os.uname().nodename


WORLD = {1: (0, 4, 6, "node1"), 2: (1, 4, 6, "node1"), 3: (2, 4, 6, "node2"), 4: (3, 4, 6, "node2")}


def engines(cluster: Cluster) -> dict[int, EngineStatus]:
    """Return the engines by id."""
    return {engine.id: engine for engine in cluster.status_sync().engines}


def sleep(seconds: float, path: str) -> None:
    """Tell that it has begun, and work."""
    print("at work", path)  # noqa: T201
    time.sleep(seconds)


def work_on_all(cluster: Cluster, client: Client) -> dict[int, Future[None]]:
    """Have each engine work for long."""
    futures = {engine: client.options(engines=[engine]).submit(time.sleep, 600) for engine in range(6)}
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 6)
    return futures


def test_ranks_on_two_hosts_are_one_world(cluster: Cluster, client: Client) -> None:
    """They compute together, what they print is in their logs, and status says where each is."""
    results = client.run(world, engines="solver", timeout=SOON)
    logs = cluster.logs_sync(engines=[1, 4])

    assert results == WORLD
    assert {n: engine.host for n, engine in engines(cluster).items() if n in WORLD} == {
        1: "node1",
        2: "node1",
        3: "node2",
        4: "node2",
    }
    assert engines(cluster)[0].host == os.uname().nodename
    assert logs == {"engine-1": "rank 0 is here", "engine-4": "rank 3 is here"}


def only_on_node2(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return something as large: what was given, on one of the hosts."""
    array *= os.uname().nodename == "node2"
    return array


def test_large_arrays_come_there_and_back(client: Client) -> None:
    """There is no shared memory between hosts: they travel in the messages, as arguments, results and values put."""
    array = np.arange(2_000_000, dtype=float)
    ref = client.put(array)
    sums = client.run(lambda given: float(given.sum()), ref, engines="solver", timeout=SOON)
    back = client.run(only_on_node2, array, engines=[2, 3], timeout=SOON)

    assert sums == dict.fromkeys(range(1, 5), float(array.sum()))
    assert not back[2].any()
    assert (back[3] == array).all()


def note_signals() -> None:
    """Print each SIGUSR1 that comes."""
    signal.signal(signal.SIGUSR1, lambda signum, frame: print("heard it", flush=True))  # noqa: T201


def test_a_signal_is_seen_by_the_rank_that_it_is_for(cluster: Cluster, client: Client) -> None:
    """On another host as well; no other rank and no other engine sees it."""
    client.run(note_signals, timeout=SOON)

    def heard() -> list[str]:
        return [name for name, text in cluster.logs_sync(engines=list(range(6))).items() if "heard it" in text]

    assert cluster.signal_sync(signal.SIGUSR1, [4]) == [4]
    steps.wait_until(heard)
    client.run(world, engines="solver", timeout=SOON)  # whatever is under way has come before this
    assert heard() == ["engine-4"]
    assert cluster.signal_sync(signal.SIGUSR1, "solver") == [1, 2, 3, 4]
    steps.wait_until(lambda: heard() == ["engine-1", "engine-2", "engine-3", "engine-4"])


def test_an_interrupt_ends_the_task_of_a_rank_on_another_host(cluster: Cluster, client: Client) -> None:
    """And that one only; the world lives on."""
    futures = {engine: client.options(engines=[engine]).submit(sleep, 600, f"e{engine}") for engine in (2, 3)}
    steps.wait_until(lambda: "at work e3" in cluster.logs_sync(engines=[3])["engine-3"])
    outcomes = cluster.interrupt_sync([3, 4])

    assert outcomes == {3: "interrupted", 4: "idle"}
    with pytest.raises(KeyboardInterrupt):
        futures[3].result(SOON)
    assert not futures[2].done()
    assert futures[2].cancel()
    assert client.run(world, engines="solver", timeout=SOON) == WORLD


def cut(hosts: Machines) -> None:
    """Pull the cable."""
    hosts.cut("node2")


def power_off(hosts: Machines) -> None:
    """Pull the plug."""
    hosts.power_off("node2")


@pytest.mark.parametrize("how", [cut, power_off])
def test_the_loss_of_a_host_ends_the_set_and_nothing_else(
    hosts: Machines, cluster: Cluster, client: Client, how: Callable[[Machines], None]
) -> None:
    """Each of its tasks says so, on no host is anything left of it; when the host is back, so is the set."""
    before, futures = engines(cluster), work_on_all(cluster, client)
    try:
        how(hosts)
        found = [str(futures[engine].exception(LOST)) for engine in (1, 2, 3, 4)]
        # It is tried again, and fails as any start does; it is given up after some times.
        steps.wait_until(lambda: engines(cluster)[4].state == "failed", 4 * SOON)
        hosts.wait_until_empty(LOST)
        reasons = "\n".join(cluster.status_sync().reasons)
    finally:
        hosts.mend("node2") if how is cut else hosts.boot("node2")
    steps.wait_until(lambda: hosts.can_log_in("node2"), SOON)
    cluster.restart_sync("solver", timeout=SOON)
    after = engines(cluster)

    assert all("was lost with MPI set 'solver' (host node2 was lost: no word for 10 s)" in text for text in found)
    assert [text.partition(" on ")[2].partition(" ")[0] for text in found] == ["node1", "node1", "node2", "node2"]
    assert "host node2 cannot be reached" in reasons
    assert not futures[0].done()
    assert not futures[5].done()
    assert [after[n].pid for n in (0, 5)] == [before[n].pid for n in (0, 5)]
    assert client.run(world, engines="solver", timeout=SOON) == WORLD


def outpost(hosts: Machines) -> int:
    """Return the outpost of node2: its guard has one child, and errands are its own."""
    found = [pid for pid, line in hosts.processes("node2").items() if line.endswith("ipcluster_core.outpost")]
    (guard,) = [pid for pid in found if not any(pid in children(other) for other in found)]
    return next(pid for pid in found if pid in children(guard))


def ssh(hosts: Machines) -> int:
    """Return the ssh that leads to node2."""
    found = descendants(steps.part("far", "nanny"))
    return next(pid for pid in found if b"ssh_config\0node2\0" in Path(f"/proc/{pid}/cmdline").read_bytes())


def relay(hosts: Machines) -> int:
    """Return the head's side of the outpost."""
    return next(pid for pid in children(steps.part("far", "nanny")) if ssh(hosts) in children(pid))


def mpiexecs_daemon(hosts: Machines) -> int:
    """Return what mpiexec has started on node2 to start ranks."""
    return next(pid for pid, line in hosts.processes("node2").items() if line.split()[0].endswith(("prted", "proxy")))


@pytest.mark.parametrize("victim", [outpost, ssh, relay, mpiexecs_daemon])
def test_what_leads_to_a_host_takes_the_set_with_it_and_is_made_anew(
    hosts: Machines, cluster: Cluster, client: Client, victim: Callable[[Machines], int]
) -> None:
    """At once; nothing of the lost set lives on either host."""
    futures, old = work_on_all(cluster, client), {**hosts.processes("node1"), **hosts.processes("node2")}
    os.kill(victim(hosts), signal.SIGKILL)
    found = [futures[engine].exception(SOON) for engine in (1, 2, 3, 4)]
    cluster.wait_sync(6, timeout=SOON)
    now = {**hosts.processes("node1"), **hosts.processes("node2")}

    for error in found:
        with pytest.raises(errors.EngineLost, match="was lost with MPI set 'solver'"):
            raise error or AssertionError
    assert not old.keys() & now.keys()
    assert [engine.incarnation for engine in engines(cluster).values()] == [0, 1, 1, 1, 1, 0]
    assert client.run(world, engines="solver", timeout=SOON) == WORLD


@pytest.mark.parametrize("victim", ["nanny", "controller", "broker"])
def test_the_end_of_the_head_leaves_nothing_on_any_host(
    hosts: Machines, cluster: Cluster, client: Client, victim: str
) -> None:
    """However it came."""
    futures = work_on_all(cluster, client)
    os.kill(steps.part("far", victim), signal.SIGKILL)
    for future in futures.values():
        with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
            future.result(SOON)

    hosts.wait_until_empty(SOON)
    steps.wait_until(lambda: not steps.living("far"), SOON)


def test_a_teardown_while_a_host_is_away_does_not_wait_for_it(hosts: Machines, cluster: Cluster) -> None:
    """What is on that host ends by itself."""
    hosts.cut("node2")
    report = cluster.teardown_sync(force=True, timeout=SOON)
    hosts.wait_until_empty(LOST)
    hosts.mend("node2")

    assert (report.outcome, report.leftovers) == ("ended", ())
