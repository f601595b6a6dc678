"""What becomes of engines that have run enough, hold too much, or die again and again."""

from __future__ import annotations

import atexit
import os
import time
from datetime import datetime
from pathlib import Path

import pytest

import steps
from ipcluster_core import Cluster, errors
from ipcluster_core.policy import PAUSES

MEGABYTE = 10**6

leaked: list[bytes] = []


def leak(n: int, size: int) -> tuple[int, int, str]:
    """Keep some memory; return the number given, the engine's process, and its id."""
    leaked.append(b"x" * size)
    return n, os.getpid(), os.environ["IPCLUSTER_ENGINE"]


def test_an_engine_makes_room_for_the_next_after_so_many_tasks() -> None:
    """Ten tasks on one id take four processes; none is lost, in whichever way they are sent."""
    with Cluster("tired", n=1, max_tasks=3) as cluster, cluster.client() as client:
        one_by_one = [client.submit(leak, n, 1).result(10) for n in range(10)]
        at_once = [future.result(20) for future in [client.submit(leak, n, 1) for n in range(10)]]
        targeted = [client.options(engines=[0]).submit(leak, n, 1).result(10) for n in range(10)]
        large = [len(future.result(20)) for future in [client.submit(bytes, 10**7) for _ in range(5)]]
        in_chunks = list(client.map(abs, range(100), chunksize=10))

        for results in (one_by_one, at_once, targeted):
            pids = [pid for _, pid, _ in results]
            assert [n for n, _, _ in results] == list(range(10))
            assert max(pids.count(pid) for pid in pids) <= 3
            assert {engine for _, _, engine in results} == {"0"}
        assert large == [10**7] * 5
        assert in_chunks == list(range(100))
        (engine,) = cluster.status_sync().engines
        assert engine.incarnation >= 10
        assert cluster.status_sync().reasons == ()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_an_engine_that_leaks_makes_room_between_two_tasks(start_method: str) -> None:
    """Ten tasks leave 30 MB each behind, with a limit of 100 MB: none is lost, nor run twice."""
    fields = {"n": 1, "max_memory_bytes": 100 * MEGABYTE, "start_method": start_method}
    with Cluster("leaky", **fields) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        results = [future.result(20) for future in [client.submit(leak, n, 30 * MEGABYTE) for n in range(10)]]

        pids = [pid for _, pid, _ in results]
        assert [n for n, _, _ in results] == list(range(10))
        assert 2 <= len(set(pids)) <= 10
        assert max(pids.count(pid) for pid in pids) <= 4
        steps.wait_until(lambda: cluster.status_sync().engines[0].incarnation >= len(set(pids)) - 1)


def eat(size: int, log: str) -> None:
    """Take memory, step by step, for as long as it is there."""
    with Path(log).open("a") as file:
        file.write("begun\n")
    while sum(map(len, leaked)) < size:
        leaked.append(b"x" * (10 * MEGABYTE))
        time.sleep(0.01)
    time.sleep(300)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_task_that_takes_twice_the_memory_is_ended_with_the_reason(tmp_path: Path, start_method: str) -> None:
    """It alone; it ran once; its engine is replaced."""
    log = tmp_path / "log"
    fields = {"n": 2, "max_memory_bytes": 100 * MEGABYTE, "start_method": start_method}
    with Cluster("greedy", **fields) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        doomed = client.submit(eat, 1000 * MEGABYTE, str(log))
        others = [client.submit(pow, 2, n) for n in range(100)]
        with pytest.raises(errors.EngineLost, match=r"memory limit: it held \d+ MB, more than twice") as caught:
            doomed.result(10)

        assert caught.value.cause.startswith("signal SIGKILL, memory limit")
        assert [future.result(10) for future in others] == [2**n for n in range(100)]
        assert cluster.wait_sync(2) == 2
    assert log.read_text() == "begun\n"


def hang_at_exit() -> None:
    """Have this engine's exit hooks take for ever."""
    atexit.register(time.sleep, 300)


def test_an_engine_that_leaves_is_not_held_up_by_its_exit_hooks() -> None:
    """For longer than some seconds; meanwhile it is shown as restarting, and another does its tasks."""
    with Cluster("slow-exit", n=2, max_tasks=1, max_restarts=0) as cluster, cluster.client() as client:
        client.submit(hang_at_exit).result(10)
        steps.wait_until(lambda: "restarting" in [e.state for e in cluster.status_sync().engines])
        assert [client.submit(abs, -n).result(5) for n in range(3)] == [0, 1, 2]
        steps.wait_until(lambda: all(e.incarnation and e.state == "up" for e in cluster.status_sync().engines))


def die(code: int) -> None:
    """Say some last words and go."""
    print("these are my last words", flush=True)  # noqa: T201 - they are what is looked for
    os._exit(code)


def test_an_engine_is_not_replaced_when_that_is_asked_for() -> None:
    """With the last one, tasks fail at once and say why, until engines get another chance."""
    with Cluster("frail", n=2, max_restarts=0) as cluster, cluster.client() as client:
        with pytest.raises(errors.EngineLost, match="exit code 3"):
            client.submit(die, 3).result(10)
        steps.wait_until(lambda: sorted(e.state for e in cluster.status_sync().engines) == ["failed", "up"])
        assert client.submit(abs, -1).result(10) == 1
        (reason,) = cluster.status_sync().reasons
        assert reason.startswith(("engine 0 ended and is not replaced", "engine 1 ended and is not replaced"))

        doomed, waiting = client.submit(die, 4), [client.submit(abs, -n) for n in range(5)]
        with pytest.raises(errors.EngineLost, match="exit code 4"):
            doomed.result(10)
        outcomes = [future.exception(10) for future in waiting]
        assert isinstance(outcomes[-1], errors.EngineLost)
        text = "no engine of cluster 'frail' #1 is left: engine 0 ended and is not replaced, as max_restarts is 0"
        assert text in str(outcomes[-1])
        assert "these are my last words" in str(outcomes[-1])
        with pytest.raises(errors.EngineLost, match="no engine of cluster 'frail' #1 is left"):
            client.submit(abs, -1).result(10)

        cluster.restart_sync([1], timeout=10)
        assert client.submit(abs, -1).result(10) == 1


def test_a_cluster_scaled_to_none_keeps_its_tasks() -> None:
    """Also one whose engines had failed: that it has none is what was asked for."""
    with Cluster("patient", n=1, max_restarts=0) as cluster, cluster.client() as client:
        with pytest.raises(errors.EngineLost):
            client.submit(die, 3).result(10)
        steps.wait_until(lambda: [e.state for e in cluster.status_sync().engines] == ["failed"])
        cluster.scale_sync(0)
        waiting = client.submit(abs, -1)
        steps.wait_until(lambda: cluster.status_sync().tasks["queued"] == 1)
        assert not waiting.done()
        cluster.scale_sync(1)

        assert waiting.result(10) == 1


FRAGILE = """
import sys
from pathlib import Path
if "ipcluster_core.engine" in " ".join(sys.orig_argv) and Path("broken").exists():
    raise ImportError("no lizard in here")
"""


def test_an_engine_that_crashes_at_import_is_given_up_after_growing_pauses(tmp_path: Path) -> None:
    """Its tasks then fail with what it said last; scaling tries again."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    fields = {"n": 1, "cwd": str(tmp_path), "preload": ["fragile"], "start_method": "spawn"}
    with Cluster("fragile", **fields) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        (tmp_path / "broken").touch()
        with pytest.raises(errors.EngineLost, match="exit code 3"):
            client.submit(die, 3).result(10)
        waiting = client.submit(abs, -1)
        with pytest.raises(errors.EngineLost, match=r"(?s)could not be started \(exit code 1\).*no lizard in here"):
            waiting.result(20)
        (engine,) = cluster.status_sync().engines
        assert (engine.state, engine.incarnation) == ("failed", 3)
        with pytest.raises(errors.LaunchError, match="no lizard in here"):
            cluster.wait_sync(1)
        events = [event for event in cluster.events_sync() if event.engine == 0]
        kinds = [event.kind.removeprefix("engine ") for event in events]
        assert kinds == ["started", "up", "died", "started", "died", "started", "died", "started", "died", "failed"]
        seconds = [datetime.fromisoformat(event.at).timestamp() for event in events]
        pauses = [seconds[at + 1] - seconds[at] for at in (2, 4, 6)]
        assert [PAUSES[at] <= pause + 0.002 for at, pause in enumerate(pauses)] == [True] * 3
        assert "no lizard in here" in events[-1].text

        (tmp_path / "broken").unlink()
        cluster.scale_sync(1)
        assert client.submit(abs, -1).result(20) == 1


def test_events_tell_the_clusters_life_in_its_order() -> None:
    """Each with its time, what it is about, and why."""
    with Cluster("storied", n=1, max_tasks=2) as cluster, cluster.client() as client:
        for n in range(2):
            client.submit(abs, n).result(10)
        steps.wait_until(lambda: [e.state for e in cluster.status_sync().engines if e.incarnation == 1] == ["up"])
        cluster.restart_sync([0])
        cluster.adapt_sync(0, 1)
        cluster.scale_sync(0)
        steps.wait_until(lambda: not cluster.status_sync().engines)
        events = cluster.events_sync()

        assert [(event.kind, event.engine) for event in events] == [
            ("created", None),
            ("engine started", 0),
            ("engine up", 0),
            ("running", None),
            ("engine recycled", 0),
            ("engine started", 0),
            ("engine up", 0),
            ("engine restarted", 0),
            ("engine started", 0),
            ("engine up", 0),
            ("adapted", None),
            ("scaled", None),
            ("engine stopped", 0),
        ]
        assert events[4].text == "it has run 2 tasks (max_tasks is 2)"
        assert [event.at for event in events] == sorted(event.at for event in events)
        assert [event.kind for event in cluster.events_sync(tail=1)] == ["engine stopped"]
    with pytest.raises(errors.ClusterEnded):
        cluster.events_sync()
