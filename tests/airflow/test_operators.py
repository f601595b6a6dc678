"""The operators in DAGs that run in this process, on real clusters."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, TaskGroup, task, task_group

import steps
from airflow_ipcluster import (
    ClusterHook,
    CreateClusterOperator,
    RunOnClusterOperator,
    ScaleClusterOperator,
    TeardownClusterOperator,
    cluster,
)
from airflow_ipcluster.operators.base import ClusterOperator
from ipcluster_core import Cluster, ClusterManager, ClusterState, TeardownReport, open_store
from runs import RunDag, XComs, states

if TYPE_CHECKING:
    from airflow.sdk import Context


def assert_only_an_ended_record_is_left(name: str) -> None:
    """Check processes, secret and folder of a cluster; sockets and logs are in the folder."""
    record = steps.record_of(name)

    assert record.state is ClusterState.ENDED
    assert not steps.living(name)
    assert not Path(record.folder).exists()
    assert list(open_store().keys("record")) == [name]
    assert not list(open_store().keys("secret"))


def scaled(value: int, factor: int = 1) -> int:
    """Work for an engine."""
    return value * factor


def engine_pid() -> int:
    """Work for an engine."""
    return os.getpid()


def fail(item: int = 0) -> None:
    """Work for an engine that does not succeed."""
    raise ValueError(f"no luck with {item}")


def test_a_cluster_is_created_used_resized_and_ended(run_dag: RunDag, xcoms: XComs) -> None:
    """The main job; each kind of work gives its results in the order and shape that is promised."""
    with DAG("whole") as dag:
        create = CreateClusterOperator(task_id="create", n=1)
        with create.teardown(task_id="teardown"):
            cluster = {"cluster": create.output}
            one = RunOnClusterOperator(
                task_id="one", **cluster, python_callable=scaled, op_args=[3], op_kwargs={"factor": 5}
            )
            scale = ScaleClusterOperator(task_id="scale", **cluster, n=3)
            over = RunOnClusterOperator(
                task_id="over", cluster=scale.output, python_callable=scaled, map_over=range(20), op_args=[10]
            )
            each = RunOnClusterOperator(task_id="each", **cluster, python_callable=engine_pid, mode="all")
            one >> scale >> over >> each
    run = run_dag(dag)
    pushed = xcoms(run)
    handle = pushed["create", "return_value"]

    assert set(states(run).values()) == {"success"}
    assert pushed["one", "return_value"] == 15
    assert pushed["over", "return_value"] == [10 * item for item in range(20)]
    assert sorted(pushed["each", "return_value"]) == ["0", "1", "2"]
    assert len(set(pushed["each", "return_value"].values())) == 3
    assert pushed["scale", "return_value"] == handle
    assert pushed["teardown", "return_value"]["outcome"] == "ended"
    assert handle["name"].startswith("airflow-whole-")
    assert_only_an_ended_record_is_left(handle["name"])


def test_a_mapped_group_of_tasks_has_a_cluster_for_each_element(run_dag: RunDag, xcoms: XComs) -> None:
    """Arguments come from the mapping, names differ, and each cluster has its own teardown."""

    @task_group
    def one(size: int) -> None:
        create = CreateClusterOperator(task_id="create", n=size)
        with create.teardown():
            RunOnClusterOperator(task_id="each", cluster=create.output, python_callable=engine_pid, mode="all")

    with DAG("sweep") as dag:
        one.expand(size=[1, 2])
    run = run_dag(dag)

    pushed = xcoms(run)

    assert {ti.state for ti in run.get_task_instances()} == {"success"}
    assert [len(value) for value in pushed["one.each", "return_value"]] == [1, 2]
    assert len({handle["name"] for handle in pushed["one.create", "return_value"]}) == 2
    assert [end["outcome"] for end in pushed["one.create_teardown", "return_value"]] == ["ended", "ended"]


def test_the_handle_is_plain_and_small_and_no_secret_leaves_the_store(
    run_dag: RunDag, xcoms: XComs, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither what tasks push nor what they log holds it, and the cluster can be found by its run."""
    seen: dict[str, Any] = {}

    @task
    def look(handle: dict[str, Any]) -> None:
        seen["type"] = type(handle)
        seen["secret"] = steps.secret_of(handle["name"])
        seen["found"] = ClusterManager().list_sync(
            labels={"airflow-dag": "secrets", "airflow-task": "create", "colour": "blue"}
        )

    with DAG("secrets") as dag:
        create = CreateClusterOperator(task_id="create", n=1, labels={"colour": "{{ 'blue' }}"})
        with create.teardown():
            work = RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=engine_pid)
            work >> look(create.output)
    run = run_dag(dag)
    [found] = seen["found"]
    pushed = xcoms(run)

    assert seen["type"] is dict
    assert set(pushed["create", "return_value"]) == {
        "schema", "name", "incarnation", "uid", "store", "backend", "launcher", "created",
    }  # fmt: skip
    assert len(str(pushed["create", "return_value"])) < 1024
    assert len(seen["secret"]) >= 32
    assert seen["secret"] not in str(pushed)
    assert seen["secret"] not in "".join(capfd.readouterr())
    assert found.labels["airflow-run"] == run.run_id
    assert found.claims == (f"airflow/secrets/{run.run_id}",)
    assert found.ends == "idle 1800 s, lifetime 86400 s"


def test_a_failing_task_fails_the_run_and_leaves_nothing(
    run_dag: RunDag, xcoms: XComs, capfd: pytest.CaptureFixture[str]
) -> None:
    """The teardown runs all the same; the log shows the remote traceback and which call failed."""
    with DAG("failing") as dag:
        create = CreateClusterOperator(task_id="create", n=2)
        with create.teardown(task_id="teardown"):
            work = RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=fail, map_over=[7])
            work >> RunOnClusterOperator(task_id="later", cluster=create.output, python_callable=engine_pid)
    run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert states(run) == {
        "create": "success",
        "work": "failed",
        "later": "upstream_failed",
        "teardown": "success",
        "teardown_done": "success",
    }
    assert run.state == "failed"
    assert "call 1 of 1 failed" in log
    assert "ValueError: no luck with 7" in log
    assert_only_an_ended_record_is_left(xcoms(run)["create", "return_value"]["name"])


def test_a_task_that_kills_its_engine_fails_and_leaves_nothing(run_dag: RunDag, xcoms: XComs) -> None:
    """An engine's death is an error of the task that it ran."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with DAG("deadly") as dag:
        create = CreateClusterOperator(task_id="create", n=1)
        with create.teardown(task_id="teardown"):
            RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=die)
    run = run_dag(dag)

    assert states(run) == {"create": "success", "work": "failed", "teardown": "success", "teardown_done": "success"}
    assert_only_an_ended_record_is_left(xcoms(run)["create", "return_value"]["name"])


def test_a_create_that_fails_leaves_nothing(run_dag: RunDag) -> None:
    """Airflow runs no teardown for it."""
    with DAG("unmade") as dag:
        create = CreateClusterOperator(task_id="create", name="unmade", spec={"python": "/no/such/python"})
        create.teardown(task_id="teardown")
    run = run_dag(dag)

    assert states(run) == {"create": "failed", "teardown": "upstream_failed", "teardown_done": "upstream_failed"}
    assert_only_an_ended_record_is_left("unmade")


def test_a_create_that_fails_after_it_has_made_the_cluster_ends_it(
    run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else knows of the cluster then."""

    def lose_the_database(self: ClusterManager, name: str) -> None:
        raise OSError(f"cannot look at {name}")

    monkeypatch.setattr(ClusterManager, "get_sync", lose_the_database)
    with DAG("halfway") as dag:
        CreateClusterOperator(task_id="create", name="halfway", n=1)
    run = run_dag(dag)

    assert states(run) == {"create": "failed"}
    assert_only_an_ended_record_is_left("halfway")


def test_a_teardown_that_fails_fails_the_run(run_dag: RunDag, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is left behind is not to be overlooked, although the work was a success."""

    def leave_something(self: ClusterManager, cluster: dict[str, Any], **_: Any) -> TeardownReport:
        return TeardownReport(cluster["name"], "ended", "", ("process 7 on host",))

    with DAG("leaving") as dag:
        create = CreateClusterOperator(task_id="create", name="leaving", n=1)
        with TaskGroup("group"), create.teardown(task_id="teardown", retries=0):
            RunOnClusterOperator(task_id="work", cluster=create.output, python_callable=engine_pid)
    with monkeypatch.context() as patched:
        patched.setattr(ClusterManager, "teardown_sync", leave_something)
        run = run_dag(dag)
    ClusterManager().teardown_sync("leaving", force=True)

    assert states(run) == {
        "create": "success",
        "group.work": "success",
        "group.teardown": "failed",
        "group_teardown_done": "upstream_failed",
    }
    assert run.state == "failed"


def test_teardown_is_repeatable_and_a_cluster_never_made_is_a_success(
    run_dag: RunDag, xcoms: XComs, capfd: pytest.CaptureFixture[str]
) -> None:
    """By handle or by name; whoever does not want that of a name can have an error."""
    cluster = Cluster.create_sync("twice", n=1)
    with DAG("teardowns") as dag:
        first = TeardownClusterOperator(task_id="first", cluster="twice")
        second = TeardownClusterOperator(task_id="second", cluster=cluster.handle.model_dump())
        third = TeardownClusterOperator(task_id="third", cluster="never-made")
        fourth = TeardownClusterOperator(task_id="fourth", cluster="never-made", missing_ok=False, retries=0)
        first >> second >> third >> fourth
    run = run_dag(dag)
    pushed = xcoms(run)

    assert [pushed[name, "return_value"]["outcome"] for name in ("first", "second", "third")] == [
        "ended", "already gone", "never made",
    ]  # fmt: skip
    assert "there is no cluster 'never-made'" in pushed["third", "return_value"]["message"]
    assert "nothing to end" in "".join(capfd.readouterr())
    assert states(run)["fourth"] == "failed"


def test_teardown_leaves_a_cluster_to_others_that_use_it(run_dag: RunDag, xcoms: XComs) -> None:
    """A run attaches to the cluster of somebody else, uses it, and gives up its own claim only; force ends it."""
    Cluster.create_sync("shared", n=1, claim="somebody")

    def sharing(dag_id: str, *, force: bool) -> DAG:
        with DAG(dag_id) as dag:
            create = CreateClusterOperator(task_id="create", name="shared", n=5)
            with create.teardown(task_id="teardown", force=force):
                RunOnClusterOperator(task_id="each", cluster="shared", python_callable=engine_pid, mode="all")
        return dag

    released = xcoms(run_dag(sharing("sharing", force=False)))
    assert released["teardown", "return_value"]["outcome"] == "released"
    assert released["teardown", "return_value"]["message"].endswith("lives on for: somebody")
    assert len(released["each", "return_value"]) == 1
    assert ClusterManager().get_sync("shared").claims == ("somebody",)

    ended = xcoms(run_dag(sharing("forcing", force=True)))
    assert ended["teardown", "return_value"]["outcome"] == "ended"
    assert "in use by: somebody" in ended["teardown", "return_value"]["message"]


def test_a_late_teardown_leaves_a_claim_that_was_taken_again(run_dag: RunDag, xcoms: XComs) -> None:
    """An earlier try's teardown has the handle of the same incarnation, and an older counter."""
    cluster = Cluster.create_sync("again", n=1, claim="run")
    Cluster.create_sync("again", if_exists="attach", claim="run")
    with DAG("late") as dag:
        TeardownClusterOperator(task_id="late", cluster=cluster.handle.model_dump(), claim="run", counter=1)
    outcome = xcoms(run_dag(dag))["late", "return_value"]["outcome"]

    assert outcome == "released"
    assert ClusterManager().get_sync("again").state is ClusterState.RUNNING
    assert ClusterManager().teardown_sync("again", claim="run", counter=2).outcome == "ended"


def test_work_on_a_cluster_that_is_over_says_what_to_clear(run_dag: RunDag, capfd: pytest.CaptureFixture[str]) -> None:
    """Clearing a task by itself does not clear its setup."""
    cluster = Cluster.create_sync("over", n=1)
    cluster.teardown_sync()
    with DAG("over") as dag:
        RunOnClusterOperator(task_id="work", cluster=cluster.handle.model_dump(), python_callable=engine_pid)
        ScaleClusterOperator(task_id="scale", cluster="over", n=2)
    run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert set(states(run).values()) == {"failed"}
    assert "'over' #1 ended" in log
    assert "To run task 'work' again, clear the task that creates its cluster with downstream." in log
    assert "To run task 'scale' again" in log


@dataclasses.dataclass
class Measurement:
    """What Airflow pushes, and cannot pull."""

    value: float


def test_results_that_another_task_could_not_read_fail_the_task(
    run_dag: RunDag, xcoms: XComs, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error comes where the value does; without XCom any value will do."""

    def measure() -> Measurement:
        return Measurement(1.5)

    with Cluster("measuring", n=1), DAG("measuring") as dag:
        RunOnClusterOperator(task_id="pushed", cluster="measuring", python_callable=measure)
        RunOnClusterOperator(task_id="kept", cluster="measuring", python_callable=measure, do_xcom_push=False)
        RunOnClusterOperator(task_id="bytes", cluster="measuring", python_callable=bytes, op_args=[3])
        run = run_dag(dag)
    log = "".join(capfd.readouterr())

    assert states(run) == {"pushed": "failed", "kept": "success", "bytes": "failed"}
    assert not [key for key in xcoms(run) if not key[1].startswith("_link")]
    assert "the result of task 'pushed' (Measurement) cannot go through XCom" in log


def test_work_that_takes_too_long_is_given_up(run_dag: RunDag, capfd: pytest.CaptureFixture[str]) -> None:
    """By the timeout of the operator or by that of any task; what no engine has begun is cancelled."""

    def wait_long(seconds: float) -> None:
        import time

        time.sleep(seconds)

    with Cluster("slow", n=1) as cluster, DAG("slow") as dag:
        options: dict[str, Any] = {"cluster": "slow", "python_callable": wait_long, "map_over": [0] + 9 * [60]}
        own = RunOnClusterOperator(task_id="own", timeout=0.5, **options)
        any_ = RunOnClusterOperator(
            task_id="any", execution_timeout=timedelta(seconds=0.5), trigger_rule="all_done", **options
        )
        own >> any_
        run = run_dag(dag)
        tasks = cluster.status_sync().tasks

    assert states(run) == {"own": "failed", "any": "failed"}
    assert tasks["queued"] == 0
    assert "9 of 10 results of cluster 'slow' did not come within 0.5 s" in "".join(capfd.readouterr())


def test_a_create_that_must_be_first_attaches_to_what_an_earlier_try_of_it_has_made(run_dag: RunDag) -> None:
    """Whoever else has made it, that is a failure, and the cluster of the other lives on."""
    with DAG("first") as dag:
        CreateClusterOperator(task_id="create", name="first", n=1, if_exists="fail")
    run = run_dag(dag)
    [made] = ClusterManager().list_sync()
    again = run_dag(dag)  # another run

    assert states(run) == {"create": "success"}
    assert states(again) == {"create": "failed"}
    assert ClusterManager().list_sync() == [made]

    operator = CreateClusterOperator(task_id="create", name="first", if_exists="fail", claim="second try")
    own = {name: made.labels[name] for name in ("airflow-dag", "airflow-run", "airflow-task")}
    attached = operator._create(ClusterHook(), "first", own, {})

    assert not attached.made_here
    ClusterManager().teardown_sync("first", force=True)


def test_a_create_without_a_claim_that_fails_leaves_a_cluster_that_it_only_attached_to(
    run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attaching never ends."""

    def lose_the_database(self: ClusterManager, name: str) -> None:
        raise OSError(f"cannot look at {name}")

    with Cluster("theirs", n=1) as cluster, DAG("attaching") as dag:
        CreateClusterOperator(task_id="create", name="theirs", claim=None)
        with monkeypatch.context() as patched:
            patched.setattr(ClusterManager, "get_sync", lose_the_database)
            run = run_dag(dag)

        assert states(run) == {"create": "failed"}
        assert cluster.status_sync().up == 1


def test_a_connection_gives_the_defaults_of_clusters_and_a_task_may_say_otherwise(
    run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    """What a task says itself is first, then its spec, then the connection."""
    extra = {"spec": '{"n": 2, "lifetime": 600, "idle_timeout": 60}'}
    connection = {"conn_type": "ipcluster", "host": store_url, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_IPCLUSTER_DEFAULT", json.dumps(connection))
    with DAG("defaults") as dag:
        CreateClusterOperator(task_id="plain", name="plain")
        CreateClusterOperator(task_id="own", name="own", n=1, lifetime=None, spec={"idle_timeout": 90})
    run_dag(dag)
    found = {summary.name: (summary.engines, summary.ends) for summary in ClusterManager().list_sync()}
    for name in found:
        ClusterManager().teardown_sync(name, force=True)

    assert found == {"plain": (2, "idle 60 s, lifetime 600 s"), "own": (1, "idle 90 s")}


def test_a_scope_makes_the_two_tasks_around_its_block(run_dag: RunDag, xcoms: XComs) -> None:
    """Its handle is what tasks take; the teardown runs when work fails."""
    with DAG("scoped") as dag, cluster("scoped", n=1, task_id="study") as scope:
        RunOnClusterOperator(task_id="work", cluster=scope.handle, python_callable=fail)
    run = run_dag(dag)

    assert states(run) == {
        "study": "success", "work": "failed", "study_teardown": "success", "study_teardown_done": "success",
    }  # fmt: skip
    assert xcoms(run)["study_teardown", "return_value"]["outcome"] == "ended"
    assert scope.teardown.is_teardown
    assert_only_an_ended_record_is_left("scoped")


def test_a_teardown_of_nothing_is_a_success(run_dag: RunDag, xcoms: XComs) -> None:
    """As when the task that creates it was skipped; and of a handle as JSON."""
    with DAG("nothing") as dag:
        none = TeardownClusterOperator(task_id="none", cluster="{{ ti.xcom_pull(task_ids='nobody') }}")
        none.cluster = None
        TeardownClusterOperator(task_id="json", cluster=handle_of_nobody(), missing_ok=True)
    pushed = xcoms(run_dag(dag))

    assert pushed["none", "return_value"]["outcome"] == "never made"
    assert pushed["json", "return_value"]["name"] == "nobody"


def handle_of_nobody() -> str:
    """Return the handle of a cluster that is not there."""
    fields = {"name": "nobody", "uid": "u", "store": open_store().url, "backend": "native", "launcher": "local"}
    return json.dumps({"schema": 1, "incarnation": 1, "created": "2026-01-01T00:00:00Z", **fields})


class Killed(ClusterOperator):
    """Is killed in one of its methods."""

    def __init__(self, *, where: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.happened: list[str] = []

    def prepare(self) -> None:
        """Talk."""
        self.enter("prepare")

    def work(self, hook: ClusterHook, context: Context) -> None:
        """Work."""
        self.enter("work")

    def announce(self, context: Context) -> None:
        """Talk."""
        self.enter("announce")

    def undo(self) -> None:
        """Clean up."""
        self.enter("undo")

    def enter(self, method: str) -> None:
        """Note what happens, if nothing interrupts it."""
        if method == self.where:
            self.on_kill()
        self.happened.append(method)


@pytest.mark.parametrize(
    ("where", "happened"),
    [
        ("prepare", ["prepare", "undo"]),
        ("work", ["prepare", "undo"]),
        ("announce", ["prepare", "work", "announce", "undo"]),
        ("nowhere", ["prepare", "work", "announce"]),
    ],
)
def test_a_killed_task_is_no_success_and_its_talk_with_airflow_is_not_interrupted(
    run_dag: RunDag, where: str, happened: list[str]
) -> None:
    """Work is interrupted; what asks Airflow is not, and the kill is remembered until it has the answer."""
    with DAG(f"killed_in_{where}") as dag:
        task = Killed(task_id="task", where=where)
    run = run_dag(dag)

    assert states(run) == {"task": "success" if where == "nowhere" else "failed"}
    assert task.happened == happened


def test_a_run_operator_refuses_what_it_cannot_do() -> None:
    """When the DAG is parsed, not when it runs."""
    options: dict[str, Any] = {"task_id": "work", "cluster": "any"}

    with pytest.raises(TypeError, match="of task 'work' cannot be called, and is no 'module:function': 3"):
        RunOnClusterOperator(**options, python_callable=3)
    with pytest.raises(ValueError, match="'one' or 'all', not 'some'"):
        RunOnClusterOperator(**options, python_callable=fail, mode="some")
    with pytest.raises(ValueError, match="on each engine or over items, not both"):
        RunOnClusterOperator(**options, python_callable=fail, mode="all", map_over=[1])
