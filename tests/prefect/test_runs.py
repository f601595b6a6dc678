"""What a flow run decides about its clusters, and what Prefect shows of it; no cluster is made."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prefect import Task, flow
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from ipcluster_core import ClusterHandle, ClusterSpec
from ipcluster_core.record import check_name
from prefect_ipcluster import connect_cluster, create_cluster, runs, scale_cluster, teardown_cluster
from prefect_ipcluster.options import Named
from prefect_ipcluster.reports import name_of

RUN_ID = "1f3c9a02-5ab7-4c7e-9d8a-0c54ba1ce7d2"

HANDLE = ClusterHandle(
    name="nightly",
    incarnation=1,
    uid="0",
    store="memory:",
    backend="native",
    launcher="local",
    created="2026-01-01T00:00:00Z",
)


@pytest.mark.parametrize(
    ("flow_name", "name"),
    [
        ("nightly", "nightly-1f3c9a02"),
        ("Nightly Report (EU)", "nightly-report-eu-1f3c9a02"),
        ("a_b.c/d", "a-b-c-d-1f3c9a02"),
        ("夜間", "flow-1f3c9a02"),
        ("x" * 90, "x" * 54 + "-1f3c9a02"),
        ("y" * 53 + " z", "y" * 53 + "-1f3c9a02"),
    ],
)
def test_a_clusters_name_tells_flow_and_run(flow_name: str, name: str) -> None:
    """It is a valid name whatever the flow is called."""
    made = runs.default_name(flow_name, RUN_ID)

    assert made == name
    assert check_name(made) == made


def test_a_plan_takes_name_claim_and_labels_from_the_run() -> None:
    """In a subflow the claim is that of the root: what one flow makes, another of the same run may tear down."""

    @flow(name="Inner Part")
    def inner() -> tuple[runs.Plan, str]:
        return runs.plan(None, None, None, {"n": 3, "labels": {"team": "blue"}}), str(flow_run.id)

    @flow
    def outer() -> tuple[runs.Plan, str, str]:
        return *inner(), str(flow_run.id)

    plan, own_id, root_id = outer()

    assert plan.name == f"inner-part-{own_id[:8]}"
    assert plan.claim == f"prefect-{root_id}"
    assert plan.spec.total == 3
    assert plan.spec.labels == {
        "prefect-flow": "Inner Part",
        "prefect-flow-run": plan.spec.labels["prefect-flow-run"],
        "prefect-flow-run-id": own_id,
        "prefect-claim": f"prefect-{root_id}",
        "team": "blue",
    }


def test_a_cluster_lives_for_a_day_unless_asked_otherwise() -> None:
    """No limit must be asked for."""
    specs = [
        runs.plan("x", None, None, {}).spec,
        runs.plan("x", None, None, {"lifetime": 60.0}).spec,
        runs.plan("x", None, None, {"lifetime": None}).spec,
        runs.plan("x", ClusterSpec(n=1), None, {}).spec,
        runs.plan("x", ClusterSpec(n=1, lifetime=None), None, {}).spec,
    ]

    assert [spec.lifetime for spec in specs] == [86400.0, 60.0, None, 86400.0, None]
    assert {spec.idle_timeout for spec in specs} == {1800.0}


def test_outside_a_flow_run_a_cluster_needs_a_name() -> None:
    """It then has neither claim nor labels."""
    plan = runs.plan("nightly", None, None, {})

    assert (plan.name, plan.claim, plan.spec.labels) == ("nightly", None, {})
    with pytest.raises(ValueError, match="outside a flow run a cluster needs a name"):
        runs.plan(None, None, None, {})


def test_a_spec_and_its_fields_exclude_each_other() -> None:
    """The message names the fields."""
    with pytest.raises(ValueError, match="give a spec or its fields, not both: idle_timeout, n"):
        runs.plan("x", ClusterSpec(n=1), None, {"n": 2, "idle_timeout": 60.0})


@pytest.mark.parametrize("cluster", [HANDLE, HANDLE.model_dump(), HANDLE.model_dump_json(), "nightly"])
def test_task_runs_are_named_after_their_cluster(cluster: object) -> None:
    """However it is given."""
    assert name_of(cluster) == "nightly"
    assert Named("scale", "cluster")({"cluster": cluster, "n": 4}) == "scale cluster nightly"


def test_task_runs_have_a_name_without_a_cluster() -> None:
    """The default's when there is one, and none when its creation failed."""
    assert Named("create", "name", lambda: "flights-1f3c9a02")({"name": None}) == "create cluster flights-1f3c9a02"
    assert Named("tear down", "cluster")({"cluster": None}) == "tear down cluster (none)"
    assert Named("tear down", "cluster")({"cluster": ValueError("x")}) == "tear down cluster (none)"


@pytest.mark.parametrize("task", [create_cluster, connect_cluster, scale_cluster, teardown_cluster])
def test_tasks_are_never_cached(task: Task[..., object]) -> None:
    """A cached handle would be of a cluster that has ended."""
    assert task.cache_policy == NO_CACHE
    assert task.tags == {"ipcluster"}


def test_the_package_costs_nothing_to_import() -> None:
    """Prefect's servers and workers import it in every process."""
    code = """
import sys
import prefect_ipcluster
heavy = {"prefect", "ipcluster_core", "pydantic", "cloudpickle"}
print(sorted(heavy & set(sys.modules)), sorted(prefect_ipcluster.__all__)[0])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.split() == ["[]", "AnyCluster"]
