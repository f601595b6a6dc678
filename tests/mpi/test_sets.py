"""MPI sets: one unit, whichever MPI is installed beside mpi4py in this environment."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, EngineSpec, errors, namespace

#: Whether the kernel still knows how a process ended that its parent has reaped, see `ipcluster_core.exits`.
KNOWS_ENDS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)

#: Seconds within which the loss of a set is told, and it is back.
SOON = 10.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """An ordinary engine, and an MPI set of three ranks."""
    sets = {"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")}
    with Cluster("mpi", engines=sets) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("mpi")
    yield made
    made.shutdown(wait=False)


def world() -> tuple[int, int, int, int]:
    """Return rank, size, the sum of all ranks, and the engine's id."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return comm.rank, comm.size, comm.allreduce(comm.rank), int(os.environ["IPCLUSTER_ENGINE"])


def meet_unless(rank: int, how: str, folder: str) -> None:
    """Have one rank fail in a way, and the others wait for it in a barrier."""
    from mpi4py import MPI

    Path(folder, f"met-{MPI.COMM_WORLD.rank}").touch()

    if MPI.COMM_WORLD.rank == rank:
        if how == "raise":
            raise ZeroDivisionError("the grid has no points")
        if how == "abort":
            MPI.COMM_WORLD.Abort(9)
        if how == "exit":
            os._exit(3)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV if how == "crash" else signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()


def cpu_seconds(pid: int | None) -> float:
    """Return what a process has used of processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pids(cluster: Cluster) -> dict[int, int | None]:
    """Return the processes of the engines."""
    return {engine.id: engine.pid for engine in cluster.status_sync().engines}


def test_ranks_are_one_world_and_run_together(cluster: Cluster, client: Client) -> None:
    """Rank is index in the set; the engine beside them is no rank, and takes the work that names nobody."""
    results = client.run(world, engines="solver", timeout=SOON)
    plain = {client.submit(os.getpid).result(SOON) for _ in range(20)}

    assert results == {1: (0, 3, 3, 1), 2: (1, 3, 3, 2), 3: (2, 3, 3, 3)}
    assert plain == {pids(cluster)[0]}
    assert client.options(engines=[2]).submit(os.getpid).result(SOON) == pids(cluster)[2]
    assert set(client.run(os.getpid, timeout=SOON)) == {0, 1, 2, 3}


def test_the_example_of_the_readme_runs() -> None:
    """As it stands."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    code = text.partition("<!-- run by tests/mpi -->\n```python\n")[2].partition("```")[0]

    assert steps.run_step(code) == "{0: 3, 1: 3, 2: 3}"


def test_nothing_but_ranks_loads_mpi(client: Client) -> None:
    """Neither the engine beside them nor this process."""
    assert not client.submit(lambda: "mpi4py.MPI" in sys.modules).result(SOON)
    assert "mpi4py.MPI" not in sys.modules


def test_collective_calls_of_two_clients_do_not_meet(cluster: Cluster) -> None:
    """All ranks run their parts in the same order."""
    done: list[dict[int, tuple[int, int, int, int]]] = []

    def work() -> None:
        with Client.connect("mpi") as mine:
            done.extend(mine.run(world, engines="solver", timeout=60) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 150
    assert all(result[3] == (2, 3, 3, 3) for result in done)


def test_a_rank_that_raises_is_told_at_once_with_those_still_busy(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """They wait in C; a restart of the set ends that, and the engine beside it is not touched."""
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="the grid has no points") as caught:
        client.run(meet_unless, 1, "raise", str(tmp_path), engines="solver")
    passed = time.monotonic() - start
    steps.wait_until(lambda: len(list(tmp_path.glob("met-*"))) == 3)
    before = pids(cluster)
    # They use up time in the barrier; what they do before it takes none to speak of.
    used = {engine: cpu_seconds(before[engine]) for engine in (1, 3)}
    steps.wait_until(lambda: all(cpu_seconds(before[engine]) > used[engine] + 0.05 for engine in used), 60)
    busy = cluster.interrupt_sync("solver")
    cluster.restart_sync("solver", timeout=SOON)

    assert passed < SOON
    assert any("engines 1, 3 are still busy" in note for note in caught.value.__notes__)
    assert busy == dict.fromkeys((1, 3), "goes on: cannot be interrupted here, use restart") | {2: "idle"}
    assert pids(cluster)[0] == before[0]
    assert client.run(world, engines="solver", timeout=SOON)[2] == (1, 3, 3, 2)


#: What is told of the first rank that ended. How that was, its nanny asks the kernel, which may have forgotten.
ENDED = r"rank 1 \(engine 2\) ended"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("abort", r"rank \d .* ended|mpiexec ended"),
        ("exit", f"{ENDED}: exit code 3" if KNOWS_ENDS else ENDED),
        # mpiexec kills the others at once, also by SIGKILL: which of them is seen first is chance.
        ("kill", r"rank \d \(engine \d\) ended" + (": signal SIGKILL" if KNOWS_ENDS else "")),
        ("crash", f"{ENDED}: signal SIGSEGV" if KNOWS_ENDS else ENDED),
    ],
)
def test_the_end_of_a_rank_is_the_end_of_the_set(
    cluster: Cluster, client: Client, tmp_path: Path, how: str, text: str
) -> None:
    """Each task that ran or waited has one error that says why; then the same set is back, under its ids."""
    before = pids(cluster)
    beside = client.submit(time.sleep, 0.5)
    start = time.monotonic()
    with pytest.raises(errors.EngineLost, match=rf"was lost with MPI set 'solver' \(.*({text})"):
        client.run(meet_unless, 1, how, str(tmp_path), engines="solver")
    passed = time.monotonic() - start
    cluster.wait_sync(4, timeout=SOON)

    assert passed < SOON
    assert beside.result(SOON) is None
    assert client.run(world, engines="solver", timeout=SOON) == {1: (0, 3, 3, 1), 2: (1, 3, 3, 2), 3: (2, 3, 3, 3)}
    after = pids(cluster)
    assert after[0] == before[0]
    assert not set(before.values()) & {after[engine] for engine in (1, 2, 3)}


def test_each_pending_task_of_a_lost_set_fails(cluster: Cluster, client: Client) -> None:
    """Those that ran and those that waited; later ones run on the set that comes back."""
    views = [client.options(engines=[engine]) for engine in (1, 2, 3)]
    running = [view.submit(time.sleep, 60) for view in views]
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 3)
    waiting = [view.submit(time.sleep, 60) for view in views]
    os.kill(pids(cluster)[3] or 0, signal.SIGKILL)
    texts = [str(future.exception(SOON)) for future in running + waiting]

    assert all(re.search(r"rank \d \(engine \d\) ended.*mpiexec: exit code", text) for text in texts), texts
    assert ["before this task began" in text for text in texts] == [False] * 3 + [True] * 3
    cluster.wait_sync(4, timeout=SOON)
    assert [view.submit(abs, -1).result(SOON) for view in views] == [1, 1, 1]


def test_the_end_of_a_set_is_no_matter_to_another_cluster(cluster: Cluster, client: Client) -> None:
    """Which has a set of the same first engine, in the same life."""
    sets = {"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")}
    with Cluster("other", engines=sets) as other, other.client() as its:
        before = pids(other)
        os.kill(pids(cluster)[1] or 0, signal.SIGKILL)
        steps.wait_until(lambda: {e.incarnation for e in cluster.status_sync().engines if e.state == "up"} == {0, 1})

        assert client.run(world, engines="solver", timeout=SOON)[3] == (2, 3, 3, 3)
        assert its.run(world, engines="solver", timeout=SOON)[3] == (2, 3, 3, 3)
        assert pids(other) == before


def add_up() -> None:
    """Add up over all ranks what each holds, and hold the sum."""
    from mpi4py import MPI

    held = namespace()
    held["sum"] = MPI.COMM_WORLD.allreduce(held["x"] * (1 + MPI.COMM_WORLD.rank))


def test_ranks_keep_values_until_the_set_is_started_anew(cluster: Cluster, client: Client) -> None:
    """From step to step, through an interrupt; a restart of the set loses them in all ranks, and says so."""
    client.push({"x": 10}, engines="solver")
    client.run(add_up, engines="solver", timeout=SOON)
    cluster.interrupt_sync("solver")
    with Client.connect("mpi") as later:
        assert later.pull("sum", engines="solver", timeout=SOON) == {1: 60, 2: 60, 3: 60}
    cluster.restart_sync([2], timeout=SOON)

    for engine in (1, 2, 3):
        with pytest.raises(errors.StateLost, match=rf"engine {engine} was started anew .*the 'sum' that it held is go"):
            client.pull("sum", engines=[engine], timeout=SOON)
        with pytest.raises(errors.NotHeld, match=f"^engine {engine} has no 'y'; it has: nothing"):
            client.pull("y", engines=[engine], timeout=SOON)


def test_another_size_is_a_restart_with_it(cluster: Cluster, client: Client) -> None:
    """And none ends the set."""
    cluster.scale_sync(2, engines="solver")
    cluster.wait_sync(3, timeout=SOON)
    steps.wait_until(lambda: [e.id for e in cluster.status_sync().engines if e.state == "up"] == [0, 1, 2])
    smaller = client.run(world, engines="solver", timeout=SOON)
    cluster.scale_sync(0, engines="solver")
    steps.wait_until(lambda: list(pids(cluster)) == [0])

    assert smaller == {1: (0, 2, 1, 1), 2: (1, 2, 1, 2)}
    with pytest.raises(errors.ClusterError, match="no engine of set 'solver' of cluster 'mpi' #1 is up"):
        client.run(world, engines="solver")


def test_what_ranks_print_is_theirs(cluster: Cluster, client: Client) -> None:
    """One log for each, as for any engine; and no secret is in their arguments or environment."""
    client.run(lambda: print(f"I am {os.environ['IPCLUSTER_ENGINE']}", flush=True), engines="solver")  # noqa: T201
    steps.wait_until(lambda: all(cluster.logs_sync([1, 2, 3]).values()))

    assert cluster.logs_sync([1, 2, 3]) == {f"engine-{engine}": f"I am {engine}" for engine in (1, 2, 3)}
    secret = steps.secret_of("mpi").encode()
    for pid in steps.living("mpi"):
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()


def test_what_mpiexec_says_is_in_the_logs(cluster: Cluster, client: Client) -> None:
    """Beside what the ranks write: each MPI has its words for a rank that was killed."""
    os.kill(pids(cluster)[2] or 0, signal.SIGKILL)
    steps.wait_until(lambda: "illed" in cluster.logs_sync("solver")["mpiexec-1"])

    assert "illed" in cluster.logs_sync()["mpiexec-1"]
    assert list(cluster.logs_sync("solver")) == ["mpiexec-1", "engine-1", "engine-2", "engine-3"]
    assert "[mpiexec-1] " in steps.ctl("logs", "mpi", "--engines", "solver").stdout


def test_a_cluster_of_ranks_only_says_that_they_must_be_named() -> None:
    """Work that names nobody would wait for ever."""
    with Cluster("ranks", engines={"solver": EngineSpec(n=2, kind="mpi")}) as cluster, cluster.client() as client:
        with pytest.raises(errors.EngineLost, match="has MPI sets only: name those that are to run a task"):
            client.submit(abs, 1).result(SOON)
        assert client.run(abs, -2, engines="solver", timeout=SOON) == {0: 2, 1: 2}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mpiexec": "/nowhere/mpiexec"}, r"'/nowhere/mpiexec' cannot be run \(No such file or directory\)"),
        ({"mpi_args": ["--no-such-argument"]}, "no-such-argument"),
    ],
)
def test_a_set_that_cannot_be_started_says_why(settings: dict[str, str], text: str) -> None:
    """What failed, and the words of mpiexec."""
    with pytest.raises(errors.LaunchError, match=text):
        Cluster.create_sync("none", engines={"solver": EngineSpec.model_validate({"n": 2, "kind": "mpi", **settings})})
