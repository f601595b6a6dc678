"""Nothing that Prefect keeps or shows holds the secret of a cluster."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_HOME, PREFECT_SERVER_DATABASE_CONNECTION_URL, get_current_settings

import steps
from ipcluster_core import Client, ClusterHandle
from prefect_ipcluster import connect_cluster, create_cluster, scale_cluster, teardown_cluster


def divide(_: int) -> float:
    """Raise on an engine."""
    return 1 / 0


@task(cache_policy=NO_CACHE)
def fail(cluster: ClusterHandle) -> None:
    """Fail with an exception of an engine."""
    with Client.connect(cluster) as client:
        client.submit(divide, 1).result()


@flow(persist_result=True, result_serializer="json")
def inner(cluster: ClusterHandle) -> ClusterHandle:
    """Keep a handle as parameter and as result."""
    return scale_cluster(connect_cluster(cluster), 2)


def test_prefect_keeps_no_secret(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither in parameters, results, states, and logs, on its server or on disk, nor in what it prints."""
    caplog.set_level(logging.DEBUG)

    @flow
    def discreet() -> tuple[str, ClusterHandle]:
        handle = create_cluster("discreet", n=1)
        secret = steps.secret_of("discreet")
        inner(handle)
        fail(handle, return_state=True)
        teardown_cluster(handle)
        return secret, handle

    secret, handle = discreet()
    database = Path(PREFECT_SERVER_DATABASE_CONNECTION_URL.value().partition("///")[2])
    storage = get_current_settings().results.local_storage_path
    places = [database.parent, storage, PREFECT_HOME.value()]
    files = {path for place in places for path in Path(place).rglob("*") if path.is_file()}
    kept = {path: path.read_bytes() for path in files}
    printed = "".join(capfd.readouterr())

    def holders(text: str) -> set[Path]:
        return {path for path, content in kept.items() if text.encode() in content}

    assert len(secret) == 64
    assert secret not in handle.model_dump_json() + repr(handle) + caplog.text + printed
    # Parameters and results are kept, in the database and in the storage of results.
    assert database.parent in {path.parent for path in holders(handle.uid)}
    assert Path(storage) in {path.parent for path in holders(handle.uid)}
    assert holders(secret) == set()
