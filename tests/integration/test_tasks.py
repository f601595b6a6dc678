"""Running work: results, order, exceptions, cancel, arrays."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import steps
from ipcluster_core import Client, Cluster, errors
from ipcluster_core.segments import folder_of


@pytest.fixture
def client() -> Iterator[Client]:
    """Two engines and a client."""
    with Cluster("work", n=2) as cluster, cluster.client() as client:
        yield client


def square(n: int) -> int:
    """Return a square."""
    return n * n


def test_ten_thousand_tasks_through_submit_come_back_in_order(client: Client) -> None:
    """Each future has its own result."""
    futures = [client.submit(square, n) for n in range(10_000)]

    assert [future.result(60) for future in futures] == [n * n for n in range(10_000)]


@pytest.mark.parametrize("chunksize", [None, 1, 7, 500])
def test_ten_thousand_tasks_through_map_come_back_in_order(client: Client, chunksize: int | None) -> None:
    """Whatever the chunks."""
    assert list(client.map(square, range(10_000), chunksize=chunksize, timeout=60)) == [n * n for n in range(10_000)]


def test_map_takes_several_iterables_and_stops_with_the_shortest(client: Client) -> None:
    """As the standard executor's does."""
    assert list(client.map(pow, [2, 3, 4], [5, 2])) == [32, 9]


def test_a_large_array_goes_and_comes_back_equal(client: Client) -> None:
    """100 MB there and back; what comes back may be written to."""
    array = np.random.default_rng(0).random(12_500_000)
    back = client.submit(np.negative, array).result(60)

    assert np.array_equal(back, -array)
    back[0] = 0.0
    assert back[0] == 0.0


def test_large_results_of_an_engine_are_not_those_of_the_one_that_had_its_id_before() -> None:
    """The client keeps an engine's shared memory mapped; when the engine has left, its successor's has other names."""
    with Cluster("again", n=1) as cluster, cluster.client() as client:
        for value in range(3):
            array = client.submit(np.full, 500_000, value).result(10)
            assert set(array) == {value}
            cluster.scale_sync(0)
            steps.wait_until(lambda: not cluster.status_sync().engines)
            cluster.scale_sync(1)


def test_large_arrays_are_handed_over_in_segments_that_are_used_again(client: Client) -> None:
    """Ten arrays there and back take the segments of one; none is left."""
    folder = Path(folder_of(steps.record_of("work").uid))
    array = np.ones(1_000_000)
    for n in range(10):
        assert client.submit(np.add, array, n).result(20)[-1] == 1.0 + n

    names = [path.name for path in folder.iterdir()]
    assert sorted({name.partition("-")[0][0] for name in names}) == ["c", "e"]
    assert len(names) <= 3  # the client's, and one of each engine that has had a task
    assert client.run(np.sum, array) == {0: 1e6, 1: 1e6}
    client.shutdown()
    steps.wait_until(lambda: all(path.name.startswith("e") for path in folder.iterdir()))


def test_what_a_killed_client_has_shared_is_kept_for_its_tasks_and_then_removed(client: Client, tmp_path: Path) -> None:
    """Its queued task still gets its array."""
    folder = Path(folder_of(steps.record_of("work").uid))
    blockers = [client.submit(hold, str(tmp_path), f"blocker-{n}") for n in range(2)]
    steps.wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
    code = """
        import sys, time, pathlib
        import numpy as np
        from ipcluster_core import Client
        def write(path, array):
            pathlib.Path(path, "sum").write_text(str(array.sum()))
        client = Client.connect("work")
        future = client.submit(write, sys.argv[1], np.ones(1_000_000))
        client.submit(abs, 1).cancel()
        print("sent", flush=True)
        time.sleep(100)
    """
    with steps.started_step(code, str(tmp_path)) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "sent\n"
        assert len(list(folder.glob("c*"))) == 1
    (tmp_path / "go").touch()

    steps.wait_until(lambda: (tmp_path / "sum").exists() and (tmp_path / "sum").read_text() == "1000000.0")
    steps.wait_until(lambda: not list(folder.glob("c*")))
    assert [blocker.result(10) for blocker in blockers] == ["blocker-0", "blocker-1"]


def test_without_shared_memory_arrays_travel_in_the_messages(client: Client) -> None:
    """As from a container that has its own."""
    folder = Path(folder_of(steps.record_of("work").uid))
    hidden = folder.with_name(folder.name + "-hidden")
    folder.rename(hidden)
    try:
        array = np.arange(1_000_000)
        assert np.array_equal(client.submit(np.negative, array).result(20), -array)
    finally:
        hidden.rename(folder)


def test_a_lambda_a_closure_and_a_method_run_on_the_engines(client: Client) -> None:
    """What has no importable name travels by value."""
    offset = 40

    class Adder:
        """A class of this function."""

        def add(self, n: int) -> int:
            """Add."""
            return n + offset

    assert client.submit(lambda n: n + offset, 2).result(10) == 42
    assert client.submit(Adder().add, 2).result(10) == 42
    back = client.submit(Adder).result(10)
    assert isinstance(back, Adder)


def fail(kind: str) -> None:
    """Raise something."""
    if kind == "plain":
        raise KeyError("the key")
    if kind == "chained":
        raise ValueError("second") from KeyError("first")
    if kind == "two arguments":
        raise TwoArgumentsError("a", "b")
    if kind == "lock":
        error = ValueError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error
    if kind == "huge":
        raise ValueError("x" * 50_000_000)
    if kind == "exit":
        raise SystemExit(3)
    raise NoTextError


class TwoArgumentsError(Exception):
    """Cannot be rebuilt from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


class NoTextError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("kind", "type_name", "text"),
    [
        ("plain", "KeyError", "the key"),
        ("chained", "ValueError", "second"),
        ("two arguments", "TwoArgumentsError", "a"),
        ("lock", "ValueError", "holds a lock"),
        ("huge", "ValueError", "characters left out"),
        ("exit", "SystemExit", "3"),
        ("no text", "NoTextError", "cannot be had"),
    ],
)
def test_any_exception_arrives_and_the_engine_lives_on(client: Client, kind: str, type_name: str, text: str) -> None:
    """With its type's name, its message and the engine's traceback; the engine keeps its process."""
    before = client.run(os.getpid)
    error = client.submit(fail, kind).exception(10)

    assert error is not None
    if isinstance(error, errors.TaskError):
        assert error.type_name.endswith(type_name)
        assert text in str(error)
        assert len(str(error)) < 30_000
    else:
        assert type(error).__name__ == type_name
    assert "in fail" in str(error.__cause__)
    if kind == "chained":
        assert "KeyError: 'first'" in str(error.__cause__)
    assert client.run(os.getpid) == before


def test_a_result_that_cannot_be_pickled_is_that_tasks_error(client: Client) -> None:
    """The engine lives on."""
    with pytest.raises(TypeError, match="pickle"):
        client.submit(threading.Lock).result(10)
    assert client.submit(abs, -1).result(10) == 1


def test_an_argument_that_cannot_be_pickled_is_refused_at_once(client: Client) -> None:
    """Submit itself raises."""
    with pytest.raises(TypeError, match="pickle"):
        client.submit(abs, threading.Lock())


def test_run_calls_once_on_each_engine(client: Client) -> None:
    """Results by engine id."""
    pids = client.run(os.getpid)

    assert sorted(pids) == [0, 1]
    assert len(set(pids.values())) == 2
    assert client.run(os.getpid, engines=[1]) == {1: pids[1]}
    with pytest.raises(errors.EngineLost, match="no such engine"):
        client.run(os.getpid, engines=[7])


def hold(folder: str, name: str) -> str:
    """Say that this task runs, and go on until it may end."""
    Path(folder, f"{name}.begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return name


def test_spread_submits_once_to_each_engine_and_its_futures_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    """What `run` waits for, for callers that want to do something else meanwhile, or to give up."""
    assert {engine: future.result(10) for engine, future in client.spread(pow, 2, 3).items()} == {0: 8, 1: 8}

    def wait(path: Path) -> None:
        (path / str(os.getpid())).touch()
        time.sleep(600)

    futures = client.spread(wait, tmp_path, engines=[1])
    steps.wait_until(lambda: list(tmp_path.iterdir()))

    assert list(futures) == [1]
    assert client.cancel([future.task_id for future in futures.values()]) == {futures[1].task_id: True}
    assert futures[1].cancelled()


def test_queued_and_running_tasks_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    """A queued one never runs, a running one is interrupted; the others are not disturbed, and no engine is lost."""
    pids = client.run(os.getpid)
    running = [client.submit(hold, str(tmp_path), f"running-{n}") for n in range(2)]
    steps.wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
    queued = [client.submit(hold, str(tmp_path), f"queued-{n}") for n in range(4)]

    assert queued[2].cancel()
    assert queued[2].cancelled()
    assert running[0].cancel()
    assert running[0].cancelled()
    (tmp_path / "go").touch()
    assert running[1].result(10) == "running-1"
    assert client.run(os.getpid) == pids
    assert [queued[n].result(10) for n in (0, 1, 3)] == ["queued-0", "queued-1", "queued-3"]
    assert not (tmp_path / "queued-2.begun").exists()
    with pytest.raises(concurrent.futures.CancelledError):
        queued[2].result(1)


def test_a_slow_task_does_not_hold_up_quick_ones(client: Client, tmp_path: Path) -> None:
    """While one engine is busy for long, all quick tasks finish on the other."""
    list(client.map(square, range(2000)))
    slow = client.submit(hold, str(tmp_path), "slow")
    steps.wait_until(lambda: list(tmp_path.glob("*.begun")))
    quick = [client.submit(square, n) for n in range(2000)]

    assert [future.result(20) for future in quick] == [n * n for n in range(2000)]
    assert not slow.done()
    (tmp_path / "go").touch()
    assert slow.result(10) == "slow"


def test_the_futures_are_standard_ones(client: Client) -> None:
    """`wait`, `as_completed`, callbacks and asyncio work."""
    futures = [client.submit(square, n) for n in range(50)]
    called: list[int] = []
    futures[7].add_done_callback(lambda future: called.append(future.result()))
    done, _ = concurrent.futures.wait(futures, timeout=10)

    assert done == set(futures)
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == sorted(
        n * n for n in range(50)
    )
    assert called == [49]

    async def through_asyncio() -> int:
        return await asyncio.wrap_future(client.submit(square, 12))

    assert asyncio.run(through_asyncio()) == 144


def test_results_that_do_not_come_in_time_are_a_timeout_that_names_the_cluster(client: Client, tmp_path: Path) -> None:
    """Map's limit holds for all results together."""
    with pytest.raises(errors.ClusterTimeout, match="'work'"):
        list(client.map(hold, [str(tmp_path)], ["late"], timeout=0.1))
    (tmp_path / "go").touch()


def test_the_client_goes_and_the_work_stays(client: Client, tmp_path: Path) -> None:
    """What was sent runs to its end although its client was killed."""
    code = """
        import sys, time, pathlib
        from ipcluster_core import Client
        def write(path, n):
            pathlib.Path(path, f"{n}.done").touch()
        client = Client.connect("work")
        list(client.map(abs, range(10)))
        futures = [client.submit(write, sys.argv[1], n) for n in range(100)]
        futures[0].result()
        print("sent", flush=True)
        time.sleep(100)
    """
    with steps.started_step(code, str(tmp_path)) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "sent\n"

    steps.wait_until(lambda: len(list(tmp_path.glob("*.done"))) == 100)


def test_a_client_after_shutdown_refuses_work_and_is_not_sent_elsewhere(client: Client) -> None:
    """Shutdown is idempotent."""
    import pickle

    with pytest.raises(TypeError, match="send the name"):
        pickle.dumps(client)
    client.shutdown()
    client.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        client.submit(abs, 1)


def test_scaling_down_loses_no_task() -> None:
    """Busy engines finish what they have; queued tasks go to those that stay."""
    with Cluster("shrink", n=4) as cluster, cluster.client() as client:
        futures = [client.submit(pow, n, 2) for n in range(200)]
        slow = [client.submit(time.sleep, 0.3) for _ in range(8)]
        cluster.scale_sync(1)
        futures += [client.submit(pow, n, 2) for n in range(200, 400)]

        assert [future.result(20) for future in futures] == [n * n for n in range(400)]
        for future in slow:
            future.result(20)
        steps.wait_until(lambda: [e.state for e in cluster.status_sync().engines] == ["up"])
        cluster.scale_sync(0)
        steps.wait_until(lambda: not cluster.status_sync().engines)
        waiting = client.submit(abs, -3)
        cluster.scale_sync(2)
        assert waiting.result(20) == 3
        assert cluster.wait_sync() == 2


@functools.cache
def slow_square(n: int) -> int:
    """Return a square, once."""
    return n * n


@functools.lru_cache(maxsize=100)
def fibonacci(n: int) -> int:
    """Return a Fibonacci number; refers to itself."""
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def through_caches(n: int) -> tuple[int, int, int]:
    """Use functions with caches; return what one of them counted."""
    return slow_square(n), fibonacci(n), slow_square.cache_info().hits


def test_functions_with_a_cache_travel_by_value(client: Client) -> None:
    """Used by the task, or the task themselves; the cache is the engine's, and lasts."""
    one = client.options(engines=[0])

    assert [one.submit(through_caches, 30).result(10) for _ in range(3)] == [(900, 832040, hits) for hits in range(3)]
    assert client.submit(fibonacci, 20).result(10) == 6765


def test_shutdown_cancels_what_is_queued_in_one_go(client: Client, tmp_path: Path) -> None:
    """Thousands of tasks, two of which run."""
    running = [client.submit(hold, str(tmp_path), f"running-{n}") for n in range(2)]
    steps.wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == 2)
    queued = [client.submit(hold, str(tmp_path), f"queued-{n}") for n in range(5000)]
    client.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "go").touch()

    assert all(future.done() for future in running + queued)
    assert sum(future.cancelled() for future in queued) >= 4998  # each engine may hold one already
    with pytest.raises(errors.ClusterError, match="was shut down before the result came; the task goes on"):
        running[0].result()
    assert len(list(tmp_path.glob("*.begun"))) <= 4


def test_chunks_of_several_iterables_end_with_the_shortest(client: Client) -> None:
    """Whatever their lengths, and without any."""
    assert list(client.map(pow, range(10), [2] * 7, chunksize=3)) == [n * n for n in range(7)]
    assert list(client.map(abs, [], chunksize=3)) == []
    assert list(client.map(abs, chunksize=3)) == []


def test_a_client_in_a_forked_child_says_that_it_belongs_to_its_parent(client: Client) -> None:
    """Its thread and socket stayed there."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            client.submit(abs, 1)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)

    assert os.read(read, 1000) == b"a Client cannot be used after a fork: connect again in the new process"
    os.close(read)


@contextmanager
def frozen(name: str, part: str) -> Iterator[None]:
    """Keep a part of a cluster from running."""
    pid = steps.part(name, part)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_broker_that_reads_no_more_makes_its_clients_wait(client: Client) -> None:
    """So memory is bounded on both sides; nothing is lost."""
    submitted: list[concurrent.futures.Future[int]] = []
    much = threading.Thread(target=lambda: submitted.extend([client.submit(len, bytes(60_000)) for _ in range(3000)]))
    with frozen("work", "broker"):
        much.start()
        steps.wait_until(lambda: client._connection._outbox._callers)
        waiting = client._connection._outbox._bytes
    much.join(60)

    assert 60 << 20 < waiting < 70 << 20
    assert [future.result(30) for future in submitted] == [60_000] * 3000


def test_leaving_a_client_whose_broker_does_not_read_takes_a_moment(client: Client) -> None:
    """A frozen process of the cluster must not hold up the exit of a step."""
    other = Client.connect("work")
    with frozen("work", "broker"):
        futures = [other.submit(len, bytes(60_000)) for _ in range(200)]
        start = time.monotonic()
        other.shutdown(wait=False)
        passed = time.monotonic() - start

    assert passed < 10
    assert isinstance(futures[-1].exception(0), errors.ClusterError)
