"""A cluster that follows its load by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import steps
from ipcluster_core import Cluster, ClusterManager, ClusterState, errors

SUBMIT_AND_GO = """
    import sys, time, pathlib
    from ipcluster_core import Client
    def write(path, n):
        time.sleep(0.2)
        pathlib.Path(path, f"{n}.done").touch()
    client = Client.connect("tidal")
    for n in range(12):
        client.submit(write, sys.argv[1], n)
    client.shutdown(wait=False)
"""


def sizes(cluster: Cluster) -> dict[str, int]:
    """Return the number of engines wanted by set."""
    return dict(cluster.status_sync().sets)


def test_a_cluster_follows_its_load_from_none_and_back_with_no_client_there(tmp_path: Path) -> None:
    """Whoever sent the tasks is gone: engines come, do them, and go; list and status show the bounds."""
    with Cluster("tidal", n=0) as cluster:
        cluster.adapt_sync(0, 3, patience=0.5)
        steps.run_step(SUBMIT_AND_GO, str(tmp_path))
        steps.wait_until(lambda: sizes(cluster) == {"default": 3})
        steps.wait_until(lambda: len(list(tmp_path.glob("*.done"))) == 12)
        (found,) = ClusterManager().list_sync()
        steps.wait_until(lambda: not cluster.status_sync().engines)

        assert found.size == "0..3"
        status = cluster.status_sync()
        assert status.adapting == {"default": (0, 3)}
        assert (status.state, status.clients, status.reasons) == (ClusterState.RUNNING, 0, ())
        assert status.tasks["settled"] == 12
        assert steps.record_of("tidal").sets == {"default": 0}


def test_scaling_ends_adapting_and_adapt_changes_the_bounds() -> None:
    """What cannot be meant is refused."""
    with Cluster("bound", adapt=(1, 4)) as cluster, cluster.client() as client:
        assert len(cluster.status_sync().engines) == 1
        assert ClusterManager().get_sync("bound").size == "1..4"
        waiting = [client.submit(time.sleep, 0.3) for _ in range(8)]
        steps.wait_until(lambda: sizes(cluster) == {"default": 4})
        cluster.adapt_sync(0, 2)
        steps.wait_until(lambda: len(cluster.status_sync().engines) == 2)
        for future in waiting:
            future.result(20)
        cluster.scale_sync(1)
        more = [client.submit(time.sleep, 0.1) for _ in range(5)]
        for future in more:
            future.result(20)

        assert sizes(cluster) == {"default": 1}
        assert cluster.status_sync().adapting == {}
        assert ClusterManager().get_sync("bound").size == "1"
        with pytest.raises(ValueError, match="cannot have between 3 and 2 engines"):
            cluster.adapt_sync(3, 2)
        with pytest.raises(ValueError, match="cannot have between -1 and 2 engines"):
            cluster.adapt_sync(-1, 2)
        with pytest.raises(ValueError, match="patience=-1"):
            cluster.adapt_sync(patience=-1)
        with pytest.raises(errors.ClusterError, match="has no engine set 'large'; it has: default"):
            cluster.adapt_sync(0, 2, engines="large")


def test_scale_down_by_load_takes_idle_engines_only() -> None:
    """A long task goes on while all others leave; nothing is lost."""
    with Cluster("long", n=4) as cluster, cluster.client() as client:
        running = client.submit(time.sleep, 3.0)
        steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 1)
        cluster.adapt_sync(0, 4, patience=0.3)
        steps.wait_until(lambda: len(cluster.status_sync().engines) == 1)

        assert not running.done()
        assert running.result(10) is None
        steps.wait_until(lambda: not cluster.status_sync().engines)


def test_an_adaptive_cluster_with_nothing_to_do_ends_by_its_idle_limit() -> None:
    """With no engine, and after it had some."""
    cluster = Cluster.create_sync("resting", adapt=(0, 2), idle_timeout=0.5)
    with cluster.client() as client:
        assert client.submit(abs, -1).result(10) == 1
    steps.wait_until(lambda: not steps.living("resting"))

    with pytest.raises(errors.ClusterEnded, match=r"idle limit of 0.5 s reached \(by idle_timeout\)"):
        Cluster.connect_sync("resting")


FRAGILE = """
import sys
from pathlib import Path
if "ipcluster_core.engine" in " ".join(sys.orig_argv) and Path("broken").exists():
    raise ImportError("no lizard in here")
"""


def test_engines_that_cannot_be_started_under_load_are_tried_again_later(tmp_path: Path) -> None:
    """Meanwhile the status says why, and tasks wait; they are done when engines can be started again."""
    (tmp_path / "fragile.py").write_text(FRAGILE)
    (tmp_path / "broken").touch()
    fields = {"adapt": (0, 2), "cwd": str(tmp_path), "preload": ["fragile"], "start_method": "spawn"}
    with Cluster("hopeful", **fields) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        waiting = client.submit(os.getpid)
        steps.wait_until(lambda: any("set 'default'" in line for line in cluster.status_sync().reasons))
        *engines, why = cluster.status_sync().reasons

        assert why == "set 'default': engines could not be started; attempt 2 comes after 5 s"
        assert all("could not be started (exit code 1)" in line for line in engines)
        assert "no lizard in here" in engines[0]
        assert not waiting.done()
        (tmp_path / "broken").unlink()
        assert waiting.result(20) > 0
        assert cluster.status_sync().reasons == ()
