"""Clusters as they are: status, list, restart, reap; and what Prefect shows of them."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from prefect import flow
from prefect.artifacts import Artifact
from prefect.settings import PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW, temporary_settings

import steps
from ipcluster_core import Client, Cluster, ClusterState, ClusterStatus, ReapResult, TeardownReport, errors
from prefect_ipcluster import (
    acluster_status,
    alist_clusters,
    areap_clusters,
    arestart_engines,
    artifacts,
    cluster_status,
    create_cluster,
    list_clusters,
    notices,
    reap_clusters,
    restart_engines,
    scale_cluster,
    teardown_cluster,
)


def pids(cluster: Any) -> set[int]:  # noqa: ANN401 - handle or name
    """Return the pids of the engines."""
    with Client.connect(cluster) as client:
        return set(client.run(os.getpid).values())


def test_engines_are_restarted_by_a_task() -> None:
    """All, or those that are named; also from an async flow."""

    @flow
    async def later() -> None:
        await arestart_engines("again", [0])

    @flow
    def again() -> tuple[set[int], set[int], set[int]]:
        before = pids("again")
        one = pids(restart_engines("again", [1]))
        return before, one, pids(restart_engines("again"))

    with Cluster("again", n=2):
        before, one, all_new = again()
        asyncio.run(later())
        last = pids("again")

    assert len(before & one) == 1
    assert not all_new & one
    assert len(last & all_new) == 1


def test_a_status_is_told_of_living_and_ended_clusters(run_log: list[str]) -> None:
    """The ended one's says why; an artifact shows the engines."""

    @flow
    def looking() -> ClusterStatus:
        return cluster_status("looked-at", artifact=True)

    @flow
    async def looking_later() -> tuple[ClusterStatus, ClusterStatus]:
        return await acluster_status("looked-at", artifact=True), await acluster_status(handle)

    with Cluster("looked-at", n=2) as cluster:
        handle = cluster.handle
        living = looking()
    ended, same = asyncio.run(looking_later())
    shown: Any = Artifact.get("ipcluster-looked-at")

    assert (living.state, living.up) == (ClusterState.RUNNING, 2)
    assert ended == same
    assert ended.state is ClusterState.ENDED
    assert "torn down" in ended.reasons[0]
    assert "cluster 'looked-at' #1 is running with 2 engines up" in run_log[0]
    assert "cluster 'looked-at' #1 is ended: " in run_log[1]
    assert shown.type == "table"


def test_a_broken_cluster_has_a_status() -> None:
    """It says what became of it, and a reap cleans it up."""

    @flow
    def looking() -> ClusterStatus:
        return cluster_status("broken")

    @flow
    def reaping() -> list[ReapResult]:
        return reap_clusters(labels={"team": "blue"})

    assert steps.ctl("create", "broken", "-n", "1", "--label", "team=blue").returncode == 0
    steps.wait_until(lambda: steps.living("broken"))
    for part in ("controller", "nanny"):
        os.kill(steps.part("broken", part), signal.SIGSTOP)
    for part in ("controller", "nanny"):
        os.kill(steps.part("broken", part), signal.SIGKILL)
    steps.wait_until(lambda: not steps.living("broken"), 20)
    status, reaped = looking(), reaping()

    assert status.state is ClusterState.BROKEN
    assert [(one.name, one.outcome) for one in reaped] == [("broken", "ended")]


def test_there_is_no_status_of_what_never_was() -> None:
    """It is an error, as for all other verbs."""

    @flow
    def looking() -> None:
        cluster_status("never")

    with pytest.raises(errors.ClusterNotFound, match="there is no cluster 'never'"):
        looking()


def test_clusters_are_listed_and_reaped_by_tasks(run_log: list[str]) -> None:
    """By label, by age, and only as if; in async flows too."""

    @flow
    def keeping_house() -> tuple[list[str], list[str], list[ReapResult], list[ReapResult]]:
        for name in ("one", "two"):
            create_cluster(name, n=0, labels={"team": name})
        every = [one.name for one in list_clusters()]
        two = [one.name for one in list_clusters({"team": "two"})]
        return every, two, reap_clusters(max_age=0, dry_run=True), reap_clusters(max_age=0, labels={"team": "one"})

    @flow
    async def later() -> tuple[list[str], list[ReapResult], list[str]]:
        return (
            [one.name for one in await alist_clusters()],
            await areap_clusters(idle_for=0),
            [str(one.state) for one in await alist_clusters(all=True)],
        )

    every, two, as_if, reaped = keeping_house()
    left, idle, states = asyncio.run(later())
    shown: Any = Artifact.get("ipcluster-reaped")

    assert (every, two, left) == (["one", "two"], ["two"], ["two"])
    assert [(one.name, one.outcome) for one in as_if] == [("one", "would end"), ("two", "would end")]
    assert [(one.name, one.outcome, one.why) for one in reaped] == [("one", "ended", "older than 0 s")]
    assert [(one.name, one.outcome) for one in idle] == [("two", "ended")]
    assert states == ["ended", "ended"]
    assert "cluster 'one' #1: ended (older than 0 s)" in run_log
    assert "two" in str(shown.data)


def test_an_age_is_not_negative() -> None:
    """The core's own message."""

    @flow
    def reaping() -> None:
        reap_clusters(max_age=-1)

    with pytest.raises(ValueError, match="seconds from 0 on"):
        reaping()


def test_the_life_of_a_cluster_is_told_as_events_and_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ready, scaled, ended; the engines as a table, and a summary at the end."""
    told: list[tuple[str, dict[str, str], dict[str, Any]]] = []
    monkeypatch.setattr(notices, "emit_event", lambda event, resource, payload: told.append((event, resource, payload)))

    @flow
    def living() -> None:
        handle = create_cluster("told", n=1)
        scale_cluster(handle, 2)
        with Client.connect(handle) as client:
            client.submit(abs, 1).result()
        teardown_cluster(handle)

    living()
    summary: Any = Artifact.get("ipcluster-told-end")

    assert [event for event, _, _ in told] == [f"ipcluster.cluster.{change}" for change in ("ready", "scaled", "ended")]
    assert {resource["prefect.resource.id"] for _, resource, _ in told} == {"ipcluster.cluster.told"}
    assert [payload.get("engines") for _, _, payload in told] == [1, 2, None]
    assert summary.type == "markdown"
    assert "cluster 'told' #1 ended" in summary.data
    assert "| engines wanted, by set | default 2 |" in summary.data
    assert "| tasks done | 1 |" in summary.data


def test_neither_is_told_where_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or outside a run."""
    told: list[str] = []
    monkeypatch.setattr(notices, "emit_event", lambda event, resource, payload: told.append(event))
    monkeypatch.setenv("PREFECT_INTEGRATIONS_IPCLUSTER_EVENTS", "false")
    monkeypatch.setenv("PREFECT_INTEGRATIONS_IPCLUSTER_ARTIFACTS", "false")

    @flow
    def silent() -> bool:
        teardown_cluster(create_cluster("silent", n=0))
        return artifacts.is_shown()

    assert not silent()
    assert told == []
    assert Artifact.get("ipcluster-silent") is None
    assert Artifact.get("ipcluster-silent-end") is None


def test_a_cluster_goes_on_when_it_cannot_be_shown(monkeypatch: pytest.MonkeyPatch, run_log: list[str]) -> None:
    """A server that does not answer costs no cluster."""

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr(artifacts, "_create_table", unreachable)
    monkeypatch.setattr(artifacts, "_create_markdown", unreachable)

    @flow
    def unseen() -> str:
        return teardown_cluster(create_cluster("unseen", n=0)).outcome

    assert unseen() == "ended"
    assert "an artifact could not be made: ConnectionError('no server')" in run_log


def test_a_summary_needs_no_status() -> None:
    """A cluster that did not answer any more has ended all the same."""
    assert artifacts.summary_of(TeardownReport("x", "ended", "it ended"), None) == "# Cluster x\n\nit ended"


def test_tasks_work_outside_a_flow() -> None:
    """Nothing is shown there."""
    with (
        temporary_settings({PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}),
        Cluster("outside", n=1),
    ):
        status = cluster_status("outside")
        engines = pids(scale_cluster("outside", 2))

    assert (status.up, len(engines)) == (1, 2)
