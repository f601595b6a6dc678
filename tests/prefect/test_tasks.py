"""Steps that share a cluster by its handle or name: real flows, real clusters."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prefect import allow_failure, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.settings import PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings

import steps
from ipcluster_core import Client, Cluster, ClusterHandle, ClusterManager, ClusterState, TeardownReport, errors
from ipcluster_core.process import tagged
from prefect_ipcluster import (
    aconnect_cluster,
    acreate_cluster,
    ascale_cluster,
    ateardown_cluster,
    connect_cluster,
    create_cluster,
    scale_cluster,
    teardown_cluster,
)

LIMITS = "ends by itself: idle timeout in 30 min, lifetime in 24 h"


@task(cache_policy=NO_CACHE)
def engine_pids(cluster: str | ClusterHandle) -> set[int]:
    """Use a cluster in a step that knows nothing but the handle."""
    with Client.connect(cluster) as client:
        return set(client.run(os.getpid).values())


def state_of(name: str) -> tuple[ClusterState, list[int]]:
    """Return what the record and the kernel say."""
    return ClusterManager().get_sync(name).state, tagged(steps.record_of(name).tag)


def test_steps_share_a_cluster_by_its_handle(run_log: list[str]) -> None:
    """One creates, one uses, one scales, one ends; the log tells the limits and the end."""

    @flow(name="Four Steps")
    def four_steps() -> tuple[str, ClusterHandle, set[int], ClusterHandle, set[int], TeardownReport]:
        handle = create_cluster(n=1)
        before = engine_pids(handle)
        scaled = scale_cluster(handle, 3)
        return str(flow_run.id), handle, before, scaled, engine_pids(handle), teardown_cluster(handle)

    run_id, handle, before, scaled, after, report = four_steps()

    assert handle.name == f"four-steps-{run_id[:8]}"
    assert scaled == handle
    assert (len(before), len(after)) == (1, 3)
    assert before < after
    assert os.getpid() not in after
    assert (report.outcome, report.leftovers) == ("ended", ())
    assert state_of(handle.name) == (ClusterState.ENDED, [])
    assert run_log == [
        f"creating cluster '{handle.name}' with 1 engine",
        f"cluster '{handle.name}' #1 is running with 1 engine up; {LIMITS}",
        f"cluster '{handle.name}' #1 is running with 3 engines up; {LIMITS}",
        f"cluster '{handle.name}' #1 ended",
    ]


def test_a_cluster_is_found_from_its_flow_run() -> None:
    """By label; and while the run uses it, by the run's claim."""

    @flow
    def labelled() -> tuple[str, list[Any]]:
        handle = create_cluster(n=0)
        found = ClusterManager().list_sync({"prefect-flow-run-id": str(flow_run.id)})
        teardown_cluster(handle)
        return str(flow_run.id), found

    run_id, found = labelled()

    assert [summary.name for summary in found] == [f"labelled-{run_id[:8]}"]
    assert found[0].labels["prefect-flow"] == "labelled"
    assert found[0].claims == (f"prefect-{run_id}",)


@flow
def parameterised(cluster: str | ClusterHandle) -> tuple[str, int]:
    """Use a cluster that another flow has made."""
    return type(cluster).__name__, len(engine_pids(connect_cluster(cluster)))


def test_a_handle_is_a_flow_parameter() -> None:
    """As it is, as what JSON makes of it on the way to a deployment, as a string of JSON, and by name."""
    with Cluster("parameter", n=2) as cluster:
        handle = cluster.handle
        sent = json.loads(json.dumps(parameterised.serialize_parameters({"cluster": handle})))
        given: list[Any] = [handle, sent["cluster"], handle.model_dump_json(), "parameter"]
        seen = [parameterised(cluster) for cluster in given]

    assert sent == {"cluster": handle.model_dump()}
    assert seen == [("ClusterHandle", 2), ("ClusterHandle", 2), ("str", 2), ("str", 2)]


def test_async_flows_have_twins() -> None:
    """They are tasks: they can be submitted, and given other options."""

    @flow
    async def asynchronous() -> tuple[ClusterHandle, int, str]:
        handle = await acreate_cluster("asynchronous", n=1)
        await ascale_cluster(handle, 2)
        found = await aconnect_cluster.with_options(name="find")("asynchronous", n=2)
        pids = engine_pids.submit(found).result()
        submitted: Any = ateardown_cluster.submit(found)
        return found, len(pids), submitted.result().outcome

    handle, engines, outcome = asyncio.run(asynchronous())

    assert (handle.name, engines, outcome) == ("asynchronous", 2, "ended")
    assert state_of("asynchronous") == (ClusterState.ENDED, [])


def test_a_retried_flow_finds_the_cluster_of_its_first_attempt() -> None:
    """Same name, same claim, same incarnation: nothing is started twice, and one teardown ends it."""
    handles = []

    @flow(retries=1)
    def retried() -> dict[str, int]:
        handles.append(create_cluster(n=1))
        if len(handles) == 1:
            raise RuntimeError("first attempt")
        claims = dict(steps.record_of(handles[0].name).claims)
        teardown_cluster(handles[-1])
        return claims

    claims = retried()

    assert handles[0] == handles[1]
    assert list(claims.values()) == [2]
    assert state_of(handles[0].name) == (ClusterState.ENDED, [])


def test_a_retried_create_task_finds_what_its_first_attempt_made() -> None:
    """The attempt that failed may have made it already."""
    made = []

    @task(retries=1, cache_policy=NO_CACHE)
    def create() -> ClusterHandle:
        made.append(create_cluster(n=1))
        if len(made) == 1:
            raise RuntimeError("after it was made")
        return made[-1]

    @flow
    def creating() -> TeardownReport:
        return teardown_cluster(create())

    assert creating().outcome == "ended"
    assert made[0] == made[1]


def test_a_living_cluster_of_that_name_can_be_refused() -> None:
    """The default is to attach, for the sake of retries."""

    @flow
    def greedy() -> None:
        create_cluster("taken", if_exists="fail")

    with Cluster("taken", n=0), pytest.raises(errors.ClusterExists, match="cluster 'taken' #1 exists"):
        greedy()


def test_the_last_run_out_ends_a_shared_cluster(run_log: list[str]) -> None:
    """Each run's claim stands for it; the log names those for whom the cluster lives on."""

    @flow
    def second_run() -> str:
        return teardown_cluster(create_cluster("shared")).outcome

    @flow
    def first_run() -> tuple[str, str, str]:
        handle = create_cluster("shared", n=0)
        with ThreadPoolExecutor() as pool:  # where it is no subflow
            outcome = pool.submit(second_run).result()
        return str(flow_run.id), outcome, teardown_cluster(handle).outcome

    run_id, second, first = first_run()

    assert (second, first) == ("released", "ended")
    assert f"cluster 'shared' #1 lives on for: prefect-{run_id}" in run_log
    assert state_of("shared") == (ClusterState.ENDED, [])


def test_a_shared_cluster_can_be_ended_for_all(run_log: list[str]) -> None:
    """By force; the log names who is hit."""

    @flow
    def sharing() -> str:
        handle = create_cluster("shared", n=0)
        Cluster.connect_sync(handle, claim="somebody")
        return teardown_cluster(handle, force=True).outcome

    assert sharing() == "ended"
    assert run_log[-1] == "cluster 'shared' #1 ended; it was in use by: somebody"
    assert state_of("shared") == (ClusterState.ENDED, [])


def test_a_subflow_may_tear_down_what_its_parent_made() -> None:
    """They are one run."""

    @flow
    def last_step(cluster: ClusterHandle) -> str:
        return teardown_cluster(cluster).outcome

    @flow
    def parent() -> str:
        return last_step(create_cluster("parental", n=0))

    assert parent() == "ended"


def test_teardown_can_be_repeated(run_log: list[str]) -> None:
    """What is gone already is a success, and the log says how it went."""

    @flow
    def twice() -> list[str]:
        handle = create_cluster("twice", n=0)
        return [teardown_cluster(cluster).outcome for cluster in (handle, handle, "twice")]

    assert twice() == ["ended", "already gone", "already gone"]
    assert run_log[-1].startswith("cluster 'twice' #1 ended 20")
    assert "torn down" in run_log[-1]


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("never-made", "there is no cluster 'never-made'"),
        (None, "there is no cluster to end"),
        (errors.LaunchError("no room"), "there is no cluster to end: LaunchError: no room"),
    ],
)
def test_tearing_down_nothing_is_a_success_with_a_warning(
    cluster: str | BaseException | None, message: str, run_log: list[str]
) -> None:
    """A teardown must not fail because the creation did."""

    @flow
    def ending() -> TeardownReport:
        return teardown_cluster(cluster)

    report = ending()

    assert report.outcome == "already gone"
    assert report.message.startswith(message)
    assert run_log == [report.message]


def test_a_stale_handle_leaves_the_newer_cluster_alone() -> None:
    """The name has gone on to another incarnation."""
    with Cluster("again", n=0) as first:
        stale = first.handle
    with Cluster("again", n=0) as second:

        @flow
        def ending() -> TeardownReport:
            return teardown_cluster(stale.model_dump())

        report = ending()

        assert report.outcome == "already gone"
        assert "belongs to #2" in report.message
        assert second.status_sync().state is ClusterState.RUNNING


def test_a_graph_of_tasks_ends_its_cluster_when_a_step_fails() -> None:
    """`allow_failure` hands on the exception of a step, or of the creation itself."""

    @task(cache_policy=NO_CACHE)
    def failing(cluster: ClusterHandle) -> None:
        raise RuntimeError("a step fails")

    @flow
    def graph(python: str | None) -> tuple[bool, TeardownReport]:
        handle: Any = create_cluster.submit("graph", n=1, python=python)
        work: Any = failing.submit(handle)
        made_or_not: Any = allow_failure(handle)
        end: Any = teardown_cluster.submit(made_or_not, wait_for=[allow_failure(work)], return_state=False)
        work.wait()
        return work.state.is_failed(), end.result()

    failed, report = graph(None)
    assert (failed, report.outcome) == (True, "ended")
    assert state_of("graph") == (ClusterState.ENDED, [])

    _, report = graph("/nowhere/python")
    assert report.outcome == "already gone"
    assert "LaunchError: the interpreter '/nowhere/python'" in report.message
    assert state_of("graph") == (ClusterState.ENDED, [])


def test_a_teardown_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be reached may be the next time."""
    calls = []
    teardown = ClusterManager.teardown

    def unlucky(manager: ClusterManager, cluster: ClusterHandle, **options: Any) -> TeardownReport:
        calls.append(cluster)
        if len(calls) == 1:
            raise errors.ClusterBroken("it does not answer")
        return asyncio.run(teardown(manager, cluster, **options))

    @flow
    def persistent() -> str:
        handle = create_cluster("persistent", n=0)
        with monkeypatch.context() as patched:
            patched.setattr(ClusterManager, "teardown_sync", unlucky)
            return teardown_cluster.with_options(retry_delay_seconds=0)(handle).outcome

    assert persistent() == "ended"
    assert len(calls) == 2
    assert state_of("persistent") == (ClusterState.ENDED, [])


def test_a_refused_teardown_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a flow run there is no claim to give up, and a cluster that runs use is not ended but by force."""
    calls = []
    teardown = ClusterManager.teardown_sync

    def counted(manager: ClusterManager, cluster: ClusterHandle, **options: Any) -> TeardownReport:
        calls.append(cluster)
        return teardown(manager, cluster, **options)

    with (
        temporary_settings({PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}),
        Cluster("busy", n=0, claim="somebody"),
        monkeypatch.context() as patched,
    ):
        patched.setattr(ClusterManager, "teardown_sync", counted)
        with pytest.raises(errors.ClusterInUse, match="cluster 'busy' #1 is in use by: somebody"):
            teardown_cluster.with_options(retry_delay_seconds=0)("busy")

    assert calls == ["busy"]
