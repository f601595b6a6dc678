"""C05, R1, R4, R6: many steps use a cluster that one of them has made, whatever it is that they hold."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterHandle, ClusterManager, errors, greeting

#: Three flows in turn, in one process.
FLOWS = """
    from ipcluster_core import Client, Cluster
    with Cluster.connect_sync("shared") as cluster, cluster.client() as client:
        print(client.submit(abs, -1).result(10), flush=True)
    try:
        with Cluster.connect_sync("shared") as cluster, cluster.client() as client:
            raise LookupError("in the block")
    except LookupError as error:
        print(error, flush=True)
    with Client.connect("shared") as client:
        print(client.submit(abs, -3).result(10), flush=True)
        client.shutdown()
    client.shutdown()
"""


def test_steps_that_only_attached_never_end_the_cluster() -> None:
    """C05: three flows connect, one raises, one closes twice; a fourth process finds the same processes."""
    assert steps.ctl("create", "shared", "-n", "2").returncode == 0
    before = set(steps.living("shared"))
    assert steps.run_step(FLOWS) == "1\nin the block\n3"
    assert (
        steps.run_step("from ipcluster_core import Client; print(Client.connect('shared').submit(abs, -4).result())")
        == "4"
    )

    assert set(steps.living("shared")) == before
    assert steps.ctl("teardown", "shared").returncode == 0


def test_both_habits_of_a_with_block_can_be_switched() -> None:
    """C05: a created cluster may be kept; one that was only found is never ended, also where creating was allowed."""
    with Cluster("kept", n=1, shutdown_on_close=False) as cluster:
        handle = cluster.handle
    with Cluster("kept", n=1, if_exists="attach") as again:
        assert again.handle == handle
    assert Cluster.connect_sync("kept").status_sync().up == 1
    assert ClusterManager().teardown_sync("kept").outcome == "ended"


def test_blocking_calls_work_in_a_running_loop_and_one_object_in_two_loops() -> None:
    """R1: as in a notebook, and `asyncio.run` twice with the same object."""

    async def as_in_a_notebook() -> Cluster:
        cluster = Cluster.create_sync("r1", n=1)
        with cluster.client() as client:
            assert client.submit(abs, -1).result(10) == 1
            assert await asyncio.wrap_future(client.submit(abs, -2)) == 2
        assert cluster.status_sync().up == 1
        await cluster.scale(2)
        return cluster

    cluster = asyncio.run(as_in_a_notebook())
    assert asyncio.run(cluster.wait(2)) == 2
    assert asyncio.run(cluster.status()).up == 2
    assert asyncio.run(cluster.teardown()).outcome == "ended"


#: What may listen where the cluster's sockets were.
STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "an HTTP server": lambda end: end.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: stranger\r\n\r\n"),
    "one that says nothing": lambda end: None,
    "one that hangs up": lambda end: end.close(),
}


@contextmanager
def listening(path: Path, behave: Callable[[socket.socket], None]) -> Iterator[None]:
    """Have somebody listen at a socket's address, in the place of whoever did."""
    path.unlink()
    ends: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                ends.append(end)
                behave(end)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for end in ends:
                end.close()


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_at_the_address_of_the_handle_is_an_error_that_names_the_part(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4: within 10 s, here shortened to 2 s, for clients and for verbs; the cluster can still be torn down."""
    assert greeting._ANSWER_SECONDS == 10
    monkeypatch.setattr(greeting, "_ANSWER_SECONDS", 2.0)
    cluster = Cluster.create_sync("r4", n=1)
    folder = Path(steps.record_of("r4").folder)
    for part, name, attempt in (
        ("broker", "task", lambda: Client.connect("r4")),
        ("controller", "control", lambda: cluster.status_sync(timeout=2)),
    ):
        moved = folder / f"{name}.moved"
        os.link(folder / name, moved)
        with listening(folder / name, STRANGERS[who]):
            start = time.monotonic()
            try:
                said = str(attempt())  # type: ignore[no-untyped-call]
            except errors.ClusterError as error:
                said = str(error)
            passed = time.monotonic() - start
        moved.rename(folder / name)

        assert passed < 5
        assert f"the {part} of cluster 'r4' #1" in said
    assert cluster.teardown_sync().outcome == "ended"


def test_a_handle_passes_through_whatever_carries_plain_data() -> None:
    """R6: plain JSON without a class: through a file, a database's text, or a backend that knows nothing of it."""
    with Cluster("r6", n=1) as cluster:
        plain = cluster.handle.model_dump()
        assert {type(value) for value in plain.values()} <= {str, int}
        carried = [json.loads(json.dumps(plain)), cluster.handle.model_dump_json(), f" {json.dumps(plain, indent=2)}\n"]
        for form in carried:
            with Client.connect(form) as client:
                assert client.submit(abs, -1).result(10) == 1
        assert ClusterHandle.model_validate(plain) == cluster.handle
