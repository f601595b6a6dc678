"""C20, C29: what a task raises comes to whoever asks, and so do results of tasks whose client is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import steps
from ipcluster_core import Client, Cluster, errors

#: Characters of a message that nobody can want in full.
HUGE = 50_000_000


class TwoArguments(Exception):
    """Hands one of its arguments to its base: it cannot be unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Holder(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock, self.socket = threading.Lock(), socket.socket()


class NoText(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


# What is raised speaks for itself.
# ruff: noqa: D103


def raise_two() -> None:
    raise TwoArguments(7, "two arguments")


def raise_holder() -> None:
    raise Holder("a lock and a socket")


def raise_unknown() -> None:
    import engines_only

    raise engines_only.Known("of a module that engines only have")


def raise_no_text() -> None:
    raise NoText("never shown")


def raise_chained() -> None:
    try:
        {}["the first"]
    except KeyError as error:
        raise ValueError("the second") from error


def raise_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), TypeError("other")])


def raise_huge() -> None:
    raise ValueError("x" * HUGE)


#: What is raised; what its type is called; what its text holds; what the engine's traceback holds.
RAISED: dict[str, tuple[Callable[[], None], str, str, str]] = {
    "two arguments": (raise_two, "TwoArguments", "two arguments", "raise_two"),
    "a lock and a socket": (raise_holder, "Holder", "a lock and a socket", "raise_holder"),
    "a module of engines only": (raise_unknown, "Known", "of a module that engines only have", "raise_unknown"),
    "no text": (raise_no_text, "NoText", "", "raise_no_text"),
    "a chained pair": (raise_chained, "ValueError", "the second", "KeyError: 'the first'"),
    "a group": (raise_group, "ExceptionGroup", "several", "TypeError: other"),
    "50 MB": (raise_huge, "ValueError", "xxxx", "raise_huge"),
}


@pytest.fixture(scope="module")
def engines_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module that engines have, and clients do not."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "engines_only.py").write_text("class Known(Exception): pass\n")
    return folder


@pytest.mark.parametrize("what", RAISED)
def test_an_exception_of_any_kind_arrives_with_type_message_and_traceback(engines_folder: Path, what: str) -> None:
    """C20: within 5 s; the engine keeps its pid, and the next task works."""
    task, kind, text, traceback = RAISED[what]
    with Cluster("c20", n=1, cwd=str(engines_folder)) as cluster, cluster.client() as client:
        engine = client.submit(os.getpid).result(10)
        start = time.monotonic()
        error = client.submit(task).exception(10)
        passed = time.monotonic() - start

        assert error is not None
        assert passed < 5
        name = error.type_name if isinstance(error, errors.TaskError) else type(error).__qualname__
        assert name.rpartition(".")[2] == kind
        shown = "" if kind == "NoText" else str(error)
        assert text in shown
        assert len(shown) < 1_000_000
        assert ("characters" in shown) == (what == "50 MB")  # the mark of a cut
        assert traceback in str(error.__cause__)
        assert client.submit(os.getpid).result(10) == engine


STEP_A = """
    import sys, time
    from pathlib import Path
    from ipcluster_core import Client

    def work(n, log, seconds):
        with open(log, "a") as file:
            file.write(f"{n}\\n")
        time.sleep(seconds)
        if n == 3:
            raise LookupError(f"no {n}")
        return n * n

    client = Client.connect("c29")
    futures = [client.submit(work, n, sys.argv[1], float(sys.argv[2])) for n in range(4)]
    Path(sys.argv[3]).write_text(" ".join(future.task_id for future in futures))
    print("submitted", flush=True)
    print([repr(future.exception(60)) if n == 3 else future.result(60) for n, future in enumerate(futures)], flush=True)
"""


@pytest.fixture
def kept() -> Iterator[Cluster]:
    """Two engines; results are kept for a few seconds."""
    with Cluster("c29", n=2, keep_results=4.0) as cluster:
        yield cluster


def test_results_of_a_step_that_was_killed_are_fetched_by_id_until_they_expire(kept: Cluster, tmp_path: Path) -> None:
    """C29: four tasks of 1 s (not 15 s) run once; another step gets three results and an exception; then "expired"."""
    log, ids = tmp_path / "log", tmp_path / "ids"
    with steps.started_step(STEP_A, str(log), "1", str(ids)) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "submitted\n"
        steps.wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
        step.send_signal(signal.SIGKILL)
        step.wait()
    with Client.connect("c29") as client:
        found = [client.future(task) for task in ids.read_text().split()]

        assert [future.result(20) for future in found[:3]] == [0, 1, 4]
        with pytest.raises(LookupError, match="no 3"):
            found[3].result(20)
        assert sorted(log.read_text().split()) == ["0", "1", "2", "3"]

        def expired(task: str) -> bool:
            error = client.future(task).exception(10)
            return isinstance(error, errors.ResultExpired) and "is not kept" in str(error)

        assert steps.wait_until(lambda: all(map(expired, ids.read_text().split())), 15) < 15


def test_a_client_that_was_frozen_for_a_while_gets_its_results_itself(kept: Cluster, tmp_path: Path) -> None:
    """C29, variant: nothing comes from or to it for two seconds (not twenty), in which its tasks finish."""
    log, ids = tmp_path / "log", tmp_path / "ids"
    with steps.started_step(STEP_A, str(log), "0.3", str(ids)) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "submitted\n"
        steps.wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
        step.send_signal(signal.SIGSTOP)
        steps.wait_until(lambda: kept.status_sync().tasks["settled"] >= 4)
        time.sleep(2)  # the length of the silence is what is tried
        step.send_signal(signal.SIGCONT)

        assert step.stdout.readline() == "[0, 1, 4, \"LookupError('no 3')\"]\n"


CANCEL = """
    import json, sys
    from ipcluster_core import Client
    with Client.connect("c29") as client:
        print(json.dumps(client.cancel(sys.argv[1].split())))
"""


def test_another_step_cancels_running_tasks_by_id(kept: Cluster, tmp_path: Path) -> None:
    """C29: those that run are interrupted, those that wait never begin; the step that waits for them is told."""
    log, ids = tmp_path / "log", tmp_path / "ids"
    with steps.started_step(STEP_A, str(log), "60", str(ids)) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "submitted\n"
        steps.wait_until(lambda: log.exists() and len(log.read_text().split()) == 2)
        start = time.monotonic()
        outcomes = json.loads(steps.run_step(CANCEL, ids.read_text()))

        assert time.monotonic() - start < 10
        assert set(outcomes.values()) == {True}
        assert len(log.read_text().split()) == 2
        assert "CancelledError" in step.communicate(timeout=10)[1]
