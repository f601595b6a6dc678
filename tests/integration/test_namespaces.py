"""Values that engines keep by name, from step to step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import steps
from ipcluster_core import Client, Cluster, EngineSpec, errors, namespace


@pytest.fixture(params=["fork", "spawn"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two engines, and two in a set of their own."""
    sets = {"default": EngineSpec(n=2), "solver": EngineSpec(n=2)}
    with Cluster("keeping", engines=sets, start_method=request.param) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster."""
    made = Client.connect("keeping")
    yield made
    made.shutdown(wait=False)


def test_a_later_step_finds_what_an_earlier_one_has_pushed(cluster: Cluster) -> None:
    """By name, in another process; tasks between them use and change it."""
    steps.run_step("""
        from ipcluster_core import Client

        with Client.connect("keeping") as client:
            assert client.push({"x": [1, 2], "y": "why"}, engines="solver") == [2, 3]
            assert client.push({"x": 7}, engines=[0]) == [0]
    """)
    steps.run_step("""
        from ipcluster_core import Client, namespace

        def step(more):
            namespace()["x"].append(more)
            namespace()["z"] = len(namespace())

        with Client.connect("keeping") as client:
            client.run(step, 3, engines="solver")
    """)
    with Client.connect("keeping") as client:
        found = client.pull("x", engines=[0, 2, 3])
        several = client.pull(["y", "z"], engines="solver")

    assert found == {0: 7, 2: [1, 2, 3], 3: [1, 2, 3]}
    assert several == {2: {"y": "why", "z": 2}, 3: {"y": "why", "z": 2}}


@pytest.mark.parametrize("count", [10, 30_000, 1_000_000])
def test_arrays_of_any_size_are_kept_and_can_be_changed_in_place(client: Client, count: int) -> None:
    """However they travel, and whatever is pushed after them."""
    client.push({"grid": np.arange(count, dtype=float)}, engines="solver")

    def change() -> None:
        namespace()["grid"] *= 2

    client.run(change, engines="solver")
    client.push({"other": np.zeros(count)}, engines="solver")
    client.submit(np.sum, np.ones(count)).result(10)
    found = client.pull("grid", engines="solver")

    assert list(found) == [2, 3]
    assert all(np.array_equal(array, 2 * np.arange(count)) for array in found.values())


def test_an_engine_that_was_started_anew_says_what_is_gone(cluster: Cluster, client: Client) -> None:
    """Restarted or killed: another error than for a name never pushed; its neighbours keep theirs."""
    client.push({"x": 1})
    os.kill(client.options(engines=[0]).submit(os.getpid).result(10), signal.SIGKILL)
    cluster.restart_sync([3], timeout=20)
    cluster.wait_sync(4, timeout=20)

    for engine in (0, 3):
        with pytest.raises(
            errors.StateLost,
            match=rf"engine {engine} was started anew at 20.*Z \(incarnation 1\): the 'x' that it held is gone; push",
        ):
            client.pull("x", engines=[engine], timeout=20)
        with pytest.raises(errors.NotHeld, match=rf"^engine {engine} has no 'y'; it has: nothing"):
            client.pull("y", engines=[engine], timeout=20)
    with pytest.raises(errors.NotHeld, match="engine 1 has no 'y'; it has: x"):
        client.pull("y", engines=[1])
    assert client.pull("x", engines=[1, 2]) == {1: 1, 2: 1}
    client.push({"x": 2}, engines=[0, 3])
    assert client.pull("x") == {0: 2, 1: 1, 2: 1, 3: 2}


def test_a_replacement_after_a_number_of_tasks_is_told_too() -> None:
    """The engine has left by itself; what it held is gone all the same."""
    with Cluster("short", n=1, max_tasks=2) as cluster, cluster.client() as client:
        client.push({"x": 1})
        client.submit(abs, 1).result(10)
        with pytest.raises(errors.StateLost, match="the 'x' that it held is gone"):
            client.pull("x", engines=[0], timeout=20)


def test_a_call_of_all_engines_where_none_is_up_is_refused() -> None:
    """An empty answer would look like one."""
    text = "no engine of cluster 'empty' #1 is up: wait for one, or scale it"
    with Cluster("empty", n=0) as cluster, cluster.client() as client, pytest.raises(errors.ClusterError, match=text):
        client.pull("x")


def begin(path: str) -> None:
    """Keep something, tell that this has begun, and sleep for a minute."""
    namespace()["half"] = "done"
    Path(path).touch()
    time.sleep(60)


def test_an_interrupt_leaves_what_the_engine_keeps(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """The task ends; what it had put there is there."""
    client.push({"x": 1}, engines=[1])
    running = client.options(engines=[1]).submit(begin, str(tmp_path / "begun"))
    steps.wait_until((tmp_path / "begun").exists)
    cluster.interrupt_sync([1])
    with pytest.raises(KeyboardInterrupt):
        running.result(10)

    assert client.pull(["x", "half"], engines=[1], timeout=10) == {1: {"x": 1, "half": "done"}}


def test_a_set_that_there_is_not_is_named(client: Client) -> None:
    """As for every call of a set."""
    with pytest.raises(errors.ClusterError, match="has no engine set 'solvers'"):
        client.push({"x": 1}, engines="solvers")
