"""What must hold when flows meet: one name at once, a creator that is killed, parameters through the server, caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, PREFECT_RESULTS_PERSIST_BY_DEFAULT, temporary_settings
from prefect.states import Pending

import steps
from ipcluster_core import Client, ClusterHandle, ClusterManager, ClusterState
from prefect_ipcluster import connect_cluster, create_cluster, flows, list_clusters, run_spmd, teardown_cluster


@pytest.fixture(autouse=True)
def server_for_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the processes that a test starts the API server of this one."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())


#: Two of these meet: each says when it is about to create, and when it has used the cluster, and waits for the other.
MEETING = """
    import os, sys, time
    from pathlib import Path
    from prefect import flow
    from prefect_ipcluster import create_cluster, run_spmd, teardown_cluster

    me, folder = sys.argv[1], Path(sys.argv[2])

    def meet(what):
        (folder / f"{what}-{me}").touch()
        deadline = time.monotonic() + 60
        while len(list(folder.glob(f"{what}-*"))) < 2:
            assert time.monotonic() < deadline, what
            time.sleep(0.001)

    @flow
    def meeting():
        meet("create")
        handle = create_cluster("same", n=2)
        pids = sorted(run_spmd(handle, os.getpid))
        meet("used")
        print(handle.uid, pids, teardown_cluster(handle).outcome)

    meeting()
"""


def test_two_flows_that_create_one_name_at_once_share_one_cluster(tmp_path: Path) -> None:
    """Both use the same engines; the first teardown leaves it to the other."""
    with (
        steps.started_step(MEETING, "one", str(tmp_path)) as one,
        steps.started_step(MEETING, "two", str(tmp_path)) as two,
    ):
        lines = [process.communicate(timeout=90)[0].split() for process in (one, two)]

    assert [process.returncode for process in (one, two)] == [0, 0]
    assert lines[0][:-1] == lines[1][:-1]
    assert sorted(line[-1] for line in lines) == ["ended", "released"]
    assert steps.record_of("same").incarnation == 1


#: Dies when its record is in the store, and nothing has been started yet.
KILLED = """
    import os, signal
    from prefect import flow
    from ipcluster_core.launchers.local import LocalLauncher
    from prefect_ipcluster import create_cluster

    LocalLauncher.start = lambda self, boot, timeout: os.kill(os.getpid(), signal.SIGKILL)

    @flow
    def killed():
        create_cluster("half-made", n=1)

    killed()
"""


def die_between_record_and_launch() -> None:
    """Have a flow leave a half-made cluster."""
    with steps.started_step(KILLED) as process:
        assert process.wait(60) == -9
    assert steps.record_of("half-made").state is ClusterState.CREATING


def test_a_create_that_was_killed_half_way_is_cleaned_up_by_the_next() -> None:
    """Meanwhile it is listed as broken; the next flow gets a whole one."""
    die_between_record_and_launch()

    @flow
    def again() -> tuple[list[tuple[str, str]], int, int]:
        before = [(one.name, str(one.state)) for one in list_clusters()]
        handle = create_cluster("half-made", n=1)
        engines = len(run_spmd(handle, os.getpid))
        teardown_cluster(handle)
        return before, handle.incarnation, engines

    assert again() == ([("half-made", "broken")], 2, 1)


def test_a_create_that_was_killed_half_way_is_cleaned_up_by_the_reaper() -> None:
    """If nobody comes for it."""
    die_between_record_and_launch()
    reaped = flows.reap()

    assert [(one.name, one.outcome) for one in reaped] == [("half-made", "ended")]
    assert ClusterManager().get_sync("half-made").state is ClusterState.ENDED


@task(cache_policy=NO_CACHE)
def engines_of(cluster: ClusterHandle) -> int:
    """Use a cluster."""
    with Client.connect(cluster) as client:
        return len(client.run(os.getpid))


@pytest.mark.parametrize("given", ["handle", "name"])
def test_a_handle_is_a_parameter_of_a_deployment(given: str) -> None:
    """It goes to the server as JSON and comes back as a handle; a name stays one."""

    @flow(name="deployed")
    def deployed(cluster: str | ClusterHandle) -> tuple[str, int]:
        return type(cluster).__name__, engines_of(connect_cluster(cluster))

    handle = flows.create("given", n=2)
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(deployed), "parameterised")
        sent = {"cluster": handle.model_dump() if given == "handle" else handle.name}
        run = client.create_flow_run_from_deployment(deployment, parameters=sent, state=Pending())
        run = client.read_flow_run(run.id)
    result: Any = run_flow(deployed, flow_run=run)
    flows.teardown("given")

    assert result == ("ClusterHandle" if given == "handle" else "str", 2)


def test_nothing_is_taken_from_a_cache_where_caching_is_forced_on() -> None:
    """Results are persisted by default, and the flow is retried: each attempt asks for the cluster anew."""
    handles: list[ClusterHandle] = []
    outcomes: list[str] = []

    @flow(retries=1, persist_result=True)
    def cached() -> None:
        handles.append(create_cluster.with_options(persist_result=True)("cached", n=0, if_exists="replace"))
        outcomes.append(teardown_cluster.with_options(persist_result=True)(handles[-1]).outcome)
        if len(handles) == 1:
            raise RuntimeError("the first time")

    with temporary_settings({PREFECT_RESULTS_PERSIST_BY_DEFAULT: True}):
        cached()

    assert [handle.incarnation for handle in handles] == [1, 2]
    assert outcomes == ["ended", "ended"]


def test_a_deployment_that_is_run_again_finds_the_cluster_of_its_run() -> None:
    """A run that Prefect starts again, after an eviction for example, has the same name and claim."""

    @flow(name="evicted")
    def evicted() -> ClusterHandle:
        return create_cluster(n=0)

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(evicted), "evicted")
        run = client.create_flow_run_from_deployment(deployment)
        handles = []
        for _ in range(2):
            client.set_flow_run_state(run.id, Pending(), force=True)
            result: Any = run_flow(evicted, flow_run=client.read_flow_run(run.id))
            handles.append(result)

    assert handles[0] == handles[1]
    assert list(steps.record_of(handles[0].name).claims) == [f"prefect-{run.id}"]
    ClusterManager().teardown_sync(handles[0].name, force=True)
