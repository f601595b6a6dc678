"""Signals to engines, and interrupts of what they run."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import steps
import storm
from ipcluster_core import Client, Cluster, EngineSpec, errors


@pytest.fixture(params=["fork", "spawn"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two engines, and two in a set of their own."""
    sets = {"default": EngineSpec(n=2), "solver": EngineSpec(n=2)}
    with Cluster("signalled", engines=sets, start_method=request.param) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("signalled")
    yield made
    made.shutdown(wait=False)


def listen() -> None:
    """Note each SIGUSR1 that this engine gets from now on."""
    # A module that engines have for themselves: this one's functions come to them without it.
    vars(sys)["caught"] = 0

    def note(signum: int, frame: object) -> None:
        vars(sys)["caught"] += 1

    signal.signal(signal.SIGUSR1, note)


def count_caught() -> int:
    """Return how many it has got."""
    return int(vars(sys)["caught"])


def note_start(path: str) -> None:
    """Tell that a task has begun."""
    Path(path).touch()


def in_python(path: str) -> None:
    """Work for a minute in pure Python."""
    note_start(path)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass


def in_sleep(path: str) -> None:
    """Sleep for a minute."""
    note_start(path)
    time.sleep(60)


def in_c(path: str) -> int:
    """Count in C, which looks for no signal."""
    note_start(path)
    return sum(itertools.repeat(1, 10**12))


def test_a_signal_reaches_exactly_those_that_it_is_for(cluster: Cluster, client: Client) -> None:
    """One, some, a set, all; and whoever sends it is told whom it has reached."""
    client.run(listen)
    reached = []
    for engines in ([1], [0, 1], "solver", None):
        reached.append(cluster.signal_sync(signal.SIGUSR1, engines))
        client.run(abs, -1)  # two that come before a process has dealt with the first are one to the kernel

    assert reached == [[1], [0, 1], [2, 3], [0, 1, 2, 3]]
    assert client.run(count_caught) == {0: 2, 1: 3, 2: 2, 3: 2}


def test_a_signal_for_nobody_is_refused_with_what_there_is(cluster: Cluster) -> None:
    """Ids, sets and signals."""
    with pytest.raises(errors.ClusterError, match=r"has no engine \[9\]; it has: \[0, 1, 2, 3\]"):
        cluster.signal_sync(signal.SIGUSR1, [9])
    with pytest.raises(errors.ClusterError, match=r"has no engine set 'x'; it has: default, solver"):
        cluster.signal_sync(signal.SIGUSR1, "x")
    with pytest.raises(ValueError, match="there is no signal 1000"):
        cluster.signal_sync(1000)


def test_a_signal_goes_to_the_engine_and_not_to_its_children(cluster: Cluster, client: Client) -> None:
    """A child of an engine's task may have its own plans."""

    def have_child() -> int:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            signal.pause()
        return pid

    client.run(listen)
    children = client.run(have_child)
    cluster.signal_sync(signal.SIGUSR1)

    assert set(client.run(count_caught).values()) == {1}
    for child in children.values():
        os.kill(child, 0)  # it is there


@pytest.mark.parametrize("work", [in_python, in_sleep])
def test_an_interrupt_ends_the_task_that_runs(
    cluster: Cluster, client: Client, tmp_path: Path, work: Callable[[str], None]
) -> None:
    """As its KeyboardInterrupt; the one that waits runs next, and the engine keeps what it has."""
    view = client.options(engines=[2])
    view.submit(listen).result(10)
    running, waiting = view.submit(work, str(tmp_path / "begun")), view.submit(count_caught)
    steps.wait_until((tmp_path / "begun").exists)
    start = time.monotonic()
    outcomes = cluster.interrupt_sync("solver")

    assert outcomes == {2: "interrupted", 3: "idle"}
    assert time.monotonic() - start < 30
    with pytest.raises(KeyboardInterrupt):
        running.result(10)
    assert waiting.result(10) == 0
    assert [engine.incarnation for engine in cluster.status_sync().engines] == [0, 0, 0, 0]


def test_code_that_cannot_be_interrupted_is_said_to_go_on(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """With what to do about it; that ends it, and the engine comes back under its id."""
    view = client.options(engines=[1])
    stuck = view.submit(in_c, str(tmp_path / "begun"))
    steps.wait_until((tmp_path / "begun").exists)

    assert cluster.interrupt_sync([1]) == {1: "goes on: cannot be interrupted here, use restart"}
    cluster.restart_sync([1], timeout=20)
    with pytest.raises(errors.EngineLost, match="it was restarted on request"):
        stuck.result(10)
    assert view.submit(os.getpid).result(10)


def test_a_set_is_restarted_by_name(cluster: Cluster, client: Client) -> None:
    """The other one is not."""
    before = client.run(os.getpid)
    cluster.restart_sync(engines="solver", timeout=20)
    after = client.run(os.getpid)

    assert [engine for engine in before if before[engine] != after[engine]] == [2, 3]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_interrupts_at_random_moments_hit_no_wrong_task(cluster: Cluster, client: Client, seed: int) -> None:
    """As many tasks are interrupted as answers say, no engine dies, and every task has an outcome."""
    storm.check_interrupts(cluster, client, [0, 1, 2, 3], seed)


def test_the_command_signals_and_interrupts(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """By id and by set; it fails when something goes on, or there is no such signal."""
    client.run(listen)
    sent = steps.ctl("signal", "signalled", "usr1", "--engine", "3", "--engine", "0")
    stuck = client.options(engines=[1]).submit(in_c, str(tmp_path / "begun"))
    steps.wait_until((tmp_path / "begun").exists)
    goes_on = steps.ctl("interrupt", "signalled", "--engines", "default")
    idle = steps.ctl("interrupt", "signalled", "--engine", "3")

    assert (sent.returncode, sent.stdout) == (0, f"signalled: signal {int(signal.SIGUSR1)} sent to engines [0, 3]\n")
    assert (goes_on.returncode, idle.returncode) == (1, 0)
    assert goes_on.stdout == "[0] idle\n[1] goes on: cannot be interrupted here, use restart\n"
    assert idle.stdout == "[3] idle\n"
    assert steps.ctl("signal", "signalled", "SIGNONE").returncode == 2
    assert not stuck.done()
    assert client.run(count_caught, engines=[0, 2, 3]) == {0: 1, 2: 0, 3: 1}
    assert steps.ctl("restart", "signalled", "--engines", "default").returncode == 0
    with pytest.raises(errors.EngineLost):
        stuck.result(10)


class SlowToLoad:
    """A function whose pickle takes a minute to load."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> None:
        """Do nothing."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        """Tell when loading begins."""
        return in_sleep, (self.path,)


def test_an_engine_that_is_restarted_while_it_loads_a_function_loses_the_task(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """Nothing of how engines are stopped is the outcome of a task: here it had not begun, and runs on the next one."""
    view = client.options(engines=[2])
    future = view.submit(SlowToLoad(str(tmp_path / "begun")))
    steps.wait_until((tmp_path / "begun").exists)
    (tmp_path / "begun").unlink()
    cluster.restart_sync([2], timeout=20)
    steps.wait_until((tmp_path / "begun").exists)

    assert not future.done()
