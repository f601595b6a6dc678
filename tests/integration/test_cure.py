"""What is broken is seen and cured: records that cannot be read, processes without one, secrets that are damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterState, errors, open_store
from ipcluster_core.incarnation import MARK, make_folder
from ipcluster_core.process import STORE_VARIABLE, TAG_VARIABLE, identify
from ipcluster_core.segments import folder_of
from ipcluster_core.strays import find_strays

#: Long after any incarnation has parted.
LATER = 4e9


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two engines."""
    made = Cluster.create_sync("sick", n=2)
    yield made
    ClusterManager().teardown_sync("sick", force=True)


@pytest.fixture
def stranger() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes with a tag and a store in their environment; they are killed at the end."""
    started = []

    def start(tag: str, store: str) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(["sleep", "1000"], env={**os.environ, TAG_VARIABLE: tag, STORE_VARIABLE: store})
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def document_of(name: str) -> Path:
    """Return the file of a record."""
    (path,) = (path for path in (steps.store_folder() / "records" / name).rglob("*") if path.is_file())
    return path


def rewrite(name: str, **changes: object) -> None:
    """Change a record behind everybody's back."""
    path = document_of(name)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DAMAGES: dict[str, Callable[[], object]] = {
    "half written": lambda: document_of("sick").write_text('{"schema": 1, "na'),
    "empty": lambda: document_of("sick").write_text(""),
    "no file": lambda: document_of("sick").unlink(),
    "wrong type": lambda: rewrite("sick", jobs=7),
    "newer schema": lambda: rewrite("sick", schema=2, state="hovering"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_cannot_be_read_is_shown_and_teardown_ends_everything(cluster: Cluster, damage: str) -> None:
    """List says broken, create refuses and says what to do, teardown cures, create works again."""
    uid, living = cluster.handle.uid, set(steps.living("sick"))
    DAMAGES[damage]()

    (row,) = ClusterManager().list_sync()
    assert (row.name, row.state) == ("sick", ClusterState.BROKEN)
    assert ClusterManager().get_sync("sick").state is ClusterState.BROKEN
    with pytest.raises(errors.StoreDamaged, match="sick"):
        Cluster.create_sync("sick", n=1)
    report = ClusterManager().teardown_sync("sick")
    assert (report.outcome, report.leftovers, report.cured) == ("ended", (), True)
    assert report.message.startswith("the record of cluster 'sick' could not be read; ended pids ")
    assert all(str(pid) in report.message for pid in living)
    assert steps.living("sick") == []
    assert steps.left_in_store() == ["records/sick"]
    assert not Path(folder_of(uid)).exists()
    with pytest.raises(errors.ClusterEnded, match="torn down; its record could not be read"):
        Cluster.connect_sync("sick")
    assert ClusterManager().teardown_sync("sick").outcome == "already gone"
    with Cluster("sick", n=1) as again:
        assert again.handle.incarnation == 2
        with Client.connect("sick") as client:
            assert client.submit(abs, -1).result(10) == 1


def test_a_record_that_cannot_be_read_is_cured_through_the_cluster_object_too(cluster: Cluster) -> None:
    """It knows its incarnation, and touches no other."""
    document_of("sick").write_text("{")
    report = cluster.teardown_sync()

    assert (report.outcome, report.leftovers) == ("ended", ())
    assert steps.living("sick") == []
    assert steps.left_in_store() == ["records/sick"]


def test_an_old_handle_does_not_cure_a_newer_incarnation(cluster: Cluster) -> None:
    """Though nobody can read whose record it is."""
    old = cluster.handle
    new = Cluster.create_sync("sick", n=1, if_exists="replace")
    document_of("sick").write_text("{")
    report = ClusterManager().teardown_sync(old)

    assert report.outcome == "already gone"
    assert len(steps.living("sick")) == 4
    assert ClusterManager().list_sync()[0].state is ClusterState.BROKEN
    assert ClusterManager().teardown_sync(new.handle).outcome == "ended"
    assert steps.living("sick") == []


def test_claims_that_can_be_read_protect_a_cluster_of_a_newer_version(cluster: Cluster) -> None:
    """Force ends it; a claim of one's own does not count."""
    rewrite("sick", schema=2, claims={"run-1": 1})

    with pytest.raises(errors.ClusterInUse, match=r"cannot be read by this version, is in use by: run-1; use force"):
        ClusterManager().teardown_sync("sick")
    assert len(steps.living("sick")) == 5
    assert ClusterManager().teardown_sync("sick", claim="run-1").outcome == "ended"


def test_a_cluster_whose_record_is_damaged_still_ends_by_itself_and_leaves_nothing() -> None:
    """Only the record stays, for a teardown to cure."""
    Cluster.create_sync("sick", n=1, idle_timeout=1.0)
    document_of("sick").write_text("{")

    steps.wait_until(lambda: not steps.living("sick"), 15)
    assert steps.left_in_store() == ["records/sick"]
    report = ClusterManager().teardown_sync("sick")
    assert report.message == "the record of cluster 'sick' could not be read; none of its processes was found"
    assert ClusterManager().list_sync() == []


def test_sigkill_of_the_nanny_of_a_cluster_with_a_damaged_record_leaves_nothing(cluster: Cluster) -> None:
    """The controller cannot write why, and ends the rest all the same."""
    nanny = steps.part("sick", "nanny")
    document_of("sick").write_text("{")
    os.kill(nanny, signal.SIGKILL)

    steps.wait_until(lambda: not steps.living("sick"), 15)
    steps.wait_until(lambda: steps.left_in_store() == ["records/sick"])


@pytest.mark.parametrize("content", ["{", '{"key": 7}', '{"key": "wrong"}', "[]"])
def test_a_damaged_secret_is_no_hindrance_to_a_teardown(cluster: Cluster, content: str) -> None:
    """Who connects is told; teardown ends everything and removes it."""
    (path,) = (path for path in (steps.store_folder() / "secrets").rglob("*") if path.is_file())
    path.write_text(content)

    with pytest.raises(errors.NotAuthorized, match="sick"):
        cluster.status_sync()
    assert ClusterManager().teardown_sync("sick").leftovers == ()
    assert steps.living("sick") == []
    assert steps.left_in_store() == ["records/sick"]


def test_processes_without_a_record_are_shown_and_ended(cluster: Cluster) -> None:
    """Somebody has removed the record by hand."""
    uid, living = cluster.handle.uid, sorted(steps.living("sick"))
    open_store().discard("record", "sick")

    (row,) = ClusterManager().list_sync()
    assert (row.name, row.state, row.incarnation) == ("sick", ClusterState.BROKEN, 1)
    assert row.reason == f"processes without a record: pids {', '.join(map(str, living))}"
    assert ClusterManager().get_sync("sick") == row
    done = steps.ctl("teardown", "sick")
    assert done.returncode == 0
    assert done.stdout.startswith("sick: ended (cluster 'sick' had processes without a record: pids ")
    assert steps.living("sick") == []
    assert steps.left_in_store() == ["records/sick"]
    assert not Path(folder_of(uid)).exists()
    assert ClusterManager().teardown_sync("sick").outcome == "already gone"


def test_processes_of_another_store_are_nobody_s_strays(stranger: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Neither listed, ended nor reaped, though their tag is the same; those of this store are, by any path to it."""
    link = steps.store_folder().with_name("link")
    link.symlink_to(steps.store_folder())
    other = stranger("odd/1/c0ffee", "file:/somewhere/else")
    silent = stranger("odd/1/c0ffee", "")
    mine = stranger("odd/1/c0ffee", f"file:{link}")
    steps.wait_until(lambda: ClusterManager().list_sync())

    assert [stray.pids for stray in find_strays(open_store())] == [(mine.pid,)]
    report = ClusterManager().teardown_sync("odd")
    assert str(mine.pid) in report.message
    assert mine.wait(5) == -signal.SIGTERM
    assert ClusterManager().reap_sync() == []
    assert (other.poll(), silent.poll()) == (None, None)


def test_processes_of_an_earlier_incarnation_are_ended_with_the_name(
    cluster: Cluster, stranger: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get some time to go before they are taken for strays; the record stays as it is."""
    left = stranger("sick/0/c0ffee", open_store().url)
    steps.wait_until(lambda: find_strays(open_store(), now=LATER))

    assert [row.state for row in ClusterManager().list_sync()] == [ClusterState.RUNNING]
    (stray,) = find_strays(open_store(), now=LATER)
    assert (stray.tag, stray.pids) == ("sick/0/c0ffee", (left.pid,))
    assert stray.reason == f"processes of #0, which is over: pids {left.pid}"
    monkeypatch.setattr("ipcluster_core.strays.PARTING_SECONDS", -1.0)
    report = ClusterManager().teardown_sync("sick")
    assert (report.outcome, report.cured) == ("ended", True)
    assert left.wait(5) == -signal.SIGTERM
    assert steps.record_of("sick").incarnation == 1


def test_a_secret_of_a_later_incarnation_with_the_same_number_is_kept(
    cluster: Cluster, stranger: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was emptied by hand, so the numbers began again while old processes lived."""
    left = stranger("sick/1/c0ffee", open_store().url)
    monkeypatch.setattr("ipcluster_core.strays.PARTING_SECONDS", -1.0)
    steps.wait_until(lambda: find_strays(open_store()))
    (result,) = ClusterManager().reap_sync()

    assert (result.name, result.incarnation, result.outcome) == ("sick", 1, "ended")
    assert left.wait(5) == -signal.SIGTERM
    assert cluster.status_sync().state is ClusterState.RUNNING


def test_a_cluster_that_another_host_may_run_is_not_cured_from_here() -> None:
    """Neither by reap; force does it, when that host is gone."""
    store = open_store()
    store.create("record", "far", {"schema": 1})
    folder = Path(store.run_folder("c0ffee"))
    make_folder(store, "far/4/c0ffee", str(folder))
    mark = folder / MARK
    mark.write_text(mark.read_text().replace(f"\n{os.uname().nodename}\n", "\nfaraway\n"))

    with pytest.raises(errors.ClusterBroken, match=r"its folder is of another host \(faraway\): tear it down there"):
        ClusterManager().teardown_sync("far")
    (result,) = ClusterManager().reap_sync()
    assert result.outcome.startswith("failed: the record of cluster 'far' cannot be read, and its folder is of another")
    assert folder.exists()
    assert ClusterManager().teardown_sync("far", force=True).outcome == "ended"
    assert not folder.exists()
    assert steps.record_of("far").incarnation == 4


def test_of_four_concurrent_teardowns_of_a_damaged_cluster_none_fails(cluster: Cluster) -> None:
    """It is gone once, and its record is one that can be read."""
    document_of("sick").write_text("{")
    code = "from ipcluster_core import ClusterManager; print(ClusterManager().teardown_sync('sick').outcome)"
    enders = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outcomes = [ender.communicate(timeout=60)[0].strip() for ender in enders]

    assert set(outcomes) <= {"ended", "already gone"}
    assert [ender.returncode for ender in enders] == [0, 0, 0, 0]
    assert steps.living("sick") == []
    assert steps.record_of("sick").state is ClusterState.ENDED


def test_a_stray_that_ignores_sigterm_is_killed() -> None:
    """After its grace."""
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    marks = {TAG_VARIABLE: "deaf/1/c0ffee", STORE_VARIABLE: open_store().url}
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **marks}, stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        assert ClusterManager().teardown_sync("deaf", timeout=2).leftovers == ()
        assert deaf.wait(5) == -signal.SIGKILL


def test_a_stranger_under_the_pid_in_a_damaged_record_lives_on(cluster: Cluster) -> None:
    """What is ended is found by its mark, never by a number."""
    cluster.teardown_sync()
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        nanny = {**identify(stranger.pid).to_dict()}
        rewrite(
            "sick", state="running", ended=None, jobs=[{"launcher": "local", "reference": {}, "nanny": nanny}], sets=3
        )
        assert ClusterManager().list_sync()[0].state is ClusterState.BROKEN

        assert ClusterManager().teardown_sync("sick", force=True).outcome == "ended"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_tasks_open_the_store_of_their_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever store the creator's environment named."""
    store = open_store().url
    with monkeypatch.context() as patch:
        patch.setenv("IPCLUSTER_STORE", "file:/nowhere")
        with Cluster("sick", n=1, store=store) as cluster, cluster.client() as client:
            assert client.submit(lambda: open_store().url).result(10) == store
            assert client.submit(lambda: ClusterManager().get_sync("sick").state).result(10) == ClusterState.RUNNING
