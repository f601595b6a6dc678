"""When something dies: who learns it, how soon, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterState, errors, open_store
from ipcluster_core.incarnation import update
from ipcluster_core.record import Ended, utc_now
from ipcluster_core.wire import Buffer

#: Seconds within which nothing of a broken cluster may live any more.
GONE = 5.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three engines."""
    made = Cluster.create_sync("mortal", n=3)
    yield made
    made.teardown_sync(force=True)


def leave_children() -> list[int]:
    """Start a child in a session of its own, and a fork in this one."""
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    fork = os.fork()
    if fork == 0:
        signal.pause()
    return [sleeper.pid, fork]


def die(log: str, how: str) -> None:
    """Leave a line in a file, say some last words, and go."""
    with Path(log).open("a") as file:
        file.write("begun\n")
    print("these are my last words")  # noqa: T201 - they are what is looked for
    if how == "exit":
        os._exit(3)
    if how == "segfault":
        import ctypes

        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "cause"), [("exit", "exit code 3"), ("kill", "signal SIGKILL"), ("segfault", "signal SIGSEGV")]
)
def test_a_task_that_kills_its_engine_fails_alone(cluster: Cluster, tmp_path: Path, how: str, cause: str) -> None:
    """Its future names engine, cause and last output within 2 s; it ran once; the others' results come."""
    log = tmp_path / "log"
    with Client.connect("mortal") as client:
        others = [client.submit(pow, 2, n) for n in range(100)]
        start = time.monotonic()
        doomed = client.submit(die, str(log), how)
        more = [client.submit(pow, 3, n) for n in range(100)]
        with pytest.raises(errors.EngineLost) as caught:
            doomed.result(10)
        passed = time.monotonic() - start

        assert passed < 2
        assert caught.value.cause == cause
        assert caught.value.engine in (0, 1, 2)
        assert "these are my last words" in caught.value.output
        assert f"engine {caught.value.engine} on" in str(caught.value)
        assert [future.result(10) for future in others] == [2**n for n in range(100)]
        assert [future.result(10) for future in more] == [3**n for n in range(100)]
    assert log.read_text() == "begun\n"
    steps.wait_until(lambda: sum(e.incarnation for e in cluster.status_sync().engines if e.state == "up") == 1)


def test_a_lost_task_is_tried_again_as_often_as_asked(cluster: Cluster, tmp_path: Path) -> None:
    """`retries=2` gives three attempts."""
    log = tmp_path / "log"
    with Client.connect("mortal") as client, pytest.raises(errors.EngineLost):
        client.options(retries=2).submit(die, str(log), "kill").result(20)

    assert log.read_text() == "begun\n" * 3


def chunk_item(n: int, fatal: int) -> int:
    """One of many quick tasks of one function; one of them kills the engine."""
    if n == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def test_death_inside_a_batch_loses_one_task_only(cluster: Cluster) -> None:
    """Tasks of the chunk that had finished keep their results, those not begun run elsewhere."""
    with Client.connect("mortal") as client:
        list(client.map(chunk_item, range(2000), [-1] * 2000))  # its run time is known now: chunks are large
        futures = [client.submit(chunk_item, n, 1234) for n in range(3000)]
        outcomes = [future.exception(20) or future.result() for future in futures]

    assert isinstance(outcomes[1234], errors.EngineLost)
    assert [n for n, outcome in enumerate(outcomes) if outcome != n] == [1234]


@pytest.mark.parametrize("victim", ["controller", "broker", "nanny"])
def test_sigkill_of_a_part_ends_the_cluster_and_tells_the_client(cluster: Cluster, victim: str) -> None:
    """Nothing lives 5 s later, grandchildren included; who waits learns what died; so does who comes later."""
    client = Client.connect("mortal")
    children = [pid for pids in client.run(leave_children).values() for pid in pids]
    waiting = [client.submit(time.sleep, 300) for _ in range(5)]
    os.kill(steps.part("mortal", victim), signal.SIGKILL)

    for future in waiting:
        with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
            future.result(GONE)
    with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
        client.submit(abs, 1)
    client.shutdown()
    assert steps.wait_until(lambda: not steps.living("mortal"), GONE) < GONE
    assert not any(_lives(pid) for pid in children)
    assert steps.left_in_store() == ["records/mortal"]
    with pytest.raises(errors.ClusterEnded, match=f"its {victim} died"):
        Client.connect("mortal")
    assert cluster.status_sync().state is ClusterState.ENDED
    assert cluster.teardown_sync().outcome == "already gone"


def test_a_submit_at_the_moment_of_the_end_is_refused_or_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller sends its task itself while the client's thread learns that it is over: neither trips the other."""
    client = Client.connect("mortal")
    connection = client._connection
    send = connection._channel.send_at_once

    def send_and_see_the_end(messages: Sequence[Sequence[Buffer]], taken: list[int]) -> None:
        send(messages, taken)
        cluster.teardown_sync()
        steps.wait_until(lambda: connection._over is not None)
        with contextlib.suppress(AssertionError):  # the thread does not go on before this has returned
            steps.wait_until(lambda: not connection._outbox, 0.2)

    steps.wait_until(lambda: connection._asleep)
    monkeypatch.setattr(connection._channel, "send_at_once", send_and_see_the_end)

    with pytest.raises(errors.ClusterEnded, match="torn down"):
        client.submit(time.sleep, 300).result(10)
    client.shutdown()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_sigkill_of_everything_at_once_is_seen_and_cured(cluster: Cluster) -> None:
    """Nobody is left to write a reason: the client finds the processes gone, list says broken, teardown cleans."""
    client = Client.connect("mortal")
    waiting = client.submit(time.sleep, 300)
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 1)
    parts = [steps.part("mortal", which) for which in ("nanny", "controller", "broker")]
    # Stopped first, so that none can act on the death of another.
    for pid in parts:
        os.kill(pid, signal.SIGSTOP)
    for pid in steps.living("mortal"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(errors.ClusterBroken, match="is gone"):
        waiting.result(10)
    client.shutdown()
    (found,) = ClusterManager().list_sync()
    assert found.state is ClusterState.BROKEN
    with pytest.raises(errors.ClusterBroken, match="tear it down to clean up"):
        Cluster.connect_sync("mortal")
    assert ClusterManager().teardown_sync("mortal").outcome == "ended"
    assert steps.left_in_store() == ["records/mortal"]


def test_what_was_killed_between_its_last_words_and_its_clean_up_is_cleaned_by_teardown(cluster: Cluster) -> None:
    """The record says that it ended; secret and folder are still there, and go with a teardown that finds it gone."""
    for pid in [steps.part("mortal", which) for which in ("nanny", "controller", "broker")]:
        os.kill(pid, signal.SIGSTOP)
    for pid in steps.living("mortal"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    record = steps.record_of("mortal")
    ended = Ended("its nanny died", utc_now(), "controller")
    update(open_store(), record.tag, lambda now: now.with_state(ClusterState.ENDED, ended=ended))
    assert len(steps.left_in_store()) > 1

    assert cluster.teardown_sync().outcome == "already gone"
    assert steps.left_in_store() == ["records/mortal"]


def test_teardown_never_signals_a_stranger_with_a_recycled_pid(cluster: Cluster) -> None:
    """The record's nanny is identified by start time and boot as well; a stranger under its pid lives on."""
    cluster.teardown_sync()
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        record = steps.record_of("mortal")
        nanny = {**dict(record.jobs[0].nanny or {}), "pid": stranger.pid}
        job = record.jobs[0]._replace(nanny=nanny)
        running = record._replace(state=ClusterState.RUNNING, ended=None, jobs=(job,), incarnation=2)
        document = open_store().read("record", "mortal")
        assert document is not None
        open_store().swap("record", "mortal", running.to_dict(), document.version)

        assert ClusterManager().list_sync()[0].state is ClusterState.BROKEN
        assert ClusterManager().teardown_sync("mortal").outcome == "ended"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_engine_killed_from_outside_takes_its_children_along(cluster: Cluster) -> None:
    """What it had started ends before its successor is up."""
    with Client.connect("mortal") as client:
        children = client.run(leave_children)
        for engine in cluster.status_sync().engines:
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)

    steps.wait_until(lambda: [e.incarnation for e in cluster.status_sync().engines if e.state == "up"] == [1, 1, 1])
    assert not any(_lives(pid) for pids in children.values() for pid in pids)


def test_a_cluster_whose_scope_dies_ends_by_itself() -> None:
    """SIGKILL of the process in a ``with Cluster(...)`` block."""
    code = """
        from ipcluster_core import Cluster
        with Cluster("scoped", n=2):
            print("inside", flush=True)
            import signal; signal.pause()
    """
    with steps.started_step(code) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "inside\n"
    steps.wait_until(lambda: not steps.living("scoped"), 60)

    with pytest.raises(errors.ClusterEnded, match="the process whose with-block owned it is gone"):
        Cluster.connect_sync("scoped")


def test_a_cluster_that_is_disowned_outlives_its_scope_and_can_be_owned_by_another_process() -> None:
    """It is then that process's end that ends it."""
    with Cluster("handed-on", n=1) as cluster:
        cluster.disown_sync()
    code = """
        from ipcluster_core import Cluster
        Cluster.connect_sync("handed-on").own_sync()
        print("owned", flush=True)
        import signal; signal.pause()
    """
    assert cluster.status_sync().state is ClusterState.RUNNING
    with steps.started_step(code) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "owned\n"
        assert cluster.status_sync().state is ClusterState.RUNNING
    steps.wait_until(lambda: not steps.living("handed-on"), 60)

    with pytest.raises(errors.ClusterEnded, match="the process whose with-block owned it is gone"):
        Cluster.connect_sync("handed-on")


def test_a_cluster_that_was_taken_over_ends_with_the_block_of_whoever_owns_it_now() -> None:
    """As if the block had made it."""
    Cluster.create_sync("taken-over", n=0)
    with Cluster.connect_sync("taken-over") as cluster:
        cluster.own_sync()

    assert cluster.status_sync().state is ClusterState.ENDED
