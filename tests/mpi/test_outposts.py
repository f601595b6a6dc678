"""MPI sets on another host that is none: what stands for ssh runs its command here, in a session of its own.

So all of the way is gone without root and without a network; see `test_hosts` for real hosts.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import steps
from ipcluster_core import Client, Cluster, EngineSpec, errors
from ipcluster_core.process import descendants

#: Seconds for what takes no more than a few processes to start or end.
SOON = 30.0

#: As ssh does it: the words of a login first, and one line for a shell.
FAKE = """#!/bin/sh
echo "Welcome to $1, and have a nice day"
shift
{before}
exec setsid -w sh -c "$*"
"""


def fake_ssh(folder: Path, before: str = "") -> list[str]:
    """Make a command that stands for ssh."""
    path = folder / "fake-ssh"
    path.write_text(FAKE.format(before=before))
    path.chmod(0o755)
    return [str(path)]


def spec(ssh: list[str], n: int = 2, room: int = 4) -> EngineSpec:
    """Return a set whose ranks are there."""
    return EngineSpec(n=n, kind="mpi", hosts=[f"elsewhere:{room}"], ssh=ssh)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An ordinary engine, and two ranks behind an outpost."""
    with Cluster("far", engines={"default": EngineSpec(n=1), "solver": spec(fake_ssh(tmp_path))}, timeout=60) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("far")
    yield made
    made.shutdown(wait=False)


def world() -> tuple[int, int, int]:
    """Return rank, size, and the sum of all ranks."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return comm.rank, comm.size, comm.allreduce(comm.rank)


def where() -> str:
    """Return the folder of this rank's outpost."""
    return os.environ["IPCLUSTER_OUTPOST"]


def halves(array: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return a sum, and something large."""
    array /= 2
    return float(array.sum()), array


def test_ranks_behind_an_outpost_are_engines_as_any(cluster: Cluster, client: Client) -> None:
    """Calls, large arrays both ways, values put, an interrupt, a restart, another size."""
    array = np.arange(1_000_000, dtype=float)
    ref = client.put(array)
    before = client.run(world, engines="solver", timeout=SOON)
    results = client.run(halves, array, engines="solver", timeout=SOON)
    sums = client.run(lambda given: float(given.sum()), ref, timeout=SOON)
    cluster.restart_sync("solver", timeout=SOON)
    again = client.run(world, engines="solver", timeout=SOON)
    cluster.scale_sync(3, engines="solver")
    steps.wait_until(lambda: sum(engine.state == "up" for engine in cluster.status_sync().engines) == 4, SOON)

    assert before == again == {1: (0, 2, 1), 2: (1, 2, 1)}
    assert [result[0] for result in results.values()] == [array.sum() / 2] * 2
    assert all((result[1] == array / 2).all() for result in results.values())
    assert sums == dict.fromkeys(range(3), array.sum())
    assert client.run(world, engines="solver", timeout=SOON)[3] == (2, 3, 3)


def test_the_secret_is_in_files_of_its_user_alone(cluster: Cluster, client: Client) -> None:
    """In no command line and no environment, on neither side."""
    folder, secret = Path(client.run(where, engines=[1], timeout=SOON)[1]), steps.secret_of("far").encode()
    files = [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]
    processes = [Path(f"/proc/{pid}") for pid in descendants(steps.part("far", "nanny"))]
    seen = [(path / name).read_bytes() for path in processes for name in ("cmdline", "environ")]

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600]
    assert any(str(folder).encode() in text for text in seen)
    assert not any(secret in text for text in seen)


def last_one_dies(number: int) -> int:
    """Return the number, but for the last: that is the end of the rank."""
    if number == 29:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_what_had_finished_on_another_host_is_not_lost_with_it(client: Client) -> None:
    """Whether it had been sent or not: it is in the journal, which has come over."""
    futures = [client.options(engines=[2]).submit(last_one_dies, number) for number in range(30)]

    with pytest.raises(errors.EngineLost, match=r"rank 1 \(engine 2\) ended|mpiexec ended"):
        futures[29].result(SOON)
    assert [future.result(SOON) for future in futures[:29]] == list(range(29))


def test_an_interrupt_gets_there(cluster: Cluster, client: Client) -> None:
    """A cancel as well; what is told of it is what happened."""
    futures = [client.options(engines=[engine]).submit(time.sleep, 600) for engine in (1, 2)]
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 2)
    steps.wait_until(lambda: cluster.interrupt_sync([1]) == {1: "interrupted"})

    with pytest.raises(KeyboardInterrupt):
        futures[0].result(SOON)
    assert futures[1].cancel()
    assert client.run(world, engines="solver", timeout=SOON) == {1: (0, 2, 1), 2: (1, 2, 1)}


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "exit code 255: Permission denied"),
        (
            "exec sh -c '/nowhere/python -m x'",
            "there is no .* on host elsewhere: an MPI set needs the same interpreter",
        ),
        # Without its site-packages.
        ('set -- $(echo "$*" | sed "s/ -P / -I -S -P /")', "on host elsewhere lacks ipcluster-core: install it there"),
    ],
    ids=["refuses", "no interpreter", "no package"],
)
def test_a_host_that_cannot_be_used_is_an_error_with_its_words(tmp_path: Path, before: str, text: str) -> None:
    """And what is to be done about it."""
    with pytest.raises(errors.LaunchError, match=f"(?s){text}"):
        Cluster.create_sync("far", engines={"solver": spec(fake_ssh(tmp_path, before))}, timeout=60)


def test_without_ssh_the_error_says_how_to_name_one() -> None:
    """It is not there on each machine."""
    with pytest.raises(errors.LaunchError, match=r"'/nowhere/ssh' cannot be run .*EngineSpec\(ssh="):
        Cluster.create_sync("far", engines={"solver": spec(["/nowhere/ssh"])}, timeout=60)


def test_more_ranks_than_the_hosts_have_room_for_are_an_error_of_the_set(tmp_path: Path) -> None:
    """The others live on."""
    sets = {"default": EngineSpec(n=1), "solver": spec(fake_ssh(tmp_path), room=2)}
    with Cluster("far", engines=sets, timeout=60) as cluster, cluster.client() as client:
        cluster.scale_sync(3, engines="solver")
        steps.wait_until(lambda: any("room for 2" in reason for reason in cluster.status_sync().reasons), SOON)

        assert client.submit(abs, -1).result(SOON) == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_head_nanny_is_the_end_of_the_outpost(cluster: Cluster, client: Client, signum: int) -> None:
    """Its folder goes with it."""
    folder = Path(client.run(where, engines=[1], timeout=SOON)[1])
    os.kill(steps.part("far", "nanny"), signum)
    steps.wait_until(lambda: not steps.living("far"), SOON)

    steps.wait_until(lambda: not folder.exists(), SOON)
