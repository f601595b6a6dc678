"""A flow's hooks give up what its run has left, by the id of the run alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prefect import State, flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Crashed

import steps
from ipcluster_core import Cluster, ClusterManager, ClusterState, ClusterSummary, errors
from prefect_ipcluster import acreate_cluster, connect_cluster, create_cluster, owned, teardown_owned, with_teardown

ONE, TWO = "1f3c9a02-5ab7-4c7e-9d8a-0c54ba1ce7d2", "2f3c9a02-5ab7-4c7e-9d8a-0c54ba1ce7d2"


def summary(*claims: str, **labels: str) -> ClusterSummary:
    """Return a cluster as it is listed."""
    named = {f"prefect-{name.replace('_', '-')}": value for name, value in labels.items()}
    return ClusterSummary("x", ClusterState.RUNNING, claims=claims, labels=named)


@pytest.mark.parametrize(
    ("cluster", "claims"),
    [
        (summary(f"prefect-{ONE}"), (f"prefect-{ONE}",)),
        (summary(f"prefect-{ONE}", f"prefect-{ONE}-suspended"), (f"prefect-{ONE}-suspended", f"prefect-{ONE}")),
        (summary(f"prefect-{TWO}", flow_run_id=ONE, claim=f"prefect-{TWO}"), (f"prefect-{TWO}",)),
        (summary("own", f"prefect-{TWO}", flow_run_id=ONE, claim="own"), ("own",)),
        (summary(flow_run_id=ONE, claim=f"prefect-{ONE}"), ()),
    ],
    ids=["claimed", "suspended", "made by a subflow", "made with a claim of its own", "nobody's"],
)
def test_a_run_leaves_what_it_has_made_or_claimed(cluster: ClusterSummary, claims: tuple[str, ...]) -> None:
    """Each with the claims that it gives up there."""
    assert [left.claims for left in owned.left_by(ONE, [cluster])] == [claims]


@pytest.mark.parametrize(
    "cluster",
    [
        summary(),
        summary(f"prefect-{TWO}"),
        summary("else", flow_run_id=ONE, claim=f"prefect-{ONE}"),
        summary("prefect-x"),
    ],
    ids=["nobody's", "another run's", "handed on", "no run's"],
)
def test_what_is_not_the_runs_is_left_alone(cluster: ClusterSummary) -> None:
    """A cluster that it has made, and given up already, is others' now."""
    assert owned.left_by(ONE, [cluster]) == []


def test_runs_are_known_by_their_claims() -> None:
    """Also suspended ones; other claims are nobody's in Prefect."""
    clusters = [summary(f"prefect-{ONE}", "mine"), summary(f"prefect-{TWO}-suspended", f"prefect-{ONE}x")]

    assert owned.runs_with_claims(clusters) == {ONE, TWO}


def state_of(name: str) -> ClusterState:
    """Return the state of a cluster."""
    return ClusterManager().get_sync(name).state


@pytest.mark.parametrize("fails", [False, True], ids=["completed", "failed"])
def test_a_flow_gives_up_its_clusters_however_it_ends(fails: bool) -> None:
    """With one decorator."""

    @with_teardown
    @flow
    def hooked() -> None:
        create_cluster("hooked", n=0)
        if fails:
            raise RuntimeError("on purpose")

    state: State[None] = hooked(return_state=True)

    assert state.is_failed() is fails
    assert state_of("hooked") is ClusterState.ENDED


def test_an_async_flow_gives_up_its_clusters() -> None:
    """It is the same decorator."""

    @with_teardown
    @flow
    async def hooked() -> None:
        await acreate_cluster("ahooked", n=0)

    asyncio.run(hooked())

    assert state_of("ahooked") is ClusterState.ENDED


def test_a_hook_leaves_the_cluster_to_others_unless_forced() -> None:
    """Who uses it, uses it."""

    @with_teardown
    @flow
    def polite() -> None:
        Cluster.connect_sync(create_cluster("lent", n=0), claim="somebody")

    @with_teardown(force=True)
    @flow
    def rude() -> None:
        create_cluster("lent", n=0)

    polite()
    assert (state_of("lent"), list(steps.record_of("lent").claims)) == (ClusterState.RUNNING, ["somebody"])
    rude()
    assert state_of("lent") is ClusterState.RUNNING  # it has not made it
    ClusterManager().teardown_sync("lent", claim="somebody")
    assert state_of("lent") is ClusterState.ENDED


def test_a_forced_hook_ends_what_its_run_has_made() -> None:
    """For others too."""

    @with_teardown(force=True)
    @flow
    def rude() -> None:
        Cluster.connect_sync(create_cluster("own", n=0), claim="somebody")

    rude()

    assert state_of("own") is ClusterState.ENDED


def test_a_flow_that_only_claims_gives_up_its_claim() -> None:
    """And its subflow gives up nothing of it."""

    @with_teardown
    @flow
    def inner() -> None: ...

    @with_teardown
    @flow
    def using() -> list[str]:
        connect_cluster("used", claim=f"prefect-{flow_run.id}")
        inner()
        return sorted(steps.record_of("used").claims)

    with Cluster("used", n=0, claim="maker") as cluster:
        inside = using()
        after = list(steps.record_of("used").claims)
        state = cluster.status_sync().state

    assert len(inside) == 2
    assert (after, state) == (["maker"], ClusterState.RUNNING)


def test_only_the_ends_that_are_asked_for_count() -> None:
    """And others are refused."""

    @with_teardown(on=["failure"])
    @flow
    def lasting() -> None:
        create_cluster("lasting", n=0)

    lasting()
    assert state_of("lasting") is ClusterState.RUNNING
    ClusterManager().teardown_sync("lasting", force=True)
    with pytest.raises(ValueError, match="a flow run does not end by boredom, but by completion"):
        with_teardown(on=["boredom"])  # type: ignore[list-item]


def test_a_hook_works_where_the_flows_process_is_gone() -> None:
    """By name of its parameters, with nothing but what the API knows, and more than once."""
    made: list[Any] = []

    @flow
    def gone() -> str:
        made.append(create_cluster("orphan", n=0))
        return str(flow_run.id)

    run_id = gone()
    with get_client(sync_client=True) as client:
        read = client.read_flow_run(run_id)  # type: ignore[arg-type]
    for _ in range(2):
        teardown_owned(flow=gone, flow_run=read, state=Crashed())

    assert state_of("orphan") is ClusterState.ENDED


def test_a_hook_that_cannot_end_one_cluster_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fails, so that Prefect says so in the run's log."""
    teardown = ClusterManager.teardown_sync

    def stubborn(manager: ClusterManager, cluster: Any, **options: Any) -> Any:  # noqa: ANN401
        if cluster == "one":
            raise errors.ClusterBroken("cluster 'one' cannot be reached")
        return teardown(manager, cluster, **options)

    @flow
    def two() -> str:
        create_cluster("one", n=0)
        create_cluster("two", n=0)
        return str(flow_run.id)

    run_id = two()
    with get_client(sync_client=True) as client:
        read = client.read_flow_run(run_id)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(ClusterManager, "teardown_sync", stubborn)
        with pytest.raises(errors.ClusterBroken, match="cannot be reached"):
            teardown_owned(two, read, Crashed())

    assert (state_of("one"), state_of("two")) == (ClusterState.RUNNING, ClusterState.ENDED)
    ClusterManager().teardown_sync("one", force=True)
