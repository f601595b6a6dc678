"""The flows that come with the plug-in, their deployments, and the automation that runs the reaper."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import State, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events import Resource
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.runtime import flow_run
from prefect.states import Crashed, Running

import steps
from ipcluster_core import Cluster, ClusterManager, ClusterState, errors
from prefect_ipcluster import automations, create_cluster, flows, orphans


def state_of(name: str) -> ClusterState:
    """Return the state of a cluster."""
    return ClusterManager().get_sync(name).state


def left_behind(name: str, *, fails: bool) -> str:
    """Run a flow that leaves its cluster; return the id of its run."""
    ids: list[str] = []

    @flow
    def leaving() -> None:
        ids.append(str(flow_run.id))
        create_cluster(name, n=0)
        if fails:
            raise RuntimeError("on purpose")

    leaving(return_state=True)
    return ids[0]


def test_a_standing_cluster_ends_with_its_last_user() -> None:
    """One deployment creates it, another one takes it back; a run that uses it meanwhile is not disturbed."""
    handle = flows.create("standing", n=1, idle_timeout=60.0)
    Cluster.connect_sync(handle, claim="somebody")
    scaled = flows.scale("standing", 2)
    released = flows.teardown("standing")
    during = state_of("standing")
    ClusterManager().teardown_sync("standing", claim="somebody")

    assert scaled == handle
    assert (released.outcome, during) == ("released", ClusterState.RUNNING)
    assert state_of("standing") is ClusterState.ENDED
    assert flows.teardown(handle).outcome == "already gone"


def test_a_standing_cluster_can_be_ended_for_all() -> None:
    """By force."""
    Cluster.connect_sync(flows.create("standing", n=0), claim="somebody")

    assert flows.teardown("standing", force=True).outcome == "ended"


def test_the_reaper_ends_what_failed_runs_have_left() -> None:
    """What a run that completed has left was meant to stay; runs that go on keep theirs, too."""
    failed, completed = left_behind("failed", fails=True), left_behind("completed", fails=False)

    @flow
    def going_on() -> list[Any]:
        create_cluster("going-on", n=0)
        as_if = flows.reap(dry_run=True)
        return [as_if, flows.reap()]

    as_if, reaped = going_on()

    assert [(one.name, one.outcome, one.why) for one in as_if] == [
        ("failed", "would be given up", f"flow run {failed} is failed")
    ]
    assert [(one.name, one.outcome) for one in reaped] == [("failed", "ended")]
    assert (state_of("failed"), state_of("completed")) == (ClusterState.ENDED, ClusterState.RUNNING)
    assert state_of("going-on") is ClusterState.RUNNING
    assert orphans.states_of([failed, completed]) == {failed: StateType.FAILED, completed: StateType.COMPLETED}
    assert [one.name for one in flows.reap(max_age=0)] == ["completed", "going-on"]


def test_the_reaper_leaves_what_others_use_and_what_it_does_not_know() -> None:
    """Another Prefect's runs may share the store."""
    stranger = str(uuid4())
    run_id = left_behind("used", fails=True)
    Cluster.connect_sync("used", claim=f"prefect-{stranger}")
    reaped = flows.reap()

    assert [(one.name, one.outcome) for one in reaped] == [("used", "released")]
    assert list(steps.record_of("used").claims) == [f"prefect-{stranger}"]
    assert flows.reap() == []
    assert run_id not in str(steps.record_of("used").claims)
    ClusterManager().teardown_sync("used", force=True)


def test_the_reaper_can_be_sent_for_one_run() -> None:
    """As an automation does it; a run that goes on is left alone."""
    one, other = left_behind("one", fails=True), left_behind("other", fails=True)
    reaped = flows.reap(flow_run_id=UUID(one))

    assert [result.name for result in reaped] == ["one"]
    assert state_of("other") is ClusterState.RUNNING
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(other), Running(), force=True)
    assert flows.reap(flow_run_id=UUID(other)) == []
    ClusterManager().teardown_sync("other", force=True)


def test_the_reaper_fails_when_something_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a site sees it; the rest has been ended."""
    left_behind("stubborn", fails=True)
    left_behind("willing", fails=True)
    teardown = ClusterManager.teardown_sync

    def stubborn(manager: ClusterManager, cluster: Any, **options: Any) -> Any:  # noqa: ANN401
        if cluster == "stubborn":
            raise errors.ClusterBroken("it cannot be reached")
        return teardown(manager, cluster, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ClusterManager, "teardown_sync", stubborn)
        state: State[Any] = flows.reap(return_state=True)

    assert state.is_failed()
    assert "cluster 'stubborn': failed: it cannot be reached" in str(state.message)
    assert state_of("willing") is ClusterState.ENDED
    ClusterManager().teardown_sync("stubborn", force=True)


def test_the_reaper_is_deployed_to_a_work_pool() -> None:
    """More than once; workers find it in the installed package."""
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="reapers", type="process"))
        ids = {flows.deploy_reaper("reapers", every=timedelta(minutes=1), idle_for=60.0) for _ in range(2)}
        found = client.read_deployment_by_name("ipcluster-reap/default")

    assert ids == {found.id}
    assert found.parameters == {"idle_for": 60.0}
    assert [schedule.schedule.interval for schedule in found.schedules] == [timedelta(minutes=1)]  # type: ignore[union-attr]
    assert load_flow_from_entrypoint(str(found.entrypoint)).name == "ipcluster-reap"


def test_the_flows_have_forms() -> None:
    """What a form in the UI asks for, and of what kind."""
    create, reap = flows.create.parameters, flows.reap.parameters

    assert create.required == ["name"]
    assert create.properties["n"]["type"] == "integer"
    assert create.properties["if_exists"]["enum"] == ["attach", "fail", "replace"]
    assert {"format": "uuid", "type": "string"} in reap.properties["flow_run_id"]["anyOf"]


def test_the_automation_is_installed_once() -> None:
    """It may be installed again with other flows; it needs the reaper's deployment."""
    with get_client(sync_client=True) as client:
        with pytest.raises(ObjectNotFound):
            automations.install_automations(reaper="ipcluster-reap/nowhere")
        client.create_deployment(client.create_flow(flows.reap), "here")
        first = automations.install_automations(reaper="ipcluster-reap/here")
        second = automations.install_automations(reaper="ipcluster-reap/here", flows=["nightly"])
        found = client.read_automations_by_name(automations.AUTOMATION)

    assert first == second == [one.id for one in found]
    assert found[0].trigger.match_related.root["prefect.resource.name"] == ["nightly"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("flow_name", "flow_names", "matches"),
    [
        ("nightly", None, True),
        ("ipcluster-reap", None, False),
        ("nightly", ["nightly"], True),
        ("other", ["nightly"], False),
    ],
)
def test_the_automation_looks_at_the_right_runs(flow_name: str, flow_names: list[str] | None, matches: bool) -> None:
    """All but the reaper's own, or those of the flows that are named."""
    trigger: Any = automations.automation(uuid4(), flow_names).trigger
    related = Resource(
        {"prefect.resource.id": "prefect.flow.1", "prefect.resource.name": flow_name, "prefect.resource.role": "flow"}
    )

    assert trigger.match_related.matches(related) is matches
    assert trigger.match.matches(Resource({"prefect.resource.id": f"prefect.flow-run.{uuid4()}"}))
    assert f"prefect.flow-run.{Crashed().name}" in trigger.expect
