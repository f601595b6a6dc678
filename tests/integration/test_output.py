"""What engines print is never lost, never without bound, and comes to whoever asks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, errors

log = logging.getLogger("pipeline")

#: Memory that a flood may cost nanny and controller together, in bytes.
FLOOD_BYTES = 100 << 20

#: What `speak` writes, by the source that writes it.
SPOKEN = {"print": 100, "log": 100, "child": 10, "C": 5}


@pytest.fixture(params=["fork", "spawn"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two engines, made in each of the ways."""
    with Cluster("loud", n=2, start_method=request.param) as made:
        yield made


def speak() -> None:
    """Write in every way, and die right after the last line."""
    import ctypes

    for n in range(SPOKEN["print"]):
        print("print", n)  # noqa: T201 - it is what is looked for
    for n in range(SPOKEN["log"]):
        log.info("log %d", n)
    child = f"for n in range({SPOKEN['child']}): print('child', n)"
    subprocess.run([sys.executable, "-c", child], check=True)
    for n in range(SPOKEN["C"]):
        ctypes.CDLL(None).printf(b"C %d\n", n)
    os.kill(os.getpid(), signal.SIGKILL)


def spoken(lines: list[str]) -> dict[str, list[int]]:
    """Return the numbers that each source wrote."""
    found: dict[str, list[int]] = {source: [] for source in SPOKEN}
    for line in lines:
        *_, source, number = ["", *line.split()]
        if source in found:
            found[source].append(int(number))
    return found


def test_all_that_a_killed_engine_wrote_is_in_the_log_and_with_its_callers(cluster: Cluster) -> None:
    """Prints, records, what a child and C wrote: each line once, in order; last words are quoted."""
    heard: list[tuple[int, str]] = []
    with cluster.client() as client:
        with (
            client.stream_output(lambda engine, line: heard.append((engine, line))),
            pytest.raises(errors.EngineLost) as lost,
        ):
            client.options(engines=[1]).submit(speak).result(20)
        logs = cluster.logs_sync(tail=1000)

    everything = {source: list(range(count)) for source, count in SPOKEN.items()}
    assert spoken([line for engine, line in heard if engine == 1]) == everything
    assert spoken(logs["engine-1"].splitlines()) == everything
    assert spoken(logs["engine-0"].splitlines()) == {source: [] for source in SPOKEN}
    assert lost.value.output.splitlines()[-5:] == [f"C {n}" for n in range(5)]
    assert "pipeline INFO log 99" in logs["engine-1"]


def flood(lines: int) -> None:
    """Print so many lines."""
    for n in range(lines):
        print("line", n)  # noqa: T201 - it is what is looked for


def memory(pid: int) -> int:
    """Return the bytes that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_million_lines_cost_little_and_what_was_dropped_is_told(cluster: Cluster) -> None:
    """Memory of nanny and controller, and the log, stay bounded; kept and dropped lines add up."""
    parts = [steps.part("loud", "nanny"), steps.part("loud", "controller")]
    before = sum(map(memory, parts))
    with cluster.client() as client:
        client.options(engines=[0]).submit(flood, 1_000_000).result(60)

        def told() -> list[str]:
            return cluster.logs_sync([0], tail=1_000_000)["engine-0"].splitlines()

        # The last notice comes within a second of the flood's end.
        steps.wait_until(lambda: "dropped" in told()[-1] or told()[-1] == "line 999999")
        lines = told()

    dropped = [int(line.split()[1]) for line in lines if line.startswith("[ipcluster]")]
    assert sum(dropped) + len(lines) - len(dropped) == 1_000_000
    assert dropped
    assert sum(map(memory, parts)) - before < FLOOD_BYTES
    folder = Path(steps.record_of("loud").folder)
    assert sum(path.stat().st_size for path in folder.glob("engine-0.log*")) <= 8 << 20


def leave_a_writer() -> int:
    """Start a child that holds the engine's output and floods it, in a session of its own; then die."""
    subprocess.Popen(["sh", "-c", "while :; do echo still here; done"], start_new_session=True)
    os._exit(3)


def test_a_child_that_writes_on_does_not_hold_up_the_end_of_its_engine() -> None:
    """Whoever waits learns of the death as soon as without it; the engine comes back."""
    with Cluster("orphaned", n=1) as cluster, cluster.client() as client:
        start = time.monotonic()
        with pytest.raises(errors.EngineLost, match="exit code 3"):
            client.submit(leave_a_writer).result(30)
        assert time.monotonic() - start < 10
        assert client.submit(abs, -1).result(10) == 1


def test_a_frozen_engine_holds_up_nobody() -> None:
    """In the middle of a line; the other one's lines come, and the cluster ends in time."""
    with Cluster("frozen", n=2) as cluster, cluster.client() as client:
        frozen, other = client.options(engines=[0]), client.options(engines=[1])
        frozen.submit(os.write, 1, b"half a line").result(10)
        frozen.submit(os.kill, frozen.submit(os.getpid).result(10), signal.SIGSTOP)
        heard: list[str] = []
        with client.stream_output(lambda engine, line: heard.append(line)):
            other.submit(flood, 3).result(10)
        client.shutdown(wait=False)

    assert heard == ["line 0", "line 1", "line 2"]


def test_exit_hooks_that_print_much_are_run_to_their_end() -> None:
    """An engine that waits for room in its pipe while the cluster ends gets it."""
    heard: list[str] = []

    def hook() -> None:
        import atexit

        atexit.register(flood, 15_000)

    with Cluster("hooked", n=1) as cluster:
        client = cluster.client()
        stream = client.stream_output(lambda engine, line: heard.append(line))
        client.submit(hook).result(10)
        client.shutdown()
    stream.close()

    assert [line for line in heard if line.startswith("line")][-1] == "line 14999"


def test_by_default_lines_are_records_of_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    """With the engine's id; nothing comes before the stream is opened or after it is closed."""
    with Cluster("logged", n=1) as cluster, cluster.client() as client:
        client.submit(flood, 1).result(10)
        with caplog.at_level(logging.INFO, "ipcluster.output"):
            with client.stream_output() as stream:
                client.submit(flood, 2).result(10)
                assert stream.flush()
                assert len(caplog.messages) == 2
                client.submit(flood, 3).result(10)
            client.submit(flood, 4).result(10)

    assert caplog.messages == [f"[engine 0] line {n}" for n in (0, 1, 0, 1, 2)]


def test_two_readers_each_get_every_line_of_many_tasks() -> None:
    """Of all engines, in each engine's order, although tasks run while lines are on their way."""
    heard: list[list[tuple[int, str]]] = [[], []]
    with (
        Cluster("busy", n=2) as cluster,
        cluster.client() as client,
        client.stream_output(lambda engine, line: heard[0].append((engine, line))),
        client.stream_output(lambda engine, line: heard[1].append((engine, line))),
    ):
        list(client.map(print, range(5000)))

    assert heard[0] == heard[1]
    assert sorted(int(line) for _, line in heard[0]) == list(range(5000))
    for engine in (0, 1):
        numbers = [int(line) for other, line in heard[0] if other == engine]
        assert numbers == sorted(numbers)


def test_a_stream_outlives_nothing_and_says_what_ended() -> None:
    """When the cluster ends, closing it returns at once; opening another one says how the cluster ended."""
    cluster = Cluster.create_sync("over", n=1)
    client = Client.connect("over")
    stream = client.stream_output(print)
    cluster.teardown_sync()
    start = time.monotonic()
    assert not stream.flush()
    stream.close()
    stream.close()

    assert time.monotonic() - start < 10
    with pytest.raises(errors.ClusterEnded, match="'over' #1"):
        client.stream_output(print)
    client.shutdown(wait=False)


def test_a_record_of_a_task_of_the_main_script_is_in_the_log_once() -> None:
    """From a module-level logger of `__main__`, on forked and on spawned engines."""
    code = """
        import logging, sys
        from ipcluster_core import Cluster
        log = logging.getLogger(__name__)
        def work():
            log.info("hello")
            logging.getLogger("x").info("hello x")
            logging.getLogger("x").debug("not by default")
        for method in ("fork", "spawn"):
            with Cluster("scripted", n=1, start_method=method) as cluster, cluster.client() as client:
                client.submit(work).result(10)
                with client.stream_output(lambda engine, line: None):
                    pass
                print(cluster.logs_sync([0])["engine-0"])
    """
    lines = [line.split(" ", 2)[2] for line in steps.run_step(code).splitlines()]

    assert lines == ["__main__ INFO hello", "x INFO hello x"] * 2


def test_the_command_line_follows_a_log_across_its_halves(tmp_path: Path) -> None:
    """Each line from the tail on, once."""
    with Cluster("followed", n=1) as cluster, cluster.client() as client:
        client.submit(flood, 10).result(10)
        with subprocess.Popen(
            [sys.executable, "-m", "ipcluster_core.cli", "logs", "followed", "-f", "--engine", "0", "--tail", "3"],
            stdout=subprocess.PIPE,
            text=True,
        ) as follower:
            assert follower.stdout is not None
            first = [follower.stdout.readline() for _ in range(3)]
            client.submit(write_long_lines, 15_000).result(60)
            second = [follower.stdout.readline() for _ in range(15_000)]
            cluster.teardown_sync()
            follower.wait(10)

    assert first == [f"[engine-0] line {n}\n" for n in (7, 8, 9)]
    assert [int(line.split()[1]) for line in second] == list(range(15_000))


def write_long_lines(lines: int) -> None:
    """Print 6 MB, more than one file of a log holds."""
    for n in range(lines):
        print(n, "x" * 400)  # noqa: T201 - it is what is looked for


def pipes(pid: int) -> list[str]:
    """Return the pipes that a process has open, each as often as it has."""
    names = [fd.readlink().name for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return [name for name in names if name.startswith("pipe:")]


def test_no_engine_holds_the_pipe_of_another(cluster: Cluster) -> None:
    """Nor does controller or broker: an engine has its own, as standard output and error."""
    cluster.scale_sync(4)
    cluster.wait_sync(4)
    cluster.restart_sync([0])
    engines = [engine.pid for engine in cluster.status_sync().engines if engine.pid is not None]
    own = [pipes(pid) for pid in engines]

    assert [len(several) for several in own] == [2] * 4
    assert len({pipe for several in own for pipe in several}) == 4
    assert pipes(steps.part("loud", "controller")) == pipes(steps.part("loud", "broker")) == []
