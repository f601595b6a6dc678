"""The three scripts of the documentation: separate processes that share nothing but a name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import steps
from ipcluster_core import ClusterState

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"


def run(script: str, name: str) -> str:
    """Run a script to its end and return what it prints."""
    command = [sys.executable, str(SCRIPTS / script), name]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_three_processes_in_a_row_share_a_cluster_by_its_name() -> None:
    """The cluster outlives the first, serves the second, and is ended by the third, which may come twice."""
    handle = json.loads(run("create.py", "in-a-row"))
    table = run("work.py", "in-a-row")
    record = steps.record_of("in-a-row")

    assert (handle["name"], handle["incarnation"], handle["uid"]) == ("in-a-row", 1, record.uid)
    assert "\nJan       27,004       1.9%  10.0    -2.0    40  EWR-TUL" in table
    assert table.splitlines()[-1].split() == ["all", "336,776", "2.5%"]
    assert run("teardown.py", "in-a-row") == "ended: cluster 'in-a-row' #1 ended\n"
    assert run("teardown.py", "in-a-row").startswith("already gone: cluster 'in-a-row' #1 ended")
    assert not steps.living("in-a-row")
    assert not Path(record.folder).exists()


def test_killing_the_first_process_changes_nothing() -> None:
    """It is killed as soon as it has printed the handle."""
    creator = subprocess.Popen([sys.executable, str(SCRIPTS / "create.py"), "orphan"], stdout=subprocess.PIPE)
    assert creator.stdout is not None
    handle = json.loads(creator.stdout.readline())
    creator.kill()
    creator.communicate()
    before = sorted(steps.living("orphan"))

    assert run("work.py", "orphan").splitlines()[-1].split() == ["all", "336,776", "2.5%"]
    assert steps.record_of("orphan").uid == handle["uid"]
    assert steps.record_of("orphan").state is ClusterState.RUNNING
    assert sorted(steps.living("orphan")) == before
    assert run("teardown.py", "orphan") == "ended: cluster 'orphan' #1 ended\n"
    assert not steps.living("orphan")
