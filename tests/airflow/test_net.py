"""The net below the teardowns: claims of runs that are over, given up by a reaper, a notifier and a listener."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG

import steps
from airflow_ipcluster import CreateClusterOperator, GiveUpClaimsNotifier, ReapClustersOperator, claims, listener
from airflow_ipcluster.naming import RUN_CLAIM
from ipcluster_core import Cluster, ClusterManager, ClusterState
from runs import RunDag, XComs, states

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

logger = logging.getLogger(__name__)


def leaving(dag_id: str, name: str, **kwargs: Any) -> DAG:
    """Make a DAG whose run leaves a cluster behind."""
    with DAG(dag_id, **kwargs) as dag:
        CreateClusterOperator(task_id="create", name=name, n=1)
    return dag


def test_a_claim_tells_its_run() -> None:
    """DAG ids have no slash, run ids may have; the template that operators have gives the same."""
    assert claims.run_of(claims.claim_of("a.b-c_d", "manual__2026/1")) == ("a.b-c_d", "manual__2026/1")
    assert claims.run_of("nightly") is None
    assert claims.run_of("airflow/alone") is None
    assert RUN_CLAIM.replace("{{ dag.dag_id }}", "d").replace("{{ run_id }}", "r") == claims.claim_of("d", "r")


def test_the_reaper_gives_up_claims_of_runs_that_are_over_and_of_no_others(run_dag: RunDag, xcoms: XComs) -> None:
    """Airflow is asked about each run. What it does not know, what is still going on, and other claims are left."""
    over = run_dag(leaving("over", "left"))
    Cluster.create_sync("left", if_exists="attach", claim="somebody")
    run_dag(leaving("alone", "alone"))
    Cluster.create_sync("foreign", n=1, claim="airflow/of-another-airflow/run")
    with DAG("janitor") as dag:
        mine = CreateClusterOperator(task_id="mine", name="mine", n=1)
        tell = ReapClustersOperator(task_id="tell", dry_run=True)
        reap = ReapClustersOperator(task_id="reap")
        again = ReapClustersOperator(task_id="again")
        forgotten = ReapClustersOperator(task_id="forgotten", unknown_runs=True)
        mine >> tell >> reap >> again >> forgotten
    run = run_dag(dag)
    pushed = xcoms(run)
    living = {summary.name: summary.claims for summary in ClusterManager().list_sync()}
    for name in living:
        ClusterManager().teardown_sync(name, force=True)

    assert set(states(run).values()) == {"success"}
    assert {row["name"]: row["outcome"] for row in pushed["tell", "return_value"]} == {
        "alone": "would be given up", "left": "would be given up",
    }  # fmt: skip
    assert {row["name"]: row["outcome"] for row in pushed["reap", "return_value"]} == {
        "alone": "ended", "left": "released",
    }  # fmt: skip
    assert f"airflow/over/{over.run_id} is over" in str(pushed["reap", "return_value"])
    assert pushed["again", "return_value"] == []
    assert [row["name"] for row in pushed["forgotten", "return_value"]] == ["foreign"]
    assert living == {"left": ("somebody",), "mine": (f"airflow/janitor/{run.run_id}",)}


def test_the_reaper_ends_what_is_old_or_idle_when_it_is_told_to(run_dag: RunDag, xcoms: XComs) -> None:
    """With labels only those that have them."""
    Cluster.create_sync("blue", n=1, labels={"colour": "blue"})
    with Cluster("red", n=1), DAG("colours") as dag:
        ReapClustersOperator(task_id="reap", max_age=0, labels={"colour": "{{ 'blue' }}"})
        pushed = xcoms(run_dag(dag))
        [living] = ClusterManager().list_sync()

    assert [(row["name"], row["outcome"]) for row in pushed["reap", "return_value"]] == [("blue", "ended")]
    assert living.name == "red"


def test_a_claim_that_was_taken_again_since_it_was_seen_is_left() -> None:
    """A run that was cleared in between; and a cluster that has come anew keeps what its predecessor had."""
    manager = ClusterManager()
    Cluster.create_sync("again", n=1, claim="airflow/d/r")
    [seen] = claims.find(manager)
    Cluster.create_sync("again", if_exists="attach", claim="airflow/d/r")
    late = claims.give_up(manager, seen, timeout=10)
    Cluster.create_sync("again", if_exists="replace", n=1, claim="airflow/d/r")

    assert late is not None
    assert late.outcome == "released"
    assert claims.give_up(manager, seen, timeout=10) is None
    assert [summary.state for summary in manager.list_sync()] == [ClusterState.RUNNING]
    assert claims.give_up_all(manager, "airflow/d/r", logger) == ["cluster 'again' #2 ended"]
    assert claims.give_up(manager, seen, timeout=10) is None
    assert claims.give_up_all(manager, "airflow/d/r", logger) == []


def test_the_claim_of_a_broken_cluster_is_given_up_too() -> None:
    """It is cleaned up by that."""
    Cluster.create_sync("broken", n=1, claim="airflow/d/r")
    for pid in steps.living("broken"):
        os.kill(pid, signal.SIGKILL)
    steps.wait_until(lambda: ClusterManager().get_sync("broken").state is ClusterState.BROKEN, 30)

    assert len(claims.give_up_all(ClusterManager(), "airflow/d/r", logger)) == 1
    assert steps.record_of("broken").state is ClusterState.ENDED


@pytest.mark.parametrize("server_knows_the_last_task", [False, True])
def test_the_notifier_ends_what_its_run_alone_uses(run_dag: RunDag, server_knows_the_last_task: bool) -> None:
    """Airflow calls it with one of two contexts, in the DAG processor; a second call finds nothing to do."""
    dag = leaving("noticed", "noticed")
    run = run_dag(dag)
    Cluster.create_sync("other", n=1, claim="somebody")
    short = {"dag": dag, "run_id": run.run_id, "reason": "timed_out"}
    context: Any = {**short, "dag_run": run} if server_knows_the_last_task else short
    notifier = GiveUpClaimsNotifier()
    notifier(context)
    notifier(context)
    [other] = ClusterManager().list_sync()
    ClusterManager().teardown_sync("other", force=True)

    assert other.name == "other"
    assert steps.record_of("noticed").state is ClusterState.ENDED


def finished(dag_id: str) -> DagRun:
    """Make what a listener needs of a run."""
    run: Any = SimpleNamespace(dag_id=dag_id, run_id="r")
    return run  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", [listener.on_dag_run_failed, listener.on_dag_run_success])
def test_the_listener_ends_what_a_run_leaves_and_holds_nobody_up(call: Callable[..., None]) -> None:
    """A thread does it, whichever way the run is over."""
    Cluster.create_sync("heard", n=1, claim="airflow/heard/r")
    call(finished("heard"), msg="marked by a person")
    steps.wait_until(lambda: steps.record_of("heard").state is ClusterState.ENDED, 30)
    steps.wait_until(lambda: not steps.living("heard"), 30)


def test_the_listener_survives_a_store_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so; the reaper comes later."""

    def fail(*args: Any) -> None:
        raise OSError("no store today")

    monkeypatch.setattr(listener, "give_up_all", fail)
    listener.on_dag_run_failed(finished("lost"), msg="")
    steps.wait_until(lambda: "the claims 'airflow/lost/r' could not be given up" in caplog.text, 30)
