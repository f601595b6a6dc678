"""The shipped test helpers."""

from __future__ import annotations

import pytest

from ipcluster_core import Client, Cluster, ClusterManager, ClusterState, EngineSpec, errors, open_store
from ipcluster_core.launchers import REGISTERED
from ipcluster_core.testing import FakeClock, StubLauncher, memory_store


def test_the_clock_moves_when_told_to() -> None:
    """And only then."""
    clock = FakeClock(5.0)

    assert clock() == 5.0
    assert clock.advance(2.5) == 7.5
    assert clock() == 7.5


def test_a_memory_store_is_opened_by_its_url_inside_the_block_only() -> None:
    """Each block has a new one."""
    with memory_store() as store:
        store.create("record", "a", {"x": 1})
        assert open_store(store.url).read("record", "a") is not None
        url = store.url

    assert open_store(url).read("record", "a") is None


def test_the_stub_lives_the_whole_life_of_a_cluster() -> None:
    """Create, connect, work, scale, teardown: as with processes."""
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("stub", n=1, store=store)
        with Client.connect("stub", store=store) as client:
            assert list(client.map(abs, range(-3, 0))) == [3, 2, 1]
            cluster.scale_sync(2)
            assert cluster.wait_sync(2) == 2
        with pytest.raises(errors.ClusterExists):
            Cluster.create_sync("stub", store=store)
        assert cluster.teardown_sync().outcome == "ended"
        assert cluster.status_sync().state is ClusterState.ENDED
        (ended,) = ClusterManager(store).list_sync(all=True)
        assert ended.reason.startswith("torn down")


def test_the_stubs_engines_are_recycled_and_follow_the_load() -> None:
    """As processes are."""
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("stub", adapt=(0, 2), max_tasks=2, store=store)
        with Client.connect("stub", store=store) as client:
            assert [client.submit(abs, -n).result(10) for n in range(6)] == list(range(6))
        kinds = [event.kind for event in cluster.events_sync()]
        cluster.teardown_sync()

    assert kinds[:3] == ["created", "running", "adapted"]
    assert kinds.count("engine recycled") >= 2


def test_the_stubs_engines_keep_values_until_they_are_restarted() -> None:
    """Each its own, although they are threads of one process."""
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("stub", n=2, store=store)
        with cluster.client() as client:
            client.push({"x": 1}, engines=[0])
            client.push({"x": 2}, engines=[1])
            assert client.pull("x") == {0: 1, 1: 2}
            cluster.restart_sync([0])
            with pytest.raises(errors.StateLost, match="engine 0 was started anew"):
                client.pull("x", engines=[0], timeout=10)
            assert client.pull("x", engines=[1]) == {1: 2}


def test_an_mpi_set_of_the_stub_is_a_unit_of_threads() -> None:
    """Named, run, restarted and sized as with an MPI, without one."""
    sets = {"default": EngineSpec(n=1), "solver": EngineSpec(n=3, kind="mpi")}
    with StubLauncher.installed(), memory_store() as store:
        cluster = Cluster.create_sync("stub", engines=sets, store=store)
        with cluster.client() as client:
            assert client.run(abs, -1, engines="solver") == {1: 1, 2: 1, 3: 1}
            cluster.restart_sync([2])
            assert [engine.incarnation for engine in cluster.status_sync().engines] == [0, 1, 1, 1]
            cluster.scale_sync(2, engines="solver")
            cluster.wait_sync(3)
            assert len(client.run(abs, -1, engines="solver", timeout=10)) == 2


def test_leaving_the_stub_ends_what_runs_and_restores_the_launcher() -> None:
    """So a test that fails half way leaves no thread."""
    with memory_store() as store:
        with StubLauncher.installed():
            cluster = Cluster.create_sync("left", n=1, store=store)

        assert cluster.status_sync().reasons[0].endswith("the test is over (by StubLauncher)")
    assert "local" not in REGISTERED
