"""One name, one cluster: create, attach, replace, find again, end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, ClusterManager, ClusterState, errors, open_store, versions
from ipcluster_core.process import identify


def test_create_twice_with_attach_gives_one_cluster() -> None:
    """The second create finds the first one's cluster."""
    first = Cluster.create_sync("twice", n=1)
    second = Cluster.create_sync("twice", n=1, if_exists="attach")

    assert second.handle == first.handle
    assert (first.made_here, second.made_here) == (True, False)
    assert len([pid for pid in steps.living("twice") if "nanny" in _command(pid)]) == 4  # nanny, 2 parts, 1 engine
    first.teardown_sync()


def test_a_claim_that_is_taken_again_has_a_greater_counter_in_the_list() -> None:
    """Whoever looks before giving up a claim for somebody else passes the counter that was seen."""
    first = Cluster.create_sync("counted", n=1, claim="run")
    [before] = ClusterManager().list_sync()
    second = Cluster.create_sync("counted", if_exists="attach", claim="run")
    [after] = ClusterManager().list_sync()
    manager = ClusterManager()
    late = manager.teardown_sync("counted", claim="run", counter=before.counters["run"])

    assert (before.counters, after.counters) == ({"run": first.claim_counter}, {"run": second.claim_counter})
    assert late.outcome == "released"
    assert manager.teardown_sync("counted", claim="run", counter=after.counters["run"]).outcome == "ended"


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_create_of_a_living_name_is_refused_and_says_who_made_it() -> None:
    """The default of `if_exists` is to fail."""
    with Cluster("taken", n=1), pytest.raises(errors.ClusterExists, match=f"by pid {os.getpid()} on"):
        Cluster.create_sync("taken")


def test_replace_ends_the_old_cluster_first() -> None:
    """An old handle does not act on the new incarnation."""
    old = Cluster.create_sync("again", n=1)
    new = Cluster.create_sync("again", n=1, if_exists="replace")

    assert new.handle.incarnation == old.handle.incarnation + 1
    with pytest.raises(errors.StaleHandle, match="now belongs to #2"):
        Cluster.connect_sync(old.handle)
    assert old.teardown_sync().outcome == "already gone"
    assert new.status_sync().state is ClusterState.RUNNING
    new.teardown_sync()


CREATOR = """
    import sys
    from ipcluster_core import Cluster, errors
    sys.stdin.readline()
    try:
        print(Cluster.create_sync("race", n=1, if_exists=sys.argv[1]).handle.uid)
    except errors.ClusterExists:
        print("exists")
"""


def test_eight_concurrent_creators_make_one_cluster() -> None:
    """All creators of one name start at once: attachers get the winner's, the others are refused."""
    modes = ["attach", "fail"] * 4
    code = "\n".join(line[4:] for line in CREATOR.splitlines())
    creators = [
        subprocess.Popen([sys.executable, "-c", code, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for mode in modes
    ]
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("go\n")
        creator.stdin.flush()
    answers = [creator.communicate(timeout=60)[0].strip() for creator in creators]
    uid = steps.record_of("race").uid

    assert {answer for answer, mode in zip(answers, modes, strict=True) if mode == "attach"} == {uid}
    assert {answer for answer, mode in zip(answers, modes, strict=True) if mode == "fail"} <= {uid, "exists"}
    assert steps.record_of("race").incarnation == 1
    assert len(steps.living("race")) == 4
    assert ClusterManager().teardown_sync("race").outcome == "ended"


def test_any_form_of_the_handle_finds_the_cluster() -> None:
    """Name, handle, dict and JSON are the same."""
    with Cluster("forms", n=1) as cluster:
        handle = cluster.handle
        for form in ("forms", handle, handle.model_dump(), handle.model_dump_json()):
            assert Cluster.connect_sync(form).handle == handle
            with Client.connect(form) as client:
                assert client.submit(abs, -1).result(10) == 1


def test_a_cluster_outlives_any_death_of_its_creator() -> None:
    """SIGKILL of the creator, and of its whole session, changes nothing."""
    code = """
        import os
        from ipcluster_core import Cluster
        print(Cluster.create_sync("orphan", n=1).handle.model_dump_json(), flush=True)
        os.kill(0, 9)
    """
    creator = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        stdout=subprocess.PIPE,
        start_new_session=True,
        check=False,
    )

    assert creator.returncode == -signal.SIGKILL
    with Client.connect(json.loads(creator.stdout)) as client:
        assert client.submit(pow, 2, 10).result(10) == 1024
    assert ClusterManager().teardown_sync("orphan").outcome == "ended"


def test_a_create_that_was_killed_is_taken_over_by_the_next() -> None:
    """Killed at any moment, it leaves a record that the retry adopts or cleans up; never two clusters."""
    code = """
        import sys
        from ipcluster_core import Cluster
        print("begin", flush=True)
        Cluster.create_sync("retry", n=3, if_exists="attach")
    """
    for delay in (0.0, 0.03, 0.06, 0.09, 0.12, 0.15, 0.2):
        with steps.started_step(code) as creator:
            assert creator.stdout is not None
            creator.stdout.readline()
            # The moment of the kill is what is tried here; there is no condition to wait for.
            time.sleep(delay)
        cluster = Cluster.create_sync("retry", n=3, if_exists="attach", timeout=20)

        assert cluster.wait_sync(3) == 3
        steps.wait_until(lambda: len(steps.living("retry")) == 6)
        cluster.teardown_sync()


def test_a_create_killed_before_anything_started_is_shown_as_broken() -> None:
    """The intent is in the store first; list says what became of it, and teardown removes it."""
    with steps.started_step("import sys; sys.stdin.readline()") as other:
        creator = identify(other.pid).to_dict()
    cluster = Cluster.create_sync("half", n=1)
    cluster.teardown_sync()
    document = open_store().read("record", "half")
    assert document is not None
    half = {**document.value, "state": "creating", "jobs": [], "ended": None, "creator": creator, "incarnation": 2}
    open_store().swap("record", "half", half, document.version)

    (found,) = ClusterManager().list_sync()
    assert found.state is ClusterState.BROKEN
    assert ClusterManager().teardown_sync("half").outcome == "ended"
    assert ClusterManager().list_sync() == []


def test_create_that_cannot_start_leaves_nothing_and_says_why() -> None:
    """A missing interpreter, one without the package, and a module that cannot be preloaded."""
    with pytest.raises(errors.LaunchError, match=r"cannot be run: No such file"):
        Cluster.create_sync("bad", python="/nonexistent/python")
    with pytest.raises(errors.LaunchError, match=r"could not be started: .*No module named"):
        Cluster.create_sync("bad", preload=["no_such_module"])

    assert steps.living("bad") == []
    assert steps.left_in_store() == ["records/bad"]
    good = Cluster.create_sync("bad", n=1)
    assert good.teardown_sync().outcome == "ended"


def test_a_preloaded_module_that_exits_fails_the_create_and_leaves_nothing(tmp_path: Path) -> None:
    """It ends neither the nanny without clean-up, nor the create without a reason."""
    (tmp_path / "quitter.py").write_text("raise SystemExit('not today')\n")
    with pytest.raises(errors.LaunchError, match=r"'quitter' cannot be preloaded: SystemExit: not today"):
        Cluster.create_sync("quit", n=1, cwd=str(tmp_path), preload=["quitter"])

    assert steps.living("quit") == []
    assert steps.left_in_store() == ["records/quit"]


def test_teardown_twice_is_success_and_leaves_only_an_ended_record() -> None:
    """The second finds it gone, says how it ended, and that is fine."""
    cluster = Cluster.create_sync("bye", n=2)

    assert cluster.teardown_sync().outcome == "ended"
    report = cluster.teardown_sync()
    assert report.outcome == "already gone"
    assert "torn down (by" in report.message
    assert steps.left_in_store() == ["records/bye"]
    with pytest.raises(errors.ClusterEnded, match="torn down"):
        Cluster.connect_sync("bye")


def test_of_four_concurrent_teardowns_one_does_the_work() -> None:
    """The others say that it is gone already; none fails."""
    Cluster.create_sync("four", n=2)
    code = "from ipcluster_core import ClusterManager; print(ClusterManager().teardown_sync('four').outcome)"
    enders = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outcomes = [ender.communicate(timeout=60)[0].strip() for ender in enders]

    assert set(outcomes) <= {"ended", "already gone"}
    assert "ended" in outcomes
    assert [ender.returncode for ender in enders] == [0, 0, 0, 0]
    assert steps.living("four") == []


def test_a_claim_keeps_the_cluster_for_others() -> None:
    """The last one out ends it; giving up with an old counter does nothing."""
    first = Cluster.create_sync("shared", n=1, claim="run-1")
    second = Cluster.connect_sync("shared", claim="run-2")

    assert first.teardown_sync().outcome == "released"
    with pytest.raises(errors.ClusterInUse, match="run-2"):
        ClusterManager().teardown_sync("shared")
    retaken = Cluster.connect_sync("shared", claim="run-2")
    assert retaken.claim_counter != second.claim_counter
    assert second.teardown_sync().outcome == "released"
    assert retaken.teardown_sync().outcome == "ended"


def test_connecting_in_a_with_block_never_ends_the_cluster() -> None:
    """Only the scope that created it does, also when it raises."""
    with Cluster("scope", n=1) as cluster:
        with pytest.raises(ZeroDivisionError), Cluster.connect_sync("scope"):
            raise ZeroDivisionError
        with Cluster("scope", n=1, if_exists="attach"):
            pass

        assert cluster.status_sync().state is ClusterState.RUNNING
    assert cluster.status_sync().state is ClusterState.ENDED


def test_an_interrupted_create_is_undone_within_seconds_whatever_it_waits_for(tmp_path: Path) -> None:
    """Its nanny is in the middle of an import of a minute; the record says who interrupted it."""
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    code = """
        import sys
        from ipcluster_core import Cluster
        Cluster.create_sync("undone", n=1, preload=["endless"], cwd=sys.argv[1])
    """
    with steps.started_step(code, str(tmp_path)) as creator:
        steps.wait_until(lambda: len(steps.living("undone")) >= 3)
        creator.send_signal(signal.SIGINT)
        assert creator.wait(5) != 0

    assert steps.living("undone") == []
    ended = steps.record_of("undone").ended
    assert ended is not None
    assert f"pid {creator.pid}" in ended.reason
    assert "interrupted" in ended.reason


def test_another_protocol_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else is said."""
    with Cluster("modern", n=1):
        monkeypatch.setattr("ipcluster_core.wire.VERSION", 999)
        with pytest.raises(errors.VersionMismatch, match=r"cluster 'modern' #1 speaks protocol 3, this client 999"):
            Client.connect("modern")


def test_versions_that_do_not_fit_are_refused_with_a_table_unless_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At connect, not by a task that crashes. Who knows better gets a warning."""
    ours = {**versions.ours(), "python": "2.7.18"}
    with Cluster("modern", n=1):
        monkeypatch.setattr(versions, "ours", lambda _packages: ours)
        with pytest.raises(
            errors.VersionMismatch, match=r"python \*\s+2\.7\.18\s+3\.\d+\.\d+\s+3\.\d+\.\d+\nipcluster-core "
        ):
            Client.connect("modern")
        with Client.connect("modern", check_versions=False) as client:
            assert client.submit(abs, -1).result(10) == 1

    assert "do not agree (marked *)" in caplog.text
