"""C37: Ctrl-C, and interrupts of what runs elsewhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster

#: Random moments at which a create is interrupted.
MOMENTS = 5


def start_create() -> subprocess.Popen[str]:
    """Begin to create a cluster from a shell."""
    command = [sys.executable, "-m", "ipcluster_core.cli", "create", "c37", "-n", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("signals", [1, 2])
def test_an_interrupted_create_leaves_nothing_and_exits_with_130(signals: int) -> None:
    """C37 (a): within 10 s, at random moments, also when the key is pressed twice; what is said to be there is."""
    start = time.monotonic()
    assert start_create().communicate(timeout=60)[1] == ""
    normal = time.monotonic() - start
    steps.ctl("teardown", "c37")
    moments = random.Random(37 + signals)
    for _ in range(MOMENTS):
        create = start_create()
        steps.wait_until(lambda create=create: _has_begun(create))
        # The moment of the interrupt is what is tried here; there is no condition to wait for.
        time.sleep(moments.uniform(0.0, normal))
        for _ in range(signals):
            create.send_signal(signal.SIGINT)
            time.sleep(moments.uniform(0.0, 0.05))
        start = time.monotonic()
        said = create.communicate(timeout=30)

        assert time.monotonic() - start < 10
        assert "Traceback" not in said[1]
        if create.returncode != 130:
            # It was over already, and has said so.
            assert said[0].startswith("c37 #"), (create.returncode, *said)
            steps.ctl("teardown", "c37")
        steps.wait_until(lambda: not steps.living("c37"))
        assert set(steps.left_in_store()) <= {"records/c37"}


def _has_begun(process: subprocess.Popen[str]) -> bool:
    """Tell whether the command has begun to do what it is told: it loads the event loop only then."""
    return process.poll() is not None or "_asyncio" in Path(f"/proc/{process.pid}/maps").read_text()


WAITING = """
    import sys, time
    from ipcluster_core import Client

    def work(log):
        time.sleep(3)
        open(log, "w").close()

    with Client.connect("c37") as client:
        future = client.submit(work, sys.argv[1])
        print(future.task_id, flush=True)
        future.result()
"""


def test_an_interrupted_wait_returns_at_once_and_the_task_goes_on(tmp_path: Path) -> None:
    """C37 (b): the process can exit within 5 s; the task, of 3 s instead of 60 s, comes to its end."""
    done = tmp_path / "done"
    with Cluster("c37", n=1) as cluster:
        with steps.started_step(WAITING, str(done)) as step:
            assert step.stdout is not None
            task = step.stdout.readline().strip()
            steps.wait_until(lambda: cluster.status_sync().tasks["running"] == 1)
            step.send_signal(signal.SIGINT)
            start = time.monotonic()
            _, said = step.communicate(timeout=10)

        assert time.monotonic() - start < 5
        assert step.returncode == -signal.SIGINT
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert not done.exists()
        with Client.connect("c37") as client:
            assert client.result(task, 10) is None
        assert done.exists()


def set_up() -> int:
    """Keep something in the engine."""
    sys.modules["kept"] = "something"  # type: ignore[assignment]  # whatever lives as long as the process
    return os.getpid()


def loop(begun: str) -> None:
    """Compute for ever."""
    Path(begun).touch()
    while True:
        pass


def sleep(begun: str) -> None:
    """Wait for long."""
    Path(begun).touch()
    time.sleep(600)


def hold(begun: str) -> None:
    """Keep the interpreter's lock in a C loop that no signal ends."""
    Path(begun).touch()
    sum(range(1 << 60))


CANCEL = """
    import sys
    from ipcluster_core import Client
    with Client.connect("c37") as client:
        print(client.cancel(sys.argv[1:], timeout=2))
"""


@pytest.mark.parametrize("work", [loop, sleep])
def test_a_running_task_is_interrupted_from_another_process_and_its_engine_lives_on(
    tmp_path: Path, work: Callable[[str], None]
) -> None:
    """C37 (c): as that task's KeyboardInterrupt, by the verb and by a plain signal; what the engine keeps is there."""
    with Cluster("c37", n=1), Client.connect("c37") as client:
        engine = client.submit(set_up).result(10)
        for way in ("verb", "signal"):
            begun = tmp_path / way
            running = client.submit(work, str(begun))
            steps.wait_until(begun.exists)
            if way == "verb":
                assert steps.ctl("interrupt", "c37", "--engine", "0").stdout == "[0] interrupted\n"
            else:
                os.kill(engine, signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                running.result(10)

        assert client.submit(set_up).result(10) == engine
        assert client.submit(lambda: sys.modules["kept"]).result(10) == "something"


def test_a_task_in_a_c_call_cannot_be_interrupted_but_its_engine_can_be_restarted(tmp_path: Path) -> None:
    """C37 (c): interrupting says so, cancelling says no; the restart frees it, and the task says what hit it."""
    begun = tmp_path / "begun"
    with Cluster("c37", n=1), Client.connect("c37") as client:
        held = client.submit(hold, str(begun))
        steps.wait_until(begun.exists)
        start = time.monotonic()

        assert steps.ctl("interrupt", "c37").stdout == "[0] goes on: cannot be interrupted here, use restart\n"
        assert steps.run_step(CANCEL, held.task_id) == str({held.task_id: False})
        assert not held.done()
        assert steps.ctl("restart", "c37", "--engine", "0").returncode == 0
        assert time.monotonic() - start < 15
        assert "it was restarted on request" in str(held.exception(10))
        assert client.submit(abs, -1).result(10) == 1


def test_a_queued_task_that_is_cancelled_never_runs_and_a_running_one_is_interrupted(tmp_path: Path) -> None:
    """C37 (d): by their futures."""
    begun, never = tmp_path / "begun", tmp_path / "never"
    with Cluster("c37", n=1), Client.connect("c37") as client:
        running, queued = client.submit(sleep, str(begun)), client.submit(sleep, str(never))
        steps.wait_until(begun.exists)

        assert queued.cancel()
        assert running.cancel()
        for future in (running, queued):
            with pytest.raises(CancelledError):
                future.result(10)
        assert client.submit(abs, -1).result(10) == 1
    assert not never.exists()
