"""A tour of the project for a newcomer: read it from top to bottom.

Each test is one thing that you can do, on a real cluster of real processes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import as_completed

import pytest

from ipcluster_core import Client, Cluster, ClusterHandle, ClusterManager, ClusterSpec, EngineSpec, errors, namespace
from ipcluster_core.testing import StubLauncher, memory_store


def test_create_use_and_end_a_cluster() -> None:
    """The three verbs. Every coroutine has a blocking twin that ends in `_sync`."""
    cluster = Cluster.create_sync("tour", n=2)
    with cluster.client() as client:
        future = client.submit(pow, 2, 10)
        assert future.result() == 1024
    report = cluster.teardown_sync()
    assert report.outcome == "ended"


def test_another_process_needs_only_the_name() -> None:
    """Steps of a pipeline are processes of their own; nothing but the name passes between them."""
    Cluster.create_sync("between-steps", n=1)

    step = "from ipcluster_core import Client; print(Client.connect('between-steps').submit(sum, [1, 2, 3]).result())"
    printed = subprocess.run([sys.executable, "-c", step], capture_output=True, text=True, check=True).stdout
    assert printed == "6\n"

    assert ClusterManager().teardown_sync("between-steps").outcome == "ended"


def test_a_handle_says_which_life_of_a_name_is_meant() -> None:
    """It is small, plain and public: pass it on as JSON. An old one does not act on a new cluster."""
    with Cluster("named", n=1) as first:
        text = first.handle.model_dump_json()
        assert Cluster.connect_sync(text).name == "named"
    with Cluster("named", n=1) as second:
        assert second.handle.incarnation == ClusterHandle.model_validate_json(text).incarnation + 1
        with pytest.raises(errors.StaleHandle):
            Cluster.connect_sync(text)


def test_a_cluster_that_was_created_stays_and_a_scope_does_not() -> None:
    """`create` makes one that outlives you; a with-block ends what it created, and never what it connected to."""
    with Cluster("scoped", n=1):
        with Cluster.connect_sync("scoped") as same:
            assert same.status_sync().up == 1
        assert same.status_sync().up == 1
    with pytest.raises(errors.ClusterEnded, match="torn down"):
        Cluster.connect_sync("scoped")


def test_run_many_tasks() -> None:
    """A client is a `concurrent.futures.Executor`; `run` calls a function once on each engine."""
    with Cluster("many", n=2) as cluster, cluster.client() as client:
        assert list(client.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]

        futures = {client.submit(lambda n: n * n, n): n for n in range(5)}
        for future in as_completed(futures):
            assert future.result() == futures[future] ** 2

        pids = client.run(os.getpid)
        assert sorted(pids) == [0, 1]
        assert pids[0] != pids[1]


def test_scale_while_it_works() -> None:
    """An absolute number, so it is safe to repeat; scaling down loses no task."""
    with Cluster("growing", n=1) as cluster, cluster.client() as client:
        results = client.map(abs, range(1000))
        cluster.scale_sync(3)
        assert cluster.wait_sync(3) == 3
        cluster.scale_sync(1)
        assert list(results) == list(range(1000))


def test_let_it_follow_the_load() -> None:
    """Engines come when tasks wait, and go when they were not needed for some time; events tell what happened."""
    with Cluster("tidal", adapt=(0, 3)) as cluster, cluster.client() as client:
        assert cluster.status_sync().engines == ()
        assert client.submit(pow, 2, 10).result() == 1024
        kinds = [event.kind for event in cluster.events_sync()]
        assert kinds == ["created", "running", "adapted", "engine started", "engine up"]
        cluster.adapt_sync(1, 2)
        cluster.scale_sync(1)  # a number of your own ends it


def test_send_a_large_value_once() -> None:
    """`put` sends it; as an argument its ref stands for it. It is given up with the last reference to it."""
    with Cluster("sharing", n=2) as cluster, cluster.client() as client:
        table = client.put({"north": 1.5, "south": 2.5})
        assert list(client.map(dict.get, [table] * 3, ["north", "south", "east"])) == [1.5, 2.5, None]


def test_keep_values_on_engines() -> None:
    """By name, for tasks and steps that come later; they are gone when the engine is started anew, and that is said."""
    with Cluster("keeping", n=2) as cluster, cluster.client() as client:
        client.push({"grid": [1, 2]})
        client.run(lambda: namespace()["grid"].append(3))
        assert client.pull("grid") == {0: [1, 2, 3], 1: [1, 2, 3]}
        cluster.restart_sync([1])
        with pytest.raises(errors.StateLost, match="engine 1 was started anew"):
            client.pull("grid", engines=[1])


def test_restart_an_engine() -> None:
    """It keeps its id; what the old process held is free before the new one starts."""
    with Cluster("fresh", n=2) as cluster, cluster.client() as client:
        before = client.run(os.getpid)
        cluster.restart_sync([1])
        after = client.run(os.getpid)
        assert after[0] == before[0]
        assert after[1] != before[1]


def test_have_engines_that_leak_replaced() -> None:
    """After so many tasks, or above so much memory; between two tasks, so that none is lost."""
    with Cluster("clean", n=1, max_tasks=3, max_memory_bytes=2_000_000_000) as cluster, cluster.client() as client:
        pids = [client.submit(os.getpid).result() for _ in range(6)]
        assert len(set(pids)) == 2


def test_errors_come_with_the_engines_traceback() -> None:
    """The exception is the task's own."""
    with Cluster("failing", n=1) as cluster, cluster.client() as client:
        future = client.submit(lambda: {}["missing"])
        with pytest.raises(KeyError, match="missing") as caught:
            future.result()
        assert "Traceback" in str(caught.value.__cause__)


def test_everything_is_async_underneath() -> None:
    """In a coroutine, leave `_sync` away."""

    async def step() -> int:
        async with Cluster("awaited", n=1) as cluster:
            await cluster.scale(2)
            return await cluster.wait(2)

    assert asyncio.run(step()) == 2


def test_runs_share_a_cluster_by_claims() -> None:
    """Each run gives up its own claim; the last one out ends the cluster."""
    one = Cluster.create_sync("shared", n=1, claim="run-1", if_exists="attach")
    two = Cluster.create_sync("shared", n=1, claim="run-2", if_exists="attach")

    assert one.teardown_sync().outcome == "released"
    assert two.teardown_sync().outcome == "ended"


def test_a_spec_describes_it_all() -> None:
    """Engine sets, limits, labels, environment: as a value that can be kept in a file."""
    spec = ClusterSpec(
        engines={"default": EngineSpec(n=1), "spare": EngineSpec(n=1)},
        idle_timeout=600,
        labels={"team": "weather"},
        env={"STATION": "north"},
    )
    with Cluster("described", spec) as cluster, cluster.client() as client:
        assert client.submit(os.getenv, "STATION").result() == "north"
        assert {engine.set for engine in cluster.status_sync().engines} == {"default", "spare"}
        assert [found.name for found in ClusterManager().list_sync({"team": "weather"})] == ["described"]


def test_your_own_tests_need_no_processes() -> None:
    """The stub runs the same cluster as threads, with a store in memory: a few milliseconds."""
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("pretend", n=2, store=store)
        with Client.connect("pretend", store=store) as client:
            assert client.run(os.getpid) == {0: os.getpid(), 1: os.getpid()}
        assert cluster.teardown_sync().outcome == "ended"
