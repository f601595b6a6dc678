"""Blocking twins: in scripts, threads, running loops and forks, and when somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar

import pytest

import steps
from ipcluster_core import _sync
from ipcluster_core._sync import THREAD_NAME, run, stop, synced, synced_class


@pytest.fixture(autouse=True)
def fresh_loop() -> Iterator[None]:
    """Begin and end without the background thread."""
    stop()
    yield
    stop()


class Counter:
    """Counts, by coroutine and by twin."""

    def __init__(self) -> None:
        self.n = 0

    async def add(self, n: int, *, times: int = 1) -> int:
        """Add a number so many times."""
        await asyncio.sleep(0)
        self.n += n * times
        return self.n

    async def fail(self) -> None:
        """Raise an error."""
        raise KeyError("k")

    async def where(self) -> str:
        """Return the name of the thread."""
        return threading.current_thread().name

    async def nested(self) -> int:
        """Call a twin where one must not."""
        return self.add_sync(1)

    @classmethod
    async def _made(cls, n: int) -> Counter:
        counter = cls()
        await counter.add(n)
        return counter

    add_sync = synced(add)
    fail_sync = synced(fail)
    where_sync = synced(where)
    nested_sync = synced(nested)


async def make(n: int) -> Counter:
    """Make a counter."""
    counter = Counter()
    await counter.add(n)
    return counter


class Maker:
    """Makes counters."""

    make_sync = synced_class(make)


def loops() -> list[str]:
    """Return the names of the background threads that there are."""
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME]


def interrupt_when_main_waits() -> None:
    """Press Ctrl-C once the main thread waits for its twin."""
    main = threading.main_thread().ident
    assert main is not None
    steps.wait_until(lambda: sys._current_frames()[main].f_code.co_name == "wait")
    os.kill(os.getpid(), signal.SIGINT)


# calling


def test_a_twin_does_what_its_coroutine_does() -> None:
    """With the same arguments and the same result."""
    counter = Counter()

    assert counter.add_sync(2) == 2
    assert counter.add_sync(2, times=3) == 8
    assert Counter.add_sync(counter, 1) == 9
    assert Maker().make_sync(4).n == Maker.make_sync(n=4).n == 4


def test_a_twin_looks_like_its_coroutine() -> None:
    """Name, docstring and signature, for help and for editors."""
    assert Counter.add_sync.__doc__ == "Add a number so many times."
    assert str(inspect.signature(Counter().add_sync)) == "(n: 'int', *, times: 'int' = 1) -> 'int'"
    assert not inspect.iscoroutinefunction(Counter().add_sync)


def test_an_error_comes_out_of_the_twin() -> None:
    """With the line that raised it; the next call works."""
    counter = Counter()
    with pytest.raises(KeyError, match="k") as raised:
        counter.fail_sync()

    assert raised.traceback[-1].name == "fail"
    assert counter.add_sync(1) == 1


def test_all_twins_share_one_thread_made_at_the_first_call() -> None:
    """None is there before."""
    counter = Counter()
    assert loops() == []

    assert {counter.where_sync() for _ in range(3)} == {THREAD_NAME}
    assert loops() == [THREAD_NAME]


def test_twins_run_at_one_time_in_many_threads() -> None:
    """One thread's wait is not another one's."""
    barrier = asyncio.Barrier(5)

    async def meet() -> None:
        await barrier.wait()

    threads = [threading.Thread(target=lambda: run(meet())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert [thread.is_alive() for thread in threads] == [False] * 5
    assert loops() == [THREAD_NAME]


def test_a_twin_works_inside_a_running_loop() -> None:
    """As in a notebook."""
    counter = Counter()

    async def cell() -> int:
        return counter.add_sync(3)

    assert asyncio.run(cell()) == 3


def test_a_twin_on_the_loop_of_the_twins_is_refused() -> None:
    """It would wait for itself."""
    with pytest.raises(RuntimeError, match="await the coroutine instead"):
        Counter().nested_sync()


def test_a_twin_sees_the_context_of_its_caller() -> None:
    """Context variables are the caller's at the time of the call."""
    variable: ContextVar[int] = ContextVar("variable", default=0)

    async def look() -> int:
        return variable.get()

    variable.set(5)

    assert run(look()) == 5


# after a fork


def test_twins_work_after_a_fork_in_child_and_parent() -> None:
    """The child has a loop of its own and leaves the parent's alone, warnings included."""
    code = """
        import os, sys, warnings
        from ipcluster_core._sync import run, stop

        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # of Python 3.12 and newer

        async def double(n):
            return 2 * n

        run(double(1))
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(write, str(run(double(21))).encode())
            stop()
            sys.exit(0)
        os.waitpid(pid, 0)
        print(os.read(read, 10).decode(), run(double(4)), run(double(5)))
        stop()
    """
    with steps.started_step(code) as process:
        output, error = process.communicate(timeout=60)

    assert output == "42 8 10\n"
    assert error == ""


def test_stop_in_a_child_that_never_ran_a_twin_touches_nothing() -> None:
    """The parent's loop goes on."""
    code = """
        import os
        from ipcluster_core._sync import run, stop

        async def one():
            return 1

        run(one())
        pid = os.fork()
        if not pid:
            stop()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), run(one()))
    """

    assert steps.run_step(code, timeout=10) == "7 1"


# being interrupted


def test_an_interrupt_cancels_the_coroutine_and_waits_for_its_clean_up() -> None:
    """When the twin raises KeyboardInterrupt, the clean-up is over."""
    seen = []

    async def work() -> None:
        try:
            await asyncio.to_thread(interrupt_when_main_waits)
            await asyncio.sleep(60)
        finally:
            seen.append("cancelled")
            await asyncio.to_thread(lambda: None)
            seen.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        run(work())

    assert seen == ["cancelled", "cleaned"]


def test_a_second_interrupt_does_not_cut_the_clean_up_short() -> None:
    """The key pressed twice gets it no sooner, but whole."""
    seen = []

    async def work() -> None:
        try:
            await asyncio.to_thread(interrupt_when_main_waits)
            await asyncio.sleep(60)
        finally:
            await asyncio.shield(asyncio.to_thread(interrupt_when_main_waits))
            await asyncio.shield(asyncio.to_thread(interrupt_when_main_waits))
            seen.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        run(work())

    assert seen == ["cleaned"]


def test_an_interrupt_does_not_wait_for_ever_for_the_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is bounded."""
    monkeypatch.setattr(_sync, "_CLEANUP_TIMEOUT", 0.05)
    over = threading.Event()

    async def work() -> None:
        try:
            await asyncio.to_thread(interrupt_when_main_waits)
            await asyncio.sleep(60)
        finally:
            await asyncio.shield(asyncio.to_thread(over.wait, 10))

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(work())
    passed = time.monotonic() - start
    over.set()

    assert 0.05 <= passed < 2


def test_an_interrupt_harms_no_other_twin() -> None:
    """What another thread waits for goes on."""
    release, got = asyncio.Event(), []

    async def other() -> int:
        await release.wait()
        return 6

    async def let_go() -> None:
        release.set()

    thread = threading.Thread(target=lambda: got.append(run(other())))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(asyncio.to_thread(interrupt_when_main_waits))
    run(let_go())
    thread.join(10)

    assert got == [6]


# stopping


def test_stop_ends_the_thread_and_the_next_twin_begins_anew() -> None:
    """Also twice, and when there is none."""
    counter = Counter()
    stop()
    counter.add_sync(1)
    stop()
    stop()
    assert loops() == []

    assert counter.add_sync(1) == 2


def test_stop_cancels_twins_that_wait() -> None:
    """Their threads get an error, after the clean-up."""
    begun, got = threading.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            got.append("cleaned")

    def wait() -> None:
        try:
            run(work())
        except CancelledError:
            got.append("cancelled")

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(10)
    stop()
    thread.join(10)

    assert got == ["cleaned", "cancelled"]
