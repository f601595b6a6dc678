"""User code that must pass the type checkers as it stands; it is checked, not run."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any, assert_type

from ipcluster_core import (
    Client,
    Cluster,
    ClusterEvent,
    ClusterHandle,
    ClusterManager,
    ClusterSpec,
    ClusterState,
    ClusterStatus,
    ClusterSummary,
    EngineSpec,
    ReapResult,
    Ref,
    Store,
    TeardownReport,
    open_store,
    send_note,
)


def length(text: str) -> int:
    """Return a length."""
    return len(text)


async def asynchronous() -> None:
    """Use the coroutines."""
    cluster = await Cluster.create("name", n=4, if_exists="attach", claim="run", labels={"a": "b"})
    assert_type(cluster, Cluster)
    assert_type(cluster.handle, ClusterHandle)
    assert_type(await cluster.status(), ClusterStatus)
    assert_type((await cluster.status()).state, ClusterState)
    assert_type(await cluster.wait(4, timeout=60), int)
    assert_type(await cluster.logs([0], tail=10), dict[str, str])
    assert_type(await cluster.events(tail=10), list[ClusterEvent])
    assert_type(await cluster.teardown(force=True), TeardownReport)
    assert_type(await cluster.signal(10, engines=[3]), list[int])
    assert_type(await cluster.interrupt("solver"), dict[int, str])
    await cluster.restart(engines="solver")
    await cluster.scale(8, engines="default")
    await cluster.adapt(minimum=0, maximum=8, engines="default")
    async with Cluster("other", ClusterSpec(engines={"a": EngineSpec(n=1)})) as other:
        assert_type(other, Cluster)


def blocking() -> None:
    """Use the twins."""
    cluster = Cluster.create_sync("name", n=4, idle_timeout=None)
    assert_type(cluster, Cluster)
    assert_type(Cluster.connect_sync("name"), Cluster)
    assert_type(cluster.status_sync(), ClusterStatus)
    assert_type(cluster.wait_sync(4, timeout=60), int)
    assert_type(cluster.logs_sync("solver"), dict[str, str])
    assert_type(cluster.teardown_sync(), TeardownReport)
    assert_type(cluster.executor(), Executor)
    manager = ClusterManager(open_store())
    assert_type(manager.store, Store)
    assert_type(manager.list_sync({"a": "b"}, all=True), list[ClusterSummary])
    assert_type(manager.teardown_sync("name"), TeardownReport)
    assert_type(manager.reap_sync(86_400, 3600, {"a": "b"}, broken=False, dry_run=True), list[ReapResult])
    with Cluster("tmp", n=2) as scoped:
        assert_type(scoped, Cluster)


def working() -> None:
    """Use a client."""
    with Client.connect("name") as client:
        future: Future[int] = client.submit(length, "text")
        assert_type(future.result(), int)
        assert_type(list(client.map(length, ["a", "b"])), list[int])
        assert_type(client.run(length, "text"), dict[int, int])
        assert_type(client.options(retries=2, engines=[0]), Client)
        assert_type(client.put([1, 2]), Ref[list[int]])
        assert_type(client.push({"x": 1}, engines="solver"), list[int])
        assert_type(client.pull(["x", "y"], engines=[0]), dict[int, Any])
        with client.stream_output(lambda engine, line: (engine + 1, line.upper())) as stream:
            assert_type(stream.flush(timeout=1.0), bool)


def notes(client: Client) -> None:
    """Hear what tasks tell."""
    told: list[str] = []
    assert_type(client.options(on_note=told.append).submit(length, "text").result(), int)
    assert_type(send_note({"done": 0.5}), bool)
