"""C38, C39: fewer engines lose no work, and an engine gives back what it holds."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, errors

MB = 1_000_000


def note(log: str, n: int, seconds: float) -> int:
    """Leave a line and take some time."""
    with Path(log).open("a") as file:
        file.write(f"{n}\n")
    time.sleep(seconds)
    return n


def sizes_of(cluster: Cluster) -> tuple[int, int, int]:
    """Return the number of engines as list, as status, and as the kernel has it."""
    (line,) = [line for line in steps.ctl("list").stdout.splitlines() if line.startswith("c38 ")]
    parts = [steps.part("c38", which) for which in ("nanny", "controller", "broker")]
    return int(line.split()[2]), cluster.status_sync().up, len(set(steps.living("c38")) - set(parts))


def test_scaling_down_under_load_loses_no_task_and_ends_with_the_last_size(tmp_path: Path) -> None:
    """C38: four tasks of 2 s (not 10 s) run and eight wait; scaled to 1, 0, 2 while two threads submit twenty more.

    Then two processes scale to 1 and 3 at the same time: one of these is what list, status and the kernel say.
    """
    log = str(tmp_path / "log")
    with Cluster("c38", n=4) as cluster, cluster.client() as client:
        futures = [client.submit(note, log, n, 2.0 if n < 4 else 0.05) for n in range(12)]
        steps.wait_until(lambda: Path(log).exists() and len(Path(log).read_text().split()) >= 4)
        more: dict[int, list[object]] = {1: [], 2: []}

        def submit(half: int) -> None:
            for n in range(10):
                more[half].append(client.submit(note, log, 100 * half + n, 0.05))

        threads = [threading.Thread(target=submit, args=(half,)) for half in more]
        for thread in threads:
            thread.start()
        for n in (1, 0, 2):
            cluster.scale_sync(n)
        for thread in threads:
            thread.join()
        expected = [*range(12), *range(100, 110), *range(200, 210)]
        results = [future.result(60) for future in [*futures, *more[1], *more[2]]]  # type: ignore[attr-defined]
        both = [steps.started_step(SCALE, str(n)) for n in (1, 3)]
        with both[0] as one, both[1] as other:
            assert [step.communicate(timeout=30)[0] for step in (one, other)] == ["done\n", "done\n"]
        wanted = cluster.status_sync().sets["default"]

        assert results == expected
        assert sorted(map(int, Path(log).read_text().split())) == sorted(expected)
        assert wanted in (1, 3)
        steps.wait_until(lambda: sizes_of(cluster) == (wanted, wanted, wanted))
        last = [event.text for event in cluster.events_sync() if event.kind == "scaled"][-1]
        assert f"to {wanted} engines" in last


SCALE = """
    import sys
    from ipcluster_core import Cluster
    Cluster.connect_sync("c38").scale_sync(int(sys.argv[1]))
    print("done")
"""


def test_scaling_down_by_force_ends_busy_engines_at_once_and_says_so(tmp_path: Path) -> None:
    """C38: busy engines may go on for five minutes; by force they end now, and their tasks say why."""
    log = tmp_path / "log"
    with Cluster("c38", n=2) as cluster, cluster.client() as client:
        futures = [client.submit(note, str(log), n, 300.0) for n in range(2)]
        steps.wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
        assert steps.ctl("scale", "c38", "0").returncode == 0
        assert [engine.state for engine in cluster.status_sync().engines] == ["retiring"] * 2
        start = time.monotonic()
        assert steps.ctl("scale", "c38", "0", "--force").returncode == 0
        lost = [future.exception(10) for future in futures]

        assert time.monotonic() - start < 10
        for engine, error in enumerate(lost):
            assert isinstance(error, errors.EngineLost)
            assert "it was scaled down" in str(error), engine
        assert sorted(log.read_text().split()) == ["0", "1"]
        steps.wait_until(lambda: not cluster.status_sync().engines)
        assert "had not drained in time" in cluster.logs_sync()["controller"]


def take_device(path: str) -> bool:
    """Lock a file for as long as this process lives; tell whether that was possible."""
    file = Path(path).open("a")  # noqa: SIM115 - held by the process
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    take_device.held = file  # type: ignore[attr-defined]
    return True


def test_a_device_that_an_engine_holds_is_free_when_it_is_restarted(tmp_path: Path) -> None:
    """C39: in less than 10 s, under the same id."""
    device = str(tmp_path / "device")
    with Cluster("c39", n=2) as cluster, cluster.client() as client:
        first, second = client.options(engines=[0]), client.options(engines=[1])
        assert first.submit(take_device, device).result(10)
        assert not second.submit(take_device, device).result(10)
        start = time.monotonic()
        assert steps.ctl("restart", "c39", "--engine", "0").returncode == 0

        assert time.monotonic() - start < 10
        assert second.submit(take_device, device).result(10)
        assert [(one.id, one.incarnation) for one in cluster.status_sync().engines] == [(0, 1), (1, 0)]


def leak(hoard: list[bytes] = []) -> int:  # noqa: B006 - it is what leaks
    """Keep 60 MB (not 200 MB) for ever; say which process does."""
    hoard.append(b"x" * (60 * MB))
    return os.getpid()


@pytest.mark.parametrize("limits", [{"max_tasks": 3}, {"max_memory_bytes": 160 * MB}], ids=["tasks", "memory"])
def test_engines_that_leak_are_replaced_between_two_tasks_and_no_task_is_lost(limits: dict[str, int]) -> None:
    """C39: ten tasks that leak, on one engine that is replaced after three, or above 160 MB (not 500 MB)."""
    with Cluster("c39", n=1, **limits) as cluster, cluster.client() as client:  # type: ignore[arg-type]
        pids = [future.result(30) for future in [client.submit(leak) for _ in range(10)]]

        most = 3 if "max_tasks" in limits else 2
        assert max(pids.count(pid) for pid in pids) <= most + 1
        assert len(set(pids)) >= 3
        assert cluster.status_sync().tasks["settled"] == 10


def produce(size: int) -> bytes:
    """Return that many bytes."""
    return b"x" * size


def resident(pid: int) -> int:
    """Return the bytes that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_results_that_were_fetched_and_dropped_are_kept_by_nobody() -> None:
    """C39: 200 MB (not 1 GB), five times; controller and broker are back within 100 MB, and the cluster answers."""
    with Cluster("c39", n=1) as cluster:
        parts = [steps.part("c39", which) for which in ("controller", "broker", "nanny")]
        before = sum(map(resident, parts))
        with Client.connect("c39") as client:
            for _ in range(5):
                future = client.submit(produce, 200 * MB)
                start = time.monotonic()
                cluster.status_sync()
                assert time.monotonic() - start < 5
                assert len(future.result(60)) == 200 * MB
                del future

        steps.wait_until(lambda: sum(map(resident, parts)) - before < 100 * MB)
        assert cluster.status_sync().engines[0].incarnation == 0
