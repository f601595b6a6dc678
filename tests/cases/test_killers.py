"""C15, C22: what a task does to its engine, and what it starts beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harm
import steps
from ipcluster_core import Client, Cluster, ClusterManager, errors

#: Memory limit of an engine, in bytes: it is killed at twice that.
MEMORY_BYTES = 150_000_000


def exit_at_once() -> None:
    """End the process without a word to anybody."""
    os._exit(3)


def kill_itself() -> None:
    """SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def fault() -> None:
    """Read what is at address 0."""
    import ctypes

    ctypes.string_at(0)


def eat_memory() -> None:
    """Take more and more until somebody ends it."""
    hoard = []
    while True:
        hoard.append(b"x" * 10_000_000)
        time.sleep(0.01)


#: Ways to go, and what the error has to say of it.
WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "exit": (exit_at_once, "exit code 3"),
    "kill": (kill_itself, "signal SIGKILL"),
    "segfault": (fault, "signal SIGSEGV"),
    "memory": (eat_memory, "signal SIGKILL, memory limit: it held"),
}


def die(log: str, how: Callable[[], None]) -> None:
    """Leave a line, say some last words, and go."""
    with Path(log).open("a") as file:
        file.write("begun\n")
    print("last words")  # noqa: T201 - they are what is looked for
    how()


@pytest.mark.parametrize("how", WAYS)
def test_a_task_that_kills_its_engine_is_told_who_died_and_how_and_ran_as_often_as_asked(
    tmp_path: Path, how: str
) -> None:
    """C15: engine, host, cause and last words within 10 s; once by default, three times with two retries.

    Five tasks elsewhere take one second instead of three. The engine's successor is another incarnation.
    """
    way, cause = WAYS[how]
    once, thrice = tmp_path / "once", tmp_path / "thrice"
    with Cluster("c15", n=3, max_memory_bytes=MEMORY_BYTES) as cluster, cluster.client() as client:
        others = [client.options(engines=[1, 2]).submit(time.sleep, 1) for _ in range(5)]
        start = time.monotonic()
        with pytest.raises(errors.EngineLost) as lost:
            client.options(engines=[0]).submit(die, str(once), way).result(20)
        passed = time.monotonic() - start
        with pytest.raises(errors.EngineLost):
            client.options(retries=2, engines=[0]).submit(die, str(thrice), way).result(30)

        assert passed < 10
        assert f"engine 0 on {os.uname().nodename} died ({cause}" in str(lost.value)
        assert "last words" in str(lost.value)
        assert once.read_text() == "begun\n"
        assert thrice.read_text() == "begun\n" * 3
        assert [other.result(20) for other in others] == [None] * 5
        up = [(4, "up"), (0, "up"), (0, "up")]
        steps.wait_until(lambda: [(one.incarnation, one.state) for one in cluster.status_sync().engines] == up)


#: A process that no parent and no session ties to its starter; it says its pid, and closes its output.
DAEMON = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
time.sleep(1000)
"""


def start_children() -> tuple[list[int], list[int]]:
    """Leave a pool open, have another one work and end, and start programs that escape their session."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # In this order: a process with a pool has threads, and is not to fork.
    with ProcessPoolExecutor(2) as executor:
        results = list(executor.map(abs, range(-8, -4)))
    pool = multiprocessing.get_context("fork").Pool(2)
    results += pool.map(abs, range(-4, 0))
    sys.modules["left open"] = pool  # type: ignore[assignment]  # whatever lives as long as the process
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    said = subprocess.run([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=True, env={}).stdout
    return results, [sleeper.pid, int(said), *(process.pid for process in pool._pool)]  # type: ignore[attr-defined]


def work_in_children(begun: str) -> None:
    """Keep a pool's children at work."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(os.mkdir, [begun])
        pool.map(time.sleep, [600] * 4)


def below(name: str) -> list[int]:
    """Return the pids of all that descends from a cluster's nanny."""
    from ipcluster_core.process import descendants

    return descendants(steps.part(name, "nanny"))


@pytest.fixture
def parental() -> Iterator[Client]:
    """An engine with children of every kind."""
    cluster = Cluster.create_sync("c22", n=1)
    client = cluster.client()
    yield client
    client.shutdown(wait=False)
    assert cluster.teardown_sync().leftovers == ()


def begin(client: Client) -> list[int]:
    """Have the children started, and return the pids of all that the engine's task has left alive."""
    results, children = client.submit(start_children).result(20)

    assert results == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(harm.lives(pid) for pid in children)
    return children


def test_children_of_tasks_work_and_end_with_the_cluster(parental: Client) -> None:
    """C22 (a), (b): pools work inside an engine; nothing lives after a teardown, and nothing is left over."""
    children = begin(parental)
    done = steps.ctl("teardown", "c22")

    assert (done.returncode, done.stdout, done.stderr) == (0, "c22: ended\n", "")
    assert not any(harm.lives(pid) for pid in children)


def test_children_of_tasks_end_with_their_engine(parental: Client) -> None:
    """C22 (c): SIGKILL of the engine; its successor works and holds none of them."""
    children = begin(parental)
    os.kill(parental.submit(os.getpid).result(10), signal.SIGKILL)

    assert steps.wait_until(lambda: not any(harm.lives(pid) for pid in children)) < 10
    assert parental.submit(abs, -9).result(10) == 9


def test_cancelling_a_task_ends_the_pool_that_it_waits_for(parental: Client, tmp_path: Path) -> None:
    """C22 (d): the interrupt reaches the task, whose pool ends with its block; the engine lives on."""
    engine = parental.submit(os.getpid).result(10)
    running = parental.submit(work_in_children, str(tmp_path / "begun"))
    steps.wait_until((tmp_path / "begun").exists)
    assert running.cancel()

    steps.wait_until(lambda: len([pid for pid in below("c22") if harm.lives(pid)]) == 3)
    assert parental.submit(os.getpid).result(10) == engine
    assert ClusterManager().get_sync("c22").state == "running"


def fork_and(how: str) -> tuple[str, int]:
    """Fork; the copy returns, raises or leaves as a program would, and the engine says how the copy ended."""
    pid = os.fork()
    if pid == 0:
        if how == "raise":
            raise ValueError("in the copy")
        if how == "exit":
            sys.exit(7)
        return "the copy", 0
    return "the engine", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_copy_that_a_task_forks_does_not_speak_for_the_engine() -> None:
    """C22: it ends where the task ends; the task's outcome is that of the engine, and the next one works."""
    with Cluster("c22", n=1), Client.connect("c22") as client:
        engine = client.submit(os.getpid).result(10)
        found = [client.submit(fork_and, how).result(10) for how in ("return", "raise", "exit")]

        assert found == [("the engine", 0), ("the engine", 1), ("the engine", 7)]
        assert client.submit(os.getpid).result(10) == engine


def end_forks(count: int) -> set[int]:
    """Fork children and end each at once; return how they ended."""
    ends = set()
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGTERM)
        ends.add(os.waitpid(pid, 0)[1])
    return ends


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_what_a_task_forks_is_ended_by_sigterm_however_young_it_is(start_method: str) -> None:
    """C22 (d): it has neither the engine's handlers, nor a moment in which a signal is lost."""
    with Cluster("c22", n=1, start_method=start_method) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        assert client.submit(end_forks, 300).result(30) == {signal.SIGTERM}
