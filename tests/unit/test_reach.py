"""Reaching exactly one incarnation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ipcluster_core import ClusterState, Store, errors
from ipcluster_core.process import identify
from ipcluster_core.reach import ask_controller, current, find_running
from ipcluster_core.record import Ended, Job, Record
from ipcluster_core.testing import memory_store

RECORD = Record("nightly", 3, "c0ffee", ClusterState.RUNNING)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store."""
    with memory_store() as made:
        yield made


def put(store: Store, record: Record) -> Record:
    """Write a record."""
    store.create("record", record.name, record.to_dict())
    return record


def test_the_record_is_that_of_the_same_incarnation(store: Store) -> None:
    """Whatever its state is by now."""
    put(store, RECORD.with_state(ClusterState.ENDING))

    assert current(store, RECORD).state is ClusterState.ENDING


def test_a_record_that_is_gone_or_of_another_incarnation_is_told_apart(store: Store) -> None:
    """Each names the cluster that was meant."""
    with pytest.raises(errors.ClusterNotFound, match="the record of cluster 'nightly' #3 is gone from memory:"):
        current(store, RECORD)
    put(store, RECORD._replace(incarnation=4, uid="decaf"))
    with pytest.raises(errors.StaleHandle, match="cluster 'nightly' #3 is over; that name now belongs to #4"):
        current(store, RECORD)


def test_a_cluster_that_has_ended_is_not_asked(store: Store) -> None:
    """It says how it ended."""
    put(store, RECORD.with_state(ClusterState.ENDED, ended=Ended("torn down", "2026-03-01T13:00:00Z", "me")))

    with pytest.raises(errors.ClusterEnded, match=r"torn down \(by me\)"):
        asyncio.run(ask_controller(store, RECORD, "status", timeout=1.0))
    with pytest.raises(errors.ClusterEnded, match=r"torn down \(by me\)"):
        asyncio.run(find_running("nightly", store, 1.0))


def test_a_cluster_whose_processes_are_gone_is_broken(store: Store) -> None:
    """It says what to do."""
    gone = {**identify().to_dict(), "start": 1}
    put(store, RECORD._replace(jobs=(Job("local", {}, gone),)))

    with pytest.raises(
        errors.ClusterBroken,
        match=r"its processes are gone \(its nanny: pid \d+ belongs to another process now\); tear it",
    ):
        asyncio.run(ask_controller(store, RECORD, "status", timeout=1.0))


def test_a_cluster_that_is_being_created_is_waited_for(store: Store) -> None:
    """For as long as is asked for."""
    put(store, RECORD._replace(state=ClusterState.CREATING, creator=identify().to_dict()))

    with pytest.raises(errors.ClusterTimeout, match=r"'nightly' #3 is still being created after 0.05 s"):
        asyncio.run(find_running("nightly", store, 0.05))
