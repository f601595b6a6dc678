"""What running tasks tell their clients."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import steps
from ipcluster_core import Client, Cluster, errors, send_note


@pytest.fixture
def client() -> Iterator[Client]:
    """Two engines and a client."""
    with Cluster("telling", n=2) as cluster, cluster.client() as client:
        yield client


def count_to(n: int) -> int:
    """Tell each number."""
    for number in range(n):
        assert send_note(("at", number))
    return n


def test_notes_come_in_order_and_before_the_result(client: Client) -> None:
    """Each task's to the one that its view of the client names."""
    told: dict[int, list[object]] = {n: [] for n in range(20)}
    futures = [client.options(on_note=told[n].append).submit(count_to, n) for n in range(20)]
    seen = [(future.result(20), list(told[n])) for n, future in enumerate(futures)]

    assert seen == [(n, [("at", number) for number in range(n)]) for n in range(20)]


def wait_for_go() -> str:
    """Tell that it has begun, and wait to be interrupted."""
    send_note(os.getpid())
    signal.pause()
    return "never"


def test_a_note_comes_while_its_task_runs(client: Client) -> None:
    """It need not wait for the end: which may be a death, that takes nothing along of what was told before."""
    told: queue.Queue[int] = queue.Queue()
    future = client.options(on_note=told.put).submit(wait_for_go)
    pid = told.get(timeout=20)
    os.kill(pid, signal.SIGKILL)

    with pytest.raises(errors.EngineLost, match="SIGKILL"):
        future.result(20)


def test_outside_a_task_nothing_is_told(client: Client) -> None:
    """Not here, not between two tasks, not from what a task has forked: it could only garble what the task says."""

    def fork_and_tell() -> int:
        child = os.fork()
        if child == 0:
            os._exit(int(send_note("from a child")))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    told: list[object] = []

    assert send_note("here") is False
    assert client.options(on_note=told.append).submit(fork_and_tell).result(20) == 0
    assert told == []


def test_threads_of_a_task_tell_whole_notes(client: Client) -> None:
    """Also large ones, and those with arrays in them."""

    def tell_much() -> None:
        def tell(number: int) -> None:
            for _ in range(5):
                send_note(np.full(50_000, number))

        threads = [threading.Thread(target=tell, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    told: list[int] = []
    client.options(on_note=lambda array: told.append(int(array.sum()) // 50_000)).submit(tell_much).result(30)

    assert sorted(told) == sorted([0, 1, 2, 3] * 5)


def test_an_alarm_that_raises_cuts_no_note(client: Client) -> None:
    """Libraries end what takes too long by raising in a signal handler, at any point of the code."""

    def tell_until_alarm() -> int:
        def ring(signum: int, frame: object) -> None:
            raise TimeoutError

        signal.signal(signal.SIGALRM, ring)
        rung = 0
        for _ in range(200):
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            try:
                while True:
                    send_note(b"x" * 1000)
            except TimeoutError:
                rung += 1
        return rung

    told: list[bytes] = []
    future = client.options(on_note=told.append).submit(tell_until_alarm)

    assert future.result(60) == 200
    assert set(told) == {b"x" * 1000}


def test_a_task_is_cancelled_while_it_tells(client: Client) -> None:
    """And the engine goes on with the next."""

    def tell_for_ever() -> None:
        while True:
            send_note(1)

    begun = threading.Event()
    future = client.options(on_note=lambda _: begun.set()).submit(tell_for_ever)
    assert begun.wait(20)
    steps.wait_until(future.cancel, timeout=20)  # each waits a second for it

    assert future.cancelled()
    assert client.submit(pow, 2, 3).result(20) == 8


def test_a_note_too_large_is_an_error_of_the_task(client: Client) -> None:
    """It says how large it may be."""
    with pytest.raises(ValueError, match="a note has at most 4194304 bytes"):
        client.submit(send_note, bytes(5 << 20)).result(20)


def test_a_callback_that_fails_harms_no_result(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""

    def fail(value: object) -> None:
        raise KeyError(value)

    with caplog.at_level(logging.ERROR, "ipcluster.client"):
        assert client.options(on_note=fail).submit(count_to, 1).result(20) == 1

    assert "the callback for notes of task" in caplog.text


def test_notes_for_a_client_that_is_gone_are_dropped() -> None:
    """Its tasks go on."""

    def tell_slowly() -> str:
        for _ in range(20):
            send_note("still here")
            time.sleep(0.01)
        return "done"

    with Cluster("telling", n=1):
        with Client.connect("telling") as first:
            begun = threading.Event()
            task = first.options(on_note=lambda _: begun.set()).submit(tell_slowly).task_id
            assert begun.wait(20)
            first.shutdown(wait=False)
        with Client.connect("telling") as second:
            assert second.result(task, 20) == "done"
