"""Tasks by id from other steps, cancelling what runs, and tasks that run for too long."""

from __future__ import annotations

import concurrent.futures
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import steps
from ipcluster_core import Client, Cluster, errors


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a cluster of two engines."""
    with Cluster("ids", n=2) as cluster, cluster.client() as client:
        yield client


def wait_for(path: str) -> str:
    """Go on until a file is there."""
    while not Path(path).exists():
        time.sleep(0.01)
    return Path(path).name


def begin_and_wait(folder: str, name: str) -> str:
    """Say that this task has begun, and go on until it may end."""
    Path(folder, f"{name}.begun").touch()
    return wait_for(str(Path(folder, "go"))) and name


def hold_the_interpreter() -> None:
    """Run C code for minutes that no signal handler of Python's gets through."""
    sum(range(10**12))


# by id


def test_results_are_fetched_by_name_and_id_after_their_client_was_killed(client: Client, tmp_path: Path) -> None:
    """Tasks ran once; another step has three results and one exception; a late look says that they are over."""
    code = """
        import json, pathlib, sys, time
        from ipcluster_core import Client

        def work(folder, n):
            with open(f"{folder}/runs", "a") as file:
                file.write(f"{n}\\n")
            while not pathlib.Path(folder, "go").exists():
                time.sleep(0.01)
            if n == 2:
                raise KeyError("two")
            return n * n

        client = Client.connect("ids")
        futures = [client.submit(work, sys.argv[1], n) for n in range(4)]
        print(json.dumps([future.task_id for future in futures]), flush=True)
        time.sleep(100)
    """
    with steps.started_step(code, str(tmp_path)) as creator:
        assert creator.stdout is not None
        ids = eval(creator.stdout.readline())
        steps.wait_until((tmp_path / "runs").exists)
        creator.kill()
        creator.wait()
    (tmp_path / "go").touch()
    found = [client.future(task_id).exception(10) or client.result(task_id, 10) for task_id in ids]

    assert found[:2] + found[3:] == [0, 1, 9]
    assert repr(found[2]) == "KeyError('two')"
    assert sorted((tmp_path / "runs").read_text().split()) == ["0", "1", "2", "3"]
    assert client.result(ids[3], 10) == 9


def test_results_that_their_client_has_got_are_kept_too(client: Client) -> None:
    """It may have died before it used them."""
    with Client.connect("ids") as other:
        future = other.submit(pow, 3, 4)
        assert future.result(10) == 81

    assert client.result(future.task_id, 10) == 81


def test_a_large_result_is_kept_in_shared_memory_until_it_is_read(client: Client, tmp_path: Path) -> None:
    """Once; then there is room for the next."""
    code = """
        import sys, numpy
        from ipcluster_core import Client
        client = Client.connect("ids")
        print(client.submit(numpy.arange, 1_000_000).task_id, flush=True)
        client.shutdown(wait=False)
    """
    task_id = steps.run_step(code)

    assert np.array_equal(client.result(task_id, 10), np.arange(1_000_000))
    with pytest.raises(errors.ResultExpired, match="large ones only until they are read"):
        client.result(task_id, 10)


@pytest.mark.parametrize("task_id", ["0123456789ab-5", "nothing-1"])
def test_an_unknown_id_is_said_to_be_at_once(client: Client, task_id: str) -> None:
    """Not waited for."""
    with pytest.raises(errors.ResultExpired, match=f"task {task_id} is not kept .any more.: results are kept for 3600"):
        client.result(task_id, 10)


def test_results_expire() -> None:
    """After the time that the spec states."""
    with Cluster("brief", n=1, keep_results=0.3) as cluster, cluster.client() as client:
        future = client.submit(pow, 2, 5)
        assert future.result(10) == 32
        assert client.result(future.task_id, 10) == 32
        start = time.monotonic()
        while time.monotonic() - start < 10 and client.future(future.task_id).exception(10) is None:
            time.sleep(0.02)

        with pytest.raises(errors.ResultExpired, match=r"results are kept for 0\.3 s"):
            client.result(future.task_id, 10)


def test_a_step_waits_for_a_task_of_another(client: Client, tmp_path: Path) -> None:
    """Until it is done, or its own patience is."""
    with Client.connect("ids") as other:
        future = other.submit(wait_for, str(tmp_path / "go"))
        waiting = client.future(future.task_id)
        with pytest.raises(errors.ClusterTimeout, match="'ids'"):
            client.result(future.task_id, 0.1)
        (tmp_path / "go").touch()

        assert waiting.result(10) == "go"


def test_another_step_cancels_by_id_what_runs_and_what_waits(client: Client, tmp_path: Path) -> None:
    """Those who wait for it are told; what is over or unknown is not cancelled."""
    with Client.connect("ids") as other:
        done = other.submit(pow, 1, 1)
        done.result(10)
        running = [other.submit(begin_and_wait, str(tmp_path), str(n)) for n in range(2)]
        steps.wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
        queued = other.submit(begin_and_wait, str(tmp_path), "queued")
        assert other.result(done.task_id, 10) == 1  # so by now the broker has heard of the queued one
        ids = [done.task_id, running[0].task_id, queued.task_id, "unknown-1"]

        assert client.cancel(ids) == dict(zip(ids, [False, True, True, False], strict=True))
        assert not (tmp_path / "queued.begun").exists()
        for future in (running[0], queued, client.future(queued.task_id)):
            with pytest.raises(concurrent.futures.CancelledError):
                future.result(10)
        (tmp_path / "go").touch()
        assert running[1].result(10) == "1"


# cancelling what runs


def test_the_right_one_of_a_batch_is_cancelled(client: Client, tmp_path: Path) -> None:
    """Tasks that travel together stay tasks of their own."""
    list(client.map(pow, range(2000), [1] * 2000))
    blockers = [client.submit(begin_and_wait, str(tmp_path), f"block-{n}") for n in range(2)]
    steps.wait_until(lambda: len(list(tmp_path.glob("block-*.begun"))) == 2)
    futures = [client.submit(pow, n, 1) for n in range(200)]
    cancelled = [n for n in range(200) if n % 7 == 3 and futures[n].cancel()]
    (tmp_path / "go").touch()

    assert cancelled == list(range(3, 200, 7))
    assert [f.result(10) for n, f in enumerate(futures) if n % 7 != 3] == [n for n in range(200) if n % 7 != 3]
    assert [blocker.result(10) for blocker in blockers] == ["block-0", "block-1"]


def short(number: int, seconds: float) -> int:
    """Run for a moment, in Python and in sleep."""
    until = time.monotonic() + seconds
    while time.monotonic() < until - seconds / 2:
        pass
    time.sleep(max(0.0, until - time.monotonic()))
    return number


@pytest.mark.parametrize("seed", range(3))
def test_cancelling_at_random_moments_hits_no_other_task_and_no_engine(client: Client, seed: int) -> None:
    """Each task is cancelled, or has its result."""
    chance = random.Random(seed)
    pids = client.run(os.getpid)
    futures = [client.submit(short, n, 0.004) for n in range(300)]
    asked = set()
    for number in chance.sample(range(300), 60):
        time.sleep(chance.random() * 0.004)
        asked.add(number)
        futures[number].cancel()
    concurrent.futures.wait(futures, 30)
    outcomes = [None if future.cancelled() else future.result(0) for future in futures]

    assert all(outcome == n or (outcome is None and n in asked) for n, outcome in enumerate(outcomes))
    assert outcomes.count(None) > 10
    assert client.run(os.getpid) == pids


def test_code_that_catches_the_interrupt_goes_on(client: Client, tmp_path: Path) -> None:
    """Then it was not cancelled, and has its result."""

    def stubborn(folder: str) -> str:
        try:
            return begin_and_wait(folder, "stubborn")
        except KeyboardInterrupt:
            return begin_and_wait(folder, "again")

    future = client.submit(stubborn, str(tmp_path))
    steps.wait_until((tmp_path / "stubborn.begun").exists)
    assert not future.cancel()
    assert (tmp_path / "again.begun").exists()
    (tmp_path / "go").touch()

    assert future.result(10) == "again"


# tasks that run for too long


def test_a_task_that_runs_for_too_long_is_interrupted_and_its_engine_lives_on(client: Client) -> None:
    """Others are not disturbed, and those in time have no limit to fear."""
    pids = client.run(os.getpid)
    limited = client.options(timeout=0.3, name="load")
    start = time.monotonic()
    late, quick = limited.submit(time.sleep, 60), [limited.submit(pow, n, 2) for n in range(20)]
    with pytest.raises(errors.TaskTimeout, match=r"task 'load': the task ran for more than 0\.3 s and was interrupted"):
        late.result(10)

    assert 0.3 <= time.monotonic() - start < 5
    assert [future.result(10) for future in quick] == [n * n for n in range(20)]
    assert client.run(os.getpid) == pids


def test_a_task_that_cannot_be_interrupted_ends_with_its_engine(client: Client) -> None:
    """Which comes back under its id."""
    pids = client.run(os.getpid)
    limited = client.options(timeout=0.2, engines=[1], name="stuck")
    with pytest.raises(
        errors.TaskTimeout, match=r"'stuck': .* could not be interrupted, and was ended with its engine"
    ):
        limited.submit(hold_the_interpreter).result(20)
    after = client.options(engines=[1]).submit(os.getpid).result(20)

    assert after != pids[1]
    assert client.options(engines=[0]).submit(os.getpid).result(10) == pids[0]


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1.0}, {"retries": -1}])
def test_limits_that_make_no_sense_are_refused(client: Client, options: dict[str, float]) -> None:
    """At once, and not by the tasks."""
    with pytest.raises(ValueError, match=r"positive number of seconds|cannot be negative"):
        client.options(**options)
