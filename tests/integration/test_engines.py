"""How engines are made: forked from a nanny that has imported for all of them, or executed anew."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import steps
from ipcluster_core import Cluster, errors


def modules() -> list[str]:
    """Return the names of the modules that this engine has imported."""
    return sorted(sys.modules)


def test_preloaded_modules_are_there_before_the_first_task(tmp_path: Path) -> None:
    """Also one in the engines' working folder; and a module that nobody named is not."""
    (tmp_path / "beside.py").write_text("answer = 42\n")
    with Cluster("eager", n=2, cwd=str(tmp_path), preload=["decimal", "beside"]) as cluster, cluster.client() as client:
        loaded = client.run(modules)

    assert all({"decimal", "beside", "cloudpickle"} <= set(names) for names in loaded.values())
    assert not any("numpy" in names for names in loaded.values())


def test_engines_load_neither_model_library_nor_loop_nor_workflow_engine() -> None:
    """They are small."""
    with Cluster("small", n=1) as cluster, cluster.client() as client:
        loaded = client.submit(modules).result(10)

    assert not {name.partition(".")[0] for name in loaded} & {"pydantic", "asyncio", "prefect", "airflow"}


def threads() -> int:
    """Return the number of Python threads of this engine."""
    import threading

    return threading.active_count()


def test_an_engine_runs_tasks_on_its_main_thread_and_has_no_other() -> None:
    """So signals reach the task, and nothing competes with it."""
    with Cluster("single", n=1) as cluster, cluster.client() as client:
        assert client.submit(threads).result(10) == 1


def test_spawned_engines_do_what_forked_ones_do(tmp_path: Path) -> None:
    """They are programs of their own; one that dies takes one task along and comes back."""
    (tmp_path / "beside.py").write_text("answer = 42\n")
    with Cluster("spawned", n=2, cwd=str(tmp_path), start_method="spawn", preload=["beside"]) as cluster:
        with cluster.client() as client:
            commands = client.run(lambda: Path("/proc/self/cmdline").read_text())
            assert all("ipcluster_core.engine" in command for command in commands.values())
            assert all("beside" in names for names in client.run(modules).values())
            with pytest.raises(errors.EngineLost, match=r"exit code 4"):
                client.submit(os._exit, 4).result(10)
            steps.wait_until(lambda: sorted(e.incarnation for e in cluster.status_sync().engines) == [0, 1])
            assert cluster.wait_sync(2) == 2
            assert list(client.map(abs, range(-100, 0))) == list(range(100, 0, -1))
        nanny = steps.part("spawned", "nanny")
        os.kill(nanny, 9)
        steps.wait_until(lambda: not steps.living("spawned"))


def test_a_package_installed_only_for_the_engines_interpreter_is_theirs() -> None:
    """`python` names the interpreter; one that cannot be run is said to be so."""
    with Cluster("own", n=1, python=sys.executable) as cluster, cluster.client() as client:
        assert client.submit(lambda: sys.executable).result(10) == sys.executable
    with pytest.raises(errors.LaunchError, match=r"/bin/false. ended before it was ready"):
        Cluster.create_sync("own", python="/bin/false")


def take(path: str) -> bool:
    """Take a lock for as long as this process lives; return whether it was free."""
    import fcntl

    file = Path(path).open("w")  # noqa: SIM115 - held by the process, as a device would be
    held.append(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


held: list[object] = []


def test_restarting_one_engine_frees_what_it_holds_and_keeps_its_id(tmp_path: Path) -> None:
    """Its task is lost and says why; the others lose nothing; a task that waits for it runs on its successor."""
    device = str(tmp_path / "device")
    with Cluster("devices", n=3) as cluster, cluster.client() as client:
        first, second = client.options(engines=[0]), client.options(engines=[1])
        assert first.submit(take, device).result(10)
        assert not second.submit(take, device).result(10)
        before = client.run(os.getpid)
        running, waiting = first.submit(time.sleep, 300), first.submit(os.getpid)
        other = second.submit(pow, 2, 10)
        steps.wait_until(lambda: cluster.status_sync().engines[0].tasks == 1)
        cluster.restart_sync([0], timeout=10)

        with pytest.raises(errors.EngineLost, match="it was restarted on request"):
            running.result(10)
        assert other.result(10) == 1024
        assert second.submit(take, device).result(10)
        after = client.run(os.getpid)
        assert waiting.result(10) == after[0] != before[0]
        assert {1: after[1], 2: after[2]} == {1: before[1], 2: before[2]}
        assert [engine.incarnation for engine in cluster.status_sync().engines] == [1, 0, 0]
        with pytest.raises(errors.ClusterError, match=r"has no engine \[9\]; it has: \[0, 1, 2\]"):
            cluster.restart_sync([9])
        cluster.restart_sync()
        assert not set(client.run(os.getpid).values()) & set(after.values())


def take_with_child(path: str, begun: str) -> None:
    """Take a lock, have a child in a session of its own hold it too, and work for five minutes."""
    assert take(path)
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()
    Path(begun).touch()
    time.sleep(300)


def work_until(path: str, log: str, number: int) -> tuple[int, int]:
    """Tell that this began, and work until a file is there."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    steps.wait_until(Path(path).exists, 60)
    return number, os.getpid()


def test_restarting_one_of_four_busy_engines_costs_the_others_nothing(tmp_path: Path) -> None:
    """Their tasks go on, each once; what the old process held, its children too, its successor has as it comes up."""
    device, begun, done, log = (str(tmp_path / name) for name in ("device", "begun", "done", "log"))
    with Cluster("busy", n=4) as cluster, cluster.client() as client:
        before = client.run(os.getpid)
        client.push({"x": 1})
        views = {engine: client.options(engines=[engine]) for engine in range(4)}
        lost = views[2].submit(take_with_child, device, begun)
        beside = {engine: views[engine].submit(work_until, done, log, engine) for engine in (0, 1, 3)}
        steps.wait_until(lambda: Path(begun).exists() and len(Path(log).read_text().split()) == 3)
        cluster.restart_sync([2], timeout=30)
        free = views[2].submit(take, device).result(10)
        still = {engine: future.running() for engine, future in beside.items()}
        Path(done).touch()

        assert free
        assert still == dict.fromkeys((0, 1, 3), True)
        assert [future.result(10) for future in beside.values()] == [(engine, before[engine]) for engine in (0, 1, 3)]
        assert sorted(Path(log).read_text().split()) == ["0", "1", "3"]
        with pytest.raises(errors.EngineLost, match="it was restarted on request"):
            lost.result(10)
        assert [(one.id, one.incarnation) for one in cluster.status_sync().engines] == [(0, 0), (1, 0), (2, 1), (3, 0)]
        assert client.pull("x", engines=[0, 1, 3]) == {0: 1, 1: 1, 3: 1}


def loaded(marker: str) -> Callable[[int], int]:
    """Be what a function is unpickled with; the first time, the engine is told to stop while it is at that."""
    if not Path(marker).exists():
        Path(marker).touch()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)  # cut short by the stop
        except BaseException as error:
            # As Python does with whatever is raised while a class is made.
            raise RuntimeError("it went wrong") from error
    return abs


class Loading:
    """A function that takes its time to be unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], Callable[[int], int]], tuple[str]]:
        return loaded, (self.marker,)

    def __call__(self, n: int) -> int:
        """Never get here: another function is loaded instead."""
        return abs(n)


def test_an_engine_that_is_told_to_stop_while_it_loads_a_function_stops(tmp_path: Path) -> None:
    """The stop is not the outcome of the tasks that wait for that function: they had not begun, and run elsewhere."""
    with Cluster("loading", n=1) as cluster, cluster.client() as client:
        assert client.submit(Loading(str(tmp_path / "marker")), -3).result(10) == 3
        (engine,) = cluster.status_sync().engines

    assert engine.incarnation == 1
