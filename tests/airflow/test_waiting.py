"""Tasks and sensors that wait for a cluster, here and in the triggerer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import DAG
from airflow.triggers.base import TriggerEvent

import steps
from airflow_ipcluster import (
    ClusterEndedSensor,
    ClusterReadySensor,
    RestartEnginesOperator,
    ScaleClusterOperator,
    WaitForClusterOperator,
)
from airflow_ipcluster.hooks import AnyCluster, ClusterHook
from airflow_ipcluster.operators import waiting
from airflow_ipcluster.triggers import ClusterTrigger
from airflow_ipcluster.watching import Look, Seen, Wanted, look
from ipcluster_core import Cluster, ClusterManager
from runs import RunDag, XComs, states


@contextmanager
def created_meanwhile(name: str, after: threading.Event) -> Iterator[None]:
    """Create a cluster when something has happened, and end it behind the block."""

    def create() -> None:
        assert after.wait(60)
        Cluster.create_sync(name, n=1)

    thread = threading.Thread(target=create)
    thread.start()
    yield
    thread.join()
    ClusterManager().teardown_sync(name)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tell when somebody has looked for the first time."""
    event = threading.Event()

    def noted(*args: Any, **kwargs: Any) -> Look:
        found = look(*args, **kwargs)
        event.set()
        return found

    for module in ("operators.waiting", "sensors", "triggers"):
        monkeypatch.setattr(f"airflow_ipcluster.{module}.look", noted)
    return event


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_waits_for_a_cluster_that_somebody_else_creates(
    run_dag: RunDag, xcoms: XComs, looked: threading.Event, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """By its name; the handle is the result, as if the task had created it."""
    monkeypatch.setattr(waiting, "SYNC_SECONDS", 0.0)
    with created_meanwhile("later", looked), DAG(f"waiting_{deferrable}") as dag:
        WaitForClusterOperator(task_id="wait", cluster="later", deferrable=deferrable, poll_interval=0.1)
        run = run_dag(dag)
        handle = Cluster.connect_sync("later").handle.model_dump(mode="json")

    assert states(run) == {"wait": "success"}
    assert xcoms(run)["wait", "return_value"] == handle


@pytest.mark.parametrize("deferrable", [False, True])
def test_sensors_wait_for_a_beginning_and_an_end(
    run_dag: RunDag, xcoms: XComs, looked: threading.Event, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    """The end tells its reason; one of an earlier incarnation is no beginning."""
    Cluster.create_sync("seen", n=1).teardown_sync()
    looked_for_end = threading.Event()

    def noted(cluster: AnyCluster, wanted: Wanted, **kwargs: Any) -> Look:
        found = look(cluster, wanted, **kwargs)
        (looked if wanted is Wanted.READY else looked_for_end).set()
        return found

    for module in ("sensors", "triggers"):
        monkeypatch.setattr(f"airflow_ipcluster.{module}.look", noted)

    def end_when_looked_for() -> None:
        assert looked_for_end.wait(60)
        ClusterManager().teardown_sync("seen")

    with created_meanwhile("seen", looked), DAG(f"sensing_{deferrable}") as dag:
        ready = ClusterReadySensor(task_id="ready", cluster="seen", n=1, poke_interval=0.1, deferrable=deferrable)
        scale = ScaleClusterOperator(task_id="scale", cluster=ready.output, n=0)
        ended = ClusterEndedSensor(task_id="ended", cluster="seen", poke_interval=0.1, deferrable=deferrable)
        ready >> scale >> ended
        thread = threading.Thread(target=end_when_looked_for)
        thread.start()
        run = run_dag(dag)
        thread.join()

    assert set(states(run).values()) == {"success"}
    assert xcoms(run)["ready", "return_value"]["incarnation"] == 2
    assert xcoms(run)["ended", "return_value"].startswith("cluster 'seen' #2 is ended: torn down")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_wait_that_is_over_says_what_it_has_seen(
    run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    """The deadline holds in the triggerer too; a sensor may be skipped for it."""
    monkeypatch.setattr(waiting, "SYNC_SECONDS", 0.0)
    options: dict[str, Any] = {"cluster": "nobody", "deferrable": deferrable, "timeout": 0.3}
    with DAG(f"late_{deferrable}") as dag:
        WaitForClusterOperator(task_id="wait", poll_interval=0.1, **options)
        ClusterReadySensor(task_id="sense", poke_interval=0.1, **options)
        ClusterReadySensor(task_id="skip", poke_interval=0.1, soft_fail=True, **options)
    run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert states(run) == {"wait": "failed", "sense": "failed", "skip": "skipped"}
    assert "not ready within 0.3 s: there is no cluster 'nobody'" in log


@pytest.mark.parametrize("deferrable", [False, True])
def test_nobody_waits_for_what_will_not_come(
    run_dag: RunDag, capfd: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    """A handle is of one incarnation, whose end is for good; more engines than there will be are none either."""
    ended = Cluster.create_sync("ended", n=1)
    ended.teardown_sync()
    with Cluster("small", n=1), DAG(f"vain_{deferrable}") as dag:
        options: dict[str, Any] = {"deferrable": deferrable, "timeout": 600.0}
        WaitForClusterOperator(task_id="over", cluster=ended.handle.model_dump(), **options)
        WaitForClusterOperator(task_id="many", cluster="small", n=2, **options)
        ClusterReadySensor(task_id="sensed", cluster=ended.handle.model_dump_json(), **options)
        run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert set(states(run).values()) == {"failed"}
    assert log.count("waits for what will not come") >= 3
    assert "'ended' #1 ended" in log
    assert "1 of 2 engines of cluster 'small' #1 are up, and no more than 1 can be" in log


def test_a_scale_that_takes_long_is_left_to_the_triggerer(
    run_dag: RunDag, xcoms: XComs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its result is the same; without a wait it returns at once."""
    monkeypatch.setattr(waiting, "SYNC_SECONDS", -1.0)
    with Cluster("growing", n=1, start_method="spawn") as cluster, DAG("growing") as dag:
        options: dict[str, Any] = {"cluster": "growing", "poll_interval": 0.1, "deferrable": True}
        wide = ScaleClusterOperator(task_id="wide", n=2, **options)
        wide >> ScaleClusterOperator(task_id="quick", n="{{ 3 }}", wait=False, **options)
        pushed = xcoms(run_dag(dag))
        handle = cluster.handle.model_dump(mode="json")
        assert cluster.wait_sync(3) == 3

    assert pushed["wide", "return_value"] == pushed["quick", "return_value"] == handle
    assert "the triggerer waits on" in "".join(capfd.readouterr())


def test_engines_are_restarted_under_their_ids(run_dag: RunDag, xcoms: XComs) -> None:
    """One, or all."""
    with Cluster("anew", n=2) as cluster, DAG("anew") as dag:
        before = {engine.id: engine.pid for engine in cluster.status_sync().engines}
        RestartEnginesOperator(task_id="one", cluster="anew", engines=[1])
        run = run_dag(dag)
        after = {engine.id: engine.pid for engine in cluster.status_sync().engines}

        assert xcoms(run)["one", "return_value"] == cluster.handle.model_dump(mode="json")
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_a_wait_without_a_limit_in_time_is_refused() -> None:
    """When the DAG is parsed."""
    with pytest.raises(ValueError, match="timeout and poll_interval of task 'wait' are seconds, not 0"):
        WaitForClusterOperator(task_id="wait", cluster="any", timeout=0)


def test_a_start_from_the_trigger_needs_arguments_that_are_known_without_a_worker() -> None:
    """A name, a handle or a template; not what another task returns. Told when the DAG is parsed."""
    options: dict[str, Any] = {"deferrable": True, "start_from_trigger": True, "timeout": 60, "poke_interval": 2}
    with DAG("unattended"):
        sensor = ClusterReadySensor(task_id="ready", cluster="nightly-{{ ds }}", n=3, **options)
        with pytest.raises(TypeError, match="cluster of task 'ended' is what another task returns"):
            ClusterEndedSensor(task_id="ended", cluster=sensor.output, **options)
        with pytest.raises(ValueError, match="task 'here' starts from its trigger only with deferrable=True"):
            ClusterEndedSensor(task_id="here", cluster="nightly", **{**options, "deferrable": False})
    start = sensor.start_trigger_args
    assert sensor.start_from_trigger
    assert start is not None

    made = ClusterTrigger(**(start.trigger_kwargs or {}))

    assert f"{ClusterTrigger.__module__}.{ClusterTrigger.__qualname__}" == start.trigger_cls
    assert (made.cluster, made.wanted, made.n, made.deadline) == ("nightly-{{ ds }}", Wanted.READY, 3, None)
    assert getattr(sensor, start.next_method)
    assert start.timeout == timedelta(seconds=60)


@pytest.mark.parametrize("known", [True, False])
def test_a_trigger_without_a_worker_finds_the_store_by_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """That of the default id need not exist."""
    store = f"file:{tmp_path}/other"
    if known:
        monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "ipcluster", "host": store}))
    name = "other" if known else ClusterHook.default_conn_name
    with Cluster("there", n=1, store=store if known else None) as cluster:
        made = trigger("there", ipcluster_conn_id=name, n="1")
        assert asyncio.run(fire(made))["handle"] == cluster.handle.model_dump(mode="json")


def test_a_trigger_whose_connection_does_not_exist_fails() -> None:
    """There is nothing to wait for."""
    with pytest.raises(AirflowNotFoundException, match="missing"):
        asyncio.run(fire(trigger("there", ipcluster_conn_id="missing")))


def trigger(cluster: AnyCluster, wanted: str = "ready", seconds: float = 30.0, **kwargs: Any) -> ClusterTrigger:
    """Make a trigger as the triggerer does: from what another one has said of itself."""
    made = ClusterTrigger(cluster, wanted, deadline=time.time() + seconds, poll_interval=0.05, **kwargs)
    path, arguments = made.serialize()

    assert path == "airflow_ipcluster.triggers.ClusterTrigger"
    return ClusterTrigger(**arguments)


async def fire(one: ClusterTrigger) -> dict[str, Any]:
    """Return a trigger's event."""
    events = [event async for event in one.run()]
    assert len(events) == 1
    assert isinstance(events[0], TriggerEvent)
    payload: dict[str, Any] = events[0].payload
    return payload


def test_triggers_hold_the_loop_of_the_triggerer_up_for_no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when a store takes long to answer: they look in threads."""
    slow = threading.Event()

    def look_slowly(*args: Any, **kwargs: Any) -> Look:
        assert slow.wait(30)
        return look(*args, **kwargs)

    monkeypatch.setattr("airflow_ipcluster.triggers.look", look_slowly)

    async def both() -> dict[str, Any]:
        waiting_one = asyncio.ensure_future(fire(trigger("nobody", seconds=0.0)))
        for _ in range(5):
            await asyncio.sleep(0)  # the loop goes round
        assert not waiting_one.done()
        slow.set()
        return await waiting_one

    assert asyncio.run(both())["seen"] == "timeout"


def test_a_trigger_that_goes_on_elsewhere_keeps_its_deadline() -> None:
    """A triggerer that is started again makes it from the same arguments."""
    first = trigger("nobody", seconds=0.4)
    _, arguments = first.serialize()
    event = asyncio.run(fire(ClusterTrigger(**arguments)))

    assert event["seen"] == "timeout"
    assert arguments["deadline"] == first.deadline


def test_a_trigger_that_is_left_over_leaves_the_cluster_alone() -> None:
    """As after a clear: it is cancelled in the middle of its wait, or fires for nobody."""
    with Cluster("cleared", n=1) as cluster:
        handle = cluster.handle.model_dump(mode="json")

        async def cancelled() -> None:
            task = asyncio.ensure_future(fire(trigger(handle, "ended")))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancelled())
        assert asyncio.run(fire(trigger(handle)))["handle"] == handle
        assert cluster.status_sync().up == 1


def test_a_look_at_a_store_that_cannot_be_reached_is_no_end(tmp_path: Path) -> None:
    """It may come back before the deadline."""
    (tmp_path / "file").touch()
    found = look("any", Wanted.ENDED, store=f"file:{tmp_path}/file/store")

    assert found.seen is Seen.NOT_YET


def test_a_broken_cluster_has_ended() -> None:
    """Its processes are gone, whoever cleans up."""
    cluster = Cluster.create_sync("killed", n=1)
    handle = cluster.handle.model_dump(mode="json")

    os.kill(steps.part("killed", "nanny"), signal.SIGKILL)
    steps.wait_until(lambda: look(handle, Wanted.ENDED).seen is Seen.ENDED, 30)
    cluster.teardown_sync()

    assert look(handle, Wanted.READY).seen is Seen.FAILED
    assert look("killed", Wanted.READY).seen is Seen.NOT_YET
    Cluster.create_sync("killed", n=1)
    assert "is over; now there is #2" in look(handle, Wanted.ENDED).message
    ClusterManager().teardown_sync("killed")
