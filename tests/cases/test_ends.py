"""C08, C12: when a cluster or a part of it is gone, whoever waits is told, and nobody is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harm
import steps
from ipcluster_core import Client, Cluster, ClusterManager, errors

#: Seconds within which whoever waits is told.
TOLD_SECONDS = 10.0

#: Ways in which a cluster goes while a client waits, and what says it.
GOING: dict[str, tuple[Callable[[], object], str]] = {
    "teardown": (lambda: steps.ctl("teardown", "c08"), r"torn down \(by \S+@\S+, pid \d+\)"),
    "the controller is killed": (
        lambda: os.kill(steps.part("c08", "controller"), signal.SIGKILL),
        r"its controller died \(signal SIGKILL\) \(by nanny\)",
    ),
    "all is killed at once": (lambda: harm.kill_everything("c08"), r"its nanny \(pid \d+ on \S+\) is gone"),
}

WAITING = """
    import sys, time
    from ipcluster_core import Client, errors
    client = Client.connect("c08")
    future = client.submit(time.sleep, 300)
    print("waiting", flush=True)
    for ask in (future.result, lambda: client.submit(abs, 1).result()):
        start = time.monotonic()
        try:
            ask()
        except errors.ClusterError as error:
            told = str(error).replace(chr(10), " ")
            print(round(time.monotonic() - start, 3), type(error).__name__, told, flush=True)
"""


@pytest.mark.parametrize("how", GOING)
def test_who_waits_for_a_result_is_told_that_the_cluster_is_gone(how: str) -> None:
    """C08: within 10 s, with who, what and when; a new submit on the old client fails at once."""
    go, said = GOING[how]
    Cluster.create_sync("c08", n=2)
    with steps.started_step(WAITING) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "waiting\n"
        steps.wait_until(lambda: Cluster.connect_sync("c08").status_sync().tasks["running"] == 1)
        start = time.monotonic()
        go()
        told = step.stdout.readline()
        passed = time.monotonic() - start
        refused = step.stdout.readline()

        assert passed < TOLD_SECONDS
        for line in (told, refused):
            assert "cluster 'c08' #1" in line
            assert _search(said, line), line
        assert _search(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", told) or "broken" in told, told
        assert float(refused.split()[0]) < 0.5
    ClusterManager().teardown_sync("c08")


def _search(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None


def hold(seconds: float) -> None:
    """Keep the interpreter's lock in a C call."""
    ctypes.PyDLL(None).sleep(int(seconds))


@pytest.fixture
def busy() -> Iterator[Client]:
    """Three engines: one idle, one in `sleep`, one in a C call that holds the interpreter's lock."""
    cluster = Cluster.create_sync("c12", n=3)
    client = cluster.client()
    client.options(engines=[1]).submit(time.sleep, 600)
    client.options(engines=[2]).submit(hold, 60)
    steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 2)
    yield client
    client.shutdown(wait=False)
    cluster.teardown_sync()


@pytest.mark.parametrize("victims", [["controller"], ["nanny"], ["controller", "nanny"]], ids=" and ".join)
def test_no_engine_outlives_the_controller_or_the_nanny(busy: Client, victims: list[str]) -> None:
    """C12: all are gone within 10 s, also the one that holds the interpreter's lock for a minute; status says why."""
    pids = [steps.part("c12", victim) for victim in victims]
    everything = steps.living("c12")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    passed = steps.wait_until(lambda: not any(harm.lives(pid) for pid in everything), TOLD_SECONDS)
    assert passed < TOLD_SECONDS
    status = steps.ctl("status", "c12").stdout
    if len(victims) == 1:
        assert "c12 #1: ended" in status
        assert f"its {victims[0]} died" in status
    else:
        assert "c12 #1: broken" in status
        assert f"its nanny: pid {pids[1]} on {os.uname().nodename} is gone" in status
    with pytest.raises(errors.ClusterError, match=r"cluster 'c12' #1"):
        Cluster.connect_sync("c12")


def test_an_engine_whose_task_holds_the_lock_ends_with_a_teardown(busy: Client, tmp_path: Path) -> None:
    """C12: within seconds, and without being left over."""
    start = time.monotonic()
    done = steps.ctl("teardown", "c12")

    assert done.returncode == 0
    assert time.monotonic() - start < TOLD_SECONDS
    assert not steps.living("c12")
