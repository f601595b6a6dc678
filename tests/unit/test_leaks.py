"""The leak check itself: what counts as left over, and what may be ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leaks
from leaks import Policy, Process, Snapshot, since

PATIENT = Policy(patience=5.0)
IMPATIENT = Policy(patience=0.0)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that waits for the end of its input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        yield child
        child.kill()


def test_nothing_new_is_nothing_left() -> None:
    """What was there before a test is not the test's doing."""
    here = Snapshot(frozenset({Process(7, started=1)}), frozenset({(7, "main")}), frozenset({(0, "pipe:[1]")}))

    assert not since(here, here, Policy())


def test_a_pid_that_passed_to_another_process_is_new() -> None:
    """A process is known by its start time too."""
    before = Snapshot(processes=frozenset({Process(7, started=1)}))
    after = Snapshot(processes=frozenset({Process(7, started=2)}))

    assert since(before, after, Policy()).processes == {Process(7, started=2)}


def test_a_process_that_became_a_zombie_is_still_the_same() -> None:
    """A process from before the test may end during the test."""
    before = Snapshot(processes=frozenset({Process(7, started=1)}))
    after = Snapshot(processes=frozenset({Process(7, started=1, zombie=True)}))

    assert not since(before, after, Policy())


def test_policy_allows_by_name() -> None:
    """A folder of tests can allow the threads, processes and descriptors of its framework."""
    after = Snapshot(
        processes=frozenset(
            {Process(7, started=1, command="server --port 1"), Process(8, started=1, command="engine")}
        ),
        threads=frozenset({(1, "framework-1"), (2, "framework-2"), (3, "ours")}),
        descriptors=frozenset({(5, "socket:[1]"), (6, "pipe:[2]")}),
    )
    policy = Policy(threads=("framework-*",), processes=("server *",), descriptors=("socket:*",))

    assert str(since(Snapshot(), after, policy)) == "process 8: engine\nthread ours\ndescriptor 6: pipe:[2]"


def test_loop_of_the_blocking_twins_may_stay_with_what_it_holds() -> None:
    """The test that happens to start the shared loop is not blamed for its selector and its socket pair."""
    loop = frozenset({(5, "anon_inode:[eventpoll]"), (6, "socket:[1]"), (7, "socket:[2]")})
    after = Snapshot(threads=frozenset({(1, "ipcluster-loop")}), descriptors=loop | {(8, "socket:[3]")})

    assert since(Snapshot(), after, Policy()).descriptors == {(8, "socket:[3]")}


def test_selector_without_a_loop_thread_is_left_over() -> None:
    """A loop that a test forgot to close is seen by its descriptors."""
    after = Snapshot(descriptors=frozenset({(5, "anon_inode:[eventpoll]")}))

    assert str(since(Snapshot(), after, Policy())) == "descriptor 5: anon_inode:[eventpoll]"


def test_ours_are_descendants_and_the_marked() -> None:
    """Neither ancestors, nor strangers, nor the clusters of other test runs are blamed on a test."""
    processes = [
        Process(1, started=1, parent=0),
        Process(10, started=2, parent=1, run="outer"),  # this process
        Process(11, started=3, parent=10),
        Process(12, started=4, parent=11, zombie=True),
        Process(20, started=5, parent=1, run="mine"),
        Process(21, started=6, parent=20, zombie=True),
        Process(30, started=7, parent=1, tagged=True),
        Process(40, started=8, parent=1, tagged=True, run="other"),
        Process(50, started=9, parent=1),
    ]

    assert {process.pid for process in leaks.ours(processes, 10, "mine")} == {11, 12, 20, 21, 30}


def test_child_is_left_over_until_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    """A child counts while it runs and while it is a zombie."""
    now = leaks.take_snapshot()
    before = Snapshot(descriptors=now.descriptors, threads=now.threads, files=now.files)
    running = leaks.wait_until_clean(before, IMPATIENT)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    zombie = leaks.wait_until_clean(before, IMPATIENT)
    sleeper.wait()

    assert f"process {sleeper.pid}: {sys.executable} -c input()" in str(running)
    assert f"process {sleeper.pid} (zombie): " in str(zombie)
    assert not leaks.wait_until_clean(before, PATIENT)


def test_process_of_a_cluster_is_left_over_without_being_a_child() -> None:
    """A process that detached itself and lost its mark is found by its tag; it is reported, but not ended."""
    before = leaks.take_snapshot()
    environment = {leaks.TAG_VARIABLE: "a-tag", "PYTHONPATH": ""}
    detached = "import os; os.fork() and os._exit(0); print(os.getpid(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", detached], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        left = leaks.wait_until_clean(before, IMPATIENT)
        leaks.end(left)

        assert [(process.pid, process.tagged) for process in left.processes] == [(pid, True)]
        assert leaks.read_process(pid) is not None


def test_end_kills_what_comes_from_this_run(sleeper: subprocess.Popen[bytes]) -> None:
    """A leaked process is not left to disturb the next test."""
    leaks.end(Snapshot(processes=frozenset(leaks.ours(list(leaks.all_processes()), os.getpid(), leaks.RUN))))

    assert sleeper.wait(timeout=5) == -9


def test_kill_spares_a_pid_that_passed_to_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    """A process is never ended by its pid alone."""
    leaks.kill(Process(sleeper.pid, started=1))

    assert sleeper.poll() is None


def test_thread_is_left_over_until_it_ends() -> None:
    """A thread is named by its name."""
    before = leaks.take_snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    running = leaks.wait_until_clean(before, IMPATIENT)
    stop.set()

    assert str(running) == "thread forgotten"
    assert not leaks.wait_until_clean(before, PATIENT)
    thread.join()


def test_descriptor_is_left_over_until_it_is_closed() -> None:
    """Pipes and sockets are named by their kind."""
    before = leaks.take_snapshot()
    reader, writer = os.pipe()
    opened = leaks.wait_until_clean(before, IMPATIENT)
    os.close(reader)
    os.close(writer)

    assert [target.partition(":")[0] for _, target in opened.descriptors] == ["pipe", "pipe"]
    assert not leaks.wait_until_clean(before, IMPATIENT)


def test_descriptor_held_by_garbage_is_not_left_over() -> None:
    """A cycle of garbage is collected before anybody is blamed."""
    before = leaks.take_snapshot()
    cycle: list[object] = [tempfile.TemporaryFile(buffering=0)]  # noqa: SIM115 the collector is to close it
    cycle.append(cycle)
    del cycle

    with pytest.warns(ResourceWarning, match="unclosed file"):
        assert not leaks.wait_until_clean(before, PATIENT)


def test_file_in_the_temporary_folder_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files with our prefix are ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = leaks.take_snapshot()
    (tmp_path / "ipcluster-1234").touch()
    (tmp_path / "other").touch()

    assert str(leaks.wait_until_clean(before, IMPATIENT)) == f"file {tmp_path}/ipcluster-1234"
