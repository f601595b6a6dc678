"""Which clusters are reaped: by rule, with the stub's threads in place of processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterState, ClusterStatus, errors
from ipcluster_core.control import ask
from ipcluster_core.incarnation import read_record, secret_of
from ipcluster_core.reaping import Rule, Rules, decide
from ipcluster_core.record import Ended, Record
from ipcluster_core.store import Store
from ipcluster_core.testing import StubLauncher, memory_store

#: Seconds since the epoch at which the record was made.
CREATED = 1_767_225_600.0
RECORD = Record("a", 1, "c0ffee", ClusterState.RUNNING, created="2026-01-01T00:00:00Z", labels={"team": "ml", "x": "y"})
ENDED = RECORD.with_state(ClusterState.ENDED, ended=Ended("torn down", "2026-01-01T00:00:00Z", "me"))


def at(record: Record, age: float, *, broken: bool = False, **rules: Any) -> Rule | None:
    """Decide about a record of some age."""
    return decide(record, broken=broken, rules=Rules(**rules), now=CREATED + age)


def test_without_rules_only_broken_clusters_go() -> None:
    """That is the default."""
    assert at(RECORD, 1e9) is None
    assert at(RECORD, 0, broken=True) is Rule.BROKEN


def test_broken_clusters_stay_when_asked_to() -> None:
    """Whatever the other rules say: they would ask a controller that is not there."""
    rules = Rules(max_age=1, idle_for=1, broken=False)

    assert decide(RECORD, broken=True, rules=rules, now=CREATED + 1e9) is None


@pytest.mark.parametrize(("age", "rule"), [(59, None), (60, Rule.AGE), (1e9, Rule.AGE), (-5, None)])
def test_an_age_counts_from_the_creation(age: float, rule: Rule | None) -> None:
    """The limit itself is old enough."""
    assert at(RECORD, age, max_age=60) is rule


def test_whether_it_is_idle_is_for_its_controller_to_say() -> None:
    """An age that is reached needs no question."""
    assert at(RECORD, 0, idle_for=60) is Rule.IDLE
    assert at(RECORD, 0, idle_for=60, max_age=60) is Rule.IDLE
    assert at(RECORD, 60, idle_for=60, max_age=60) is Rule.AGE


@pytest.mark.parametrize("state", [ClusterState.CREATING, ClusterState.ENDING])
def test_a_cluster_that_is_made_or_ends_is_left_alone_unless_broken(state: ClusterState) -> None:
    """It is somebody's who waits for it."""
    record = RECORD.with_state(state)

    assert at(record, 1e9, max_age=1, idle_for=1) is None
    assert at(record, 1e9, max_age=1, idle_for=1, broken=True) is Rule.BROKEN


def test_what_has_ended_is_never_reaped() -> None:
    """Its record tells how."""
    assert at(ENDED, 1e9, max_age=1, idle_for=1) is None
    assert at(ENDED, 1e9, broken=True) is None


@pytest.mark.parametrize(
    ("labels", "rule"),
    [({}, Rule.AGE), ({"team": "ml"}, Rule.AGE), ({"team": "web"}, None), ({"team": "ml", "more": "1"}, None)],
)
def test_labels_restrict_all_rules(labels: dict[str, str], rule: Rule | None) -> None:
    """All of them must be there."""
    assert at(RECORD, 100, max_age=60, labels=labels) is rule
    assert at(RECORD, 0, broken=True, labels=labels) is (rule and Rule.BROKEN)


def test_a_creation_time_that_is_none_makes_nothing_old() -> None:
    """In doubt it lives."""
    assert at(RECORD._replace(created="once"), 1e9, max_age=1) is None


# with clusters


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with the stub as the launcher."""
    with StubLauncher.installed(), memory_store() as store:
        yield store


def create(store: Store, name: str, **fields: Any) -> Cluster:
    """Create a cluster of one engine."""
    return Cluster.create_sync(name, n=1, store=store, **fields)


def outcomes(results: list[Any]) -> dict[str, tuple[str, str]]:
    """Return outcome and reason by name."""
    return {result.name: (result.outcome, result.why) for result in results}


def test_with_nothing_to_do_nothing_is_returned(store: Store) -> None:
    """Of an empty store, and of one whose clusters are well."""
    assert ClusterManager(store).reap_sync() == []
    create(store, "well")

    assert ClusterManager(store).reap_sync(max_age=3600, idle_for=3600) == []


def test_an_old_cluster_is_ended_whatever_its_claims_and_clients_learn_why(store: Store) -> None:
    """A dry run only says so."""
    cluster = create(store, "old", claim="run-1")
    manager = ClusterManager(store)

    assert outcomes(manager.reap_sync(max_age=0, dry_run=True)) == {"old": ("would end", "older than 0 s")}
    assert cluster.status_sync().state is ClusterState.RUNNING
    (result,) = manager.reap_sync(max_age=0)
    assert (result.name, result.incarnation, result.outcome, result.leftovers) == ("old", 1, "ended", ())
    with pytest.raises(errors.ClusterEnded, match=r"reaped: older than 0 s; it was in use by: run-1 \(by "):
        Cluster.connect_sync("old", store=store)
    assert manager.reap_sync(max_age=0) == []


@pytest.fixture
def work(store: Store) -> Iterator[Client]:
    """A cluster "busy" with a task that runs until the test is over: the stub's engines are threads of this process."""
    create(store, "busy")
    read, write = os.pipe()
    with Client.connect("busy", store=store) as client:
        client.submit(os.read, read, 1)
        steps.wait_until(lambda: status(store, "busy").tasks["running"] == 1)
        try:
            yield client
        finally:
            os.write(write, b"x")
    os.close(read)
    os.close(write)


def status(store: Store, name: str) -> ClusterStatus:
    """Ask a cluster."""
    return Cluster.connect_sync(name, store=store).status_sync()


def test_an_idle_cluster_is_ended_and_a_busy_one_is_not(store: Store, work: Client) -> None:
    """The one has done nothing since its creation, the other works."""
    create(store, "idle")
    steps.wait_until(lambda: (status(store, "idle").idle_seconds or 0) > 0.05)
    manager = ClusterManager(store)

    assert status(store, "busy").idle_seconds is None
    for dry_run, outcome in ((True, "would end"), (False, "ended")):
        (result,) = manager.reap_sync(idle_for=0.05, dry_run=dry_run)
        assert (result.name, result.outcome) == ("idle", outcome)
        assert result.why.startswith("idle for ")
    assert manager.get_sync("busy").state is ClusterState.RUNNING
    assert manager.get_sync("idle").reason.startswith("reaped: idle for ")


def test_a_controller_refuses_to_end_for_idleness_what_is_not_idle_any_more(store: Store) -> None:
    """Work may come between question and end."""
    create(store, "late")
    record = read_record(store, "late")

    async def end(idle_for: object) -> None:
        asked = {"reason": "test", "by": "me", "idle_for": idle_for}
        await ask(record, secret_of(store, record.tag), "end", timeout=5, **asked)

    with pytest.raises(errors.ClusterInUse, match=r"cluster 'late' #1 was not idle for 3600 s"):
        asyncio.run(end(3600))
    with pytest.raises(errors.ClusterError, match="not understood"):
        asyncio.run(end("soon"))
    assert read_record(store, "late").state is ClusterState.RUNNING
    asyncio.run(end(0))


def test_a_broken_cluster_is_cleaned_up_and_a_failing_one_is_in_nobodys_way(store: Store) -> None:
    """A record whose launcher is not installed here is told, and the others are reaped."""
    create(store, "gone").teardown_sync()
    document = store.read("record", "gone")
    assert document is not None
    plain = {**document.value, "state": "running", "ended": None}
    store.swap("record", "gone", plain, document.version)
    jobs = [{**job, "launcher": "moon"} for job in plain["jobs"]]
    store.create("record", "alien", {**plain, "name": "alien", "launcher": "moon", "jobs": jobs})
    manager = ClusterManager(store)

    assert manager.reap_sync(labels={"team": "ml"}) == []
    assert [(one.name, one.state) for one in manager.list_sync()] == [(name, "broken") for name in ("alien", "gone")]
    found = outcomes(manager.reap_sync())
    assert found["gone"] == ("ended", "its processes are gone, it was running")
    assert found["alien"][0].startswith("failed: there is no launcher 'moon'; there are: ")
    assert manager.get_sync("gone").reason.startswith("reaped: its processes are gone")


def test_records_that_cannot_be_read_are_reaped_unless_labels_are_asked_for(store: Store) -> None:
    """A newer version's is left alone: for all that is known here it is well."""
    store.create("record", "half", {"schema": 1, "name": "half"})
    store.create("record", "newer", {"schema": 2, "name": "newer"})
    manager = ClusterManager(store)

    assert manager.reap_sync(labels={"team": "ml"}) == []
    assert manager.reap_sync(broken=False) == []
    assert [result.outcome for result in manager.reap_sync(dry_run=True)] == ["would end"]
    (result,) = manager.reap_sync()
    assert (result.name, result.outcome) == ("half", "ended")
    assert result.why.startswith("the record of cluster 'half' is damaged")
    assert manager.get_sync("half").state is ClusterState.ENDED
    assert [one.name for one in manager.list_sync()] == ["newer"]


def test_labels_choose_among_clusters(store: Store) -> None:
    """The others live on."""
    create(store, "mine", labels={"team": "ml"})
    create(store, "theirs", labels={"team": "web"})
    found = ClusterManager(store).reap_sync(0, labels={"team": "ml"})

    assert list(outcomes(found)) == ["mine"]
    assert ClusterManager(store).get_sync("theirs").state is ClusterState.RUNNING


@pytest.mark.parametrize("rules", [{"max_age": -1}, {"idle_for": -0.5}])
def test_negative_times_are_refused(store: Store, rules: dict[str, float]) -> None:
    """Before anything is ended."""
    with pytest.raises(ValueError, match="are seconds from 0 on"):
        ClusterManager(store).reap_sync(**rules)  # type: ignore[arg-type]
