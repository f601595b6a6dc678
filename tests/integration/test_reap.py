"""Reaping from the command line, with processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress

import pytest

import steps
from ipcluster_core import Cluster, ClusterManager, open_store
from ipcluster_core.process import STORE_VARIABLE, TAG_VARIABLE


def reap(*arguments: str) -> dict[str, tuple[str, str]]:
    """Reap and return outcome and reason by name."""
    done = steps.ctl("reap", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {one["name"]: (one["outcome"], one["why"]) for one in json.loads(done.stdout)}


def test_each_rule_ends_what_it_names_and_nothing_else() -> None:
    """Labels, then idle time, then age; a dry run first; and nothing is left."""
    for name, team in (("one", "ml"), ("two", "web")):
        Cluster.create_sync(name, n=1, labels={"team": team})

    assert steps.ctl("reap", "--idle-for", "1h", "--max-age", "1d").stdout == ""
    assert reap("--max-age", "0", "--label", "team=ml", "--dry-run") == {"one": ("would end", "older than 0 s")}
    assert reap("--max-age", "0s", "--label", "team=ml") == {"one": ("ended", "older than 0 s")}
    assert [one.name for one in ClusterManager().list_sync()] == ["two"]
    done = steps.ctl("reap", "--idle-for", "0")
    assert re.fullmatch(r"two #1: ended \(idle for \d+ s\)\n", done.stdout)
    one, two = ClusterManager().list_sync(all=True)
    assert one.reason.startswith("reaped: older than 0 s (")
    assert two.reason.startswith("reaped: idle for ")
    assert steps.living("one") + steps.living("two") == []
    assert steps.left_in_store() == ["records/one", "records/two"]


def test_what_is_broken_damaged_or_without_a_record_is_cleaned_up() -> None:
    """One of each; afterwards there is nothing to do."""
    for name in ("broken", "damaged", "lost"):
        Cluster.create_sync(name, n=1)
    parts = [steps.part("broken", which) for which in ("nanny", "controller", "broker")]
    for pid in parts:
        os.kill(pid, signal.SIGSTOP)
    for pid in steps.living("broken"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (path,) = (path for path in (steps.store_folder() / "records" / "damaged").rglob("*") if path.is_file())
    path.write_text("{")
    open_store().discard("record", "lost")

    assert reap("--no-broken") == {}
    assert {name: outcome for name, (outcome, _) in reap("--dry-run").items()} == {
        "broken": "would end",
        "damaged": "would end",
        "lost": "would end",
    }
    found = reap()
    assert {name: outcome for name, (outcome, _) in found.items()} == dict.fromkeys(
        ("broken", "damaged", "lost"), "ended"
    )
    assert found["lost"][1].startswith("processes without a record: pids ")
    assert reap() == {}
    for name in ("broken", "damaged", "lost"):
        assert steps.living(name) == []
    assert steps.left_in_store() == ["records/broken", "records/damaged", "records/lost"]


@pytest.mark.parametrize("text", ["soon", "-1", "1w", "", "inf", "h"])
def test_a_time_that_is_none_is_bad_usage(text: str) -> None:
    """With the forms that there are."""
    done = steps.ctl("reap", f"--idle-for={text}")

    assert done.returncode == 2
    assert "is not a time: use 90, 90s, 15m, 2h or 1d" in done.stderr


def test_what_cannot_be_ended_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be removed is named."""
    marks = {TAG_VARIABLE: "stuck/1/c0ffee", STORE_VARIABLE: open_store().url}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **marks}) as stray:
        steps.wait_until(lambda: ClusterManager().list_sync())
        run = steps.store_folder() / "run"
        run.mkdir(parents=True)
        # A link is no folder of a cluster: it is not followed.
        (run / "c0ffee").symlink_to(run)
        done = steps.ctl("reap")

        assert done.returncode == 5
        assert f"ipclusterctl: stuck: could not be ended: folder {run / 'c0ffee'}" in done.stderr
        assert stray.wait(5) == -signal.SIGTERM


def test_a_controller_that_does_not_answer_is_told_and_no_other_waits_for_it() -> None:
    """It is stopped; the idle one beside it is ended, the exit code says that something failed."""
    Cluster.create_sync("deaf", n=1)
    Cluster.create_sync("idle", n=1)
    controller = steps.part("deaf", "controller")
    os.kill(controller, signal.SIGSTOP)
    done = steps.ctl("reap", "--idle-for", "0", "--timeout", "1")
    os.kill(controller, signal.SIGCONT)
    ClusterManager().teardown_sync("deaf")

    assert done.returncode == 1, (done.stdout, done.stderr)
    deaf, idle = done.stdout.splitlines()
    assert deaf.startswith("deaf #1: failed: the controller of cluster 'deaf' #1 did not answer 'status' within 1 s")
    assert idle.startswith("idle #1: ended (idle for ")
