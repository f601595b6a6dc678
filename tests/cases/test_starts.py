"""C10, C23, R7: engines that cannot be started: who waits for them is told, as soon as it is certain."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, errors

#: Seconds within which a create that cannot succeed must have failed.
FAILED_SECONDS = 30.0

#: A module that lets engines fail whose ids are in a file; they say something first.
FRAGILE = """
import sys, time
from pathlib import Path
arguments = " ".join(sys.orig_argv).partition("ipcluster_core.engine ")[2].split()
if set(arguments[:1]) & set(Path("broken").read_text().split()):
    time.sleep(0.3)
    print("no licence for this host")
    sys.exit(1)
"""


@pytest.fixture
def bad_interpreters(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Interpreters that cannot run a cluster, and what is said of each."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    exiting = tmp_path / "exiting"
    exiting.write_text("#!/bin/sh\nsleep 1\necho cannot find its licence >&2\nexit 1\n")
    exiting.chmod(0o755)
    return {
        "without the product": (str(tmp_path / "bare/bin/python"), "No module named 'ipcluster_core'"),
        "not there": (str(tmp_path / "nowhere"), "cannot be run: No such file or directory"),
        "exits": (str(exiting), "cannot find its licence"),
    }


@pytest.mark.parametrize("which", ["without the product", "not there", "exits"])
def test_a_create_with_an_interpreter_that_cannot_work_says_why_and_leaves_nothing(
    bad_interpreters: dict[str, tuple[str, str]], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: within 30 s, with the last lines; a later create with a good one works. (d): there are no ports."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python, said = bad_interpreters[which]
    start = time.monotonic()
    done = steps.ctl("create", "c10", "-n", "2", "--python", python)

    assert time.monotonic() - start < FAILED_SECONDS
    assert done.returncode == 1
    assert "cluster 'c10' #1" in done.stderr
    assert said in done.stderr
    assert python in done.stderr
    assert not steps.living("c10")
    assert steps.left_in_store() == ["records/c10"]
    assert steps.ctl("create", "c10", "-n", "2").returncode == 0
    assert steps.ctl("teardown", "c10").returncode == 0


def test_a_store_in_which_nothing_can_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: a part that cannot be made, instead of the ports that cannot be taken."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{tmp_path}/file/store")
    done = steps.ctl("create", "c10", "-n", "1")
    monkeypatch.undo()

    assert done.returncode == 1
    assert f"{tmp_path}/file/store" in done.stderr


def fragile(folder: Path, *broken: int) -> dict[str, object]:
    """Return the fields of a cluster of which some engines cannot be started."""
    (folder / "fragile.py").write_text(FRAGILE)
    (folder / "broken").write_text(" ".join(map(str, broken)))
    return {"cwd": str(folder), "preload": ["fragile"], "start_method": "spawn"}


def test_waiting_for_an_engine_that_never_comes_ends_as_soon_as_that_is_certain(tmp_path: Path) -> None:
    """C23: one of four fails; who waits for three has them, who waits for four is told which, how and why."""
    fields = fragile(tmp_path, 3)
    with Cluster("c23", n=4, at_least=3, **fields) as cluster:  # type: ignore[arg-type]
        assert cluster.wait_sync(3, timeout=60) == 3
        start = time.monotonic()
        with pytest.raises(errors.LaunchError) as failed:
            cluster.wait_sync(4, timeout=60)

        assert time.monotonic() - start < 15
        text = str(failed.value)
        assert "cluster 'c23' #1" in text
        assert "3 of 4" in text
        assert "engine 3 could not be started (exit code 1)" in text
        assert "no licence for this host" in text
        assert [engine.state for engine in cluster.status_sync().engines] == ["up", "up", "up", "failed"]
        waited = steps.ctl("wait", "c23", "-n", "4")
        assert waited.returncode == 1
        assert "no licence for this host" in waited.stderr


def test_a_cluster_of_which_no_engine_can_be_started_fails_to_be_created(tmp_path: Path) -> None:
    """C23: all four fail: within 15 s, with the last lines; none is started for ever."""
    fields = fragile(tmp_path, 0, 1, 2, 3)
    start = time.monotonic()
    with pytest.raises(errors.LaunchError, match=r"(?s)cluster 'c23' #1.*exit code 1.*no licence for this host"):
        Cluster.create_sync("c23", n=4, **fields)  # type: ignore[arg-type]

    assert time.monotonic() - start < 15
    assert not steps.living("c23")


def test_a_map_over_no_engines_waits_to_its_limit_and_is_never_empty() -> None:
    """C23: with the reason; work that comes before the engines do is done when they come."""
    with Cluster("c23", n=0) as cluster, Client.connect("c23") as client:
        with pytest.raises(errors.ClusterTimeout, match=r"'c23'.*no engine"):
            list(client.map(abs, range(10), timeout=1))
        later = client.map(abs, range(-10, 0), timeout=30)
        cluster.scale_sync(1)

        assert list(later) == list(range(10, 0, -1))


def test_an_engine_that_crashes_at_import_is_tried_again_after_growing_pauses_and_then_given_up(
    tmp_path: Path,
) -> None:
    """R7: a number of times; then it is failed, with the reason; the other one works on."""
    fields = fragile(tmp_path)
    with Cluster("r7", n=2, **fields) as cluster, Client.connect("r7") as client:  # type: ignore[arg-type]
        (tmp_path / "broken").write_text("1")
        cluster.restart_sync([0])
        with pytest.raises(errors.LaunchError, match="no licence for this host"):
            cluster.restart_sync([1], timeout=30)
        tries = [event for event in cluster.events_sync() if (event.kind, event.engine) == ("engine started", 1)]

        assert len(tries) == 4  # one good start, and three that failed
        assert [engine.state for engine in cluster.status_sync().engines] == ["up", "failed"]
        assert "engine 1 could not be started (exit code 1)" in steps.ctl("status", "r7").stdout
        assert client.submit(abs, -1).result(10) == 1
