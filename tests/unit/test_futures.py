"""A future that makes its condition when somebody first waits does all that the standard one does."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, as_completed, wait
from contextlib import suppress
from typing import Any

import pytest

import steps
from ipcluster_core.futures import TaskFuture


class Home:
    """Stands for a connection whose tasks are cancelled in time, or not."""

    uid = "abc"

    def __init__(self, *, in_time: bool) -> None:
        self.in_time = in_time
        self.asked = 0

    def cancel(self, future: TaskFuture[Any]) -> bool:
        """Cancel."""
        self.asked += 1
        if self.in_time:
            future.settle_cancelled()
        return self.in_time


def new(number: int = 0, *, in_time: bool = True) -> TaskFuture[Any]:
    """Return a future whose task is cancelled in time, or not."""
    return TaskFuture(Home(in_time=in_time), number)


def settle_value(future: TaskFuture[Any]) -> None:
    """Settle a future with a value."""
    future.settle(7, None)


def settle_error(future: TaskFuture[Any]) -> None:
    """Settle a future with an error."""
    future.settle(None, KeyError("k"))


def settle_cancelled(future: TaskFuture[Any]) -> None:
    """Note that a future was cancelled."""
    future.settle_cancelled()


def outcome(future: Future[Any]) -> str:
    """Say how a future came out."""
    try:
        return f"value {future.result(0)}"
    except (CancelledError, KeyError, TimeoutError) as error:
        return type(error).__name__


OUTCOMES = [(settle_value, "value 7"), (settle_error, "KeyError"), (settle_cancelled, "CancelledError")]


@pytest.fixture(params=[False, True], ids=["settled first", "looked at first"])
def future(request: pytest.FixtureRequest) -> TaskFuture[Any]:
    """A future that nobody has looked at, and one that somebody has."""
    made = new()
    if request.param:
        assert not made.done()
    return made


@pytest.fixture
def wait_in_thread() -> Iterator[Callable[[TaskFuture[Any]], list[str]]]:
    """Start to wait for a future in a thread; what it gets comes into a list."""
    threads = []

    def start(future: TaskFuture[Any]) -> list[str]:
        got: list[str] = []

        def get() -> None:
            try:
                got.append(f"value {future.result(10)}")
            except (CancelledError, KeyError) as error:
                got.append(type(error).__name__)

        threads.append(threading.Thread(target=get))
        threads[-1].start()
        return got

    yield start
    for thread in threads:
        thread.join()


def test_a_new_future_is_running_and_costs_no_condition() -> None:
    """Until somebody looks."""
    future = new(3)

    assert future._lazy is None
    assert future.number == 3
    assert (future.running(), future.done(), future.cancelled()) == (True, False, False)
    assert future._lazy is not None


@pytest.mark.parametrize(("settle", "text"), OUTCOMES)
def test_a_settled_future_gives_its_outcome(
    future: TaskFuture[Any], settle: Callable[[TaskFuture[Any]], None], text: str
) -> None:
    """As often as it is asked."""
    settle(future)

    assert [outcome(future), outcome(future)] == [text, text]
    assert (future.running(), future.done()) == (False, True)
    assert future.cancelled() == (text == "CancelledError")


@pytest.mark.parametrize(("settle", "text"), OUTCOMES)
@pytest.mark.parametrize("later", [settle_value, settle_error, settle_cancelled])
def test_a_settled_future_stays_as_it_is(
    future: TaskFuture[Any],
    settle: Callable[[TaskFuture[Any]], None],
    text: str,
    later: Callable[[TaskFuture[Any]], None],
) -> None:
    """A second outcome of a task that ran twice is not one."""
    settle(future)
    later(future)

    assert outcome(future) == text


@pytest.mark.parametrize(("settle", "text"), OUTCOMES)
def test_who_waits_is_woken(
    wait_in_thread: Callable[[TaskFuture[Any]], list[str]], settle: Callable[[TaskFuture[Any]], None], text: str
) -> None:
    """By each kind of outcome."""
    future = new()
    got = wait_in_thread(future)
    steps.wait_until(lambda: future._lazy is not None)
    settle(future)

    steps.wait_until(lambda: got)
    assert got == [text]


def test_result_and_exception_wait_no_longer_than_they_may(future: TaskFuture[Any]) -> None:
    """A future that they gave up on can still be settled."""
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        future.result(0.02)
    with pytest.raises(TimeoutError):
        future.exception(0.02)
    passed = time.monotonic() - start
    settle_value(future)

    assert 0.04 <= passed < 1
    assert future.exception() is None
    assert future.result() == 7


def test_a_value_may_be_none_or_an_exception(future: TaskFuture[Any]) -> None:
    """What a task returns is its value, whatever it is."""
    error = KeyError("returned")
    other = new()
    future.settle(None, None)
    other.settle(error, None)

    assert future.result() is None
    assert other.result() is error
    assert other.exception() is None


def test_a_raised_exception_is_the_task_s_own(future: TaskFuture[Any]) -> None:
    """The object that was set, by result and by exception."""
    error = KeyError("k")
    future.settle(None, error)

    with pytest.raises(KeyError) as raised:
        future.result()
    assert raised.value is error
    assert future.exception() is error


def test_a_failed_future_is_in_no_cycle_with_its_exception() -> None:
    """Both go as soon as nobody holds them."""
    held = [new()]
    held[0].settle(None, KeyError("k"))
    gone = weakref.ref(held[0])
    gc.disable()
    try:
        with suppress(KeyError):
            held.pop().result()

        assert gone() is None
    finally:
        gc.enable()


# cancelling


def test_cancel_asks_its_connection(future: TaskFuture[Any]) -> None:
    """In time: it is cancelled, and stays so."""
    assert future.cancel()
    assert future.cancelled()
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.exception()


def test_cancel_of_a_task_that_goes_on_changes_nothing() -> None:
    """It may have a result yet."""
    future = new(in_time=False)

    assert not future.cancel()
    assert (future.cancelled(), future.running()) == (False, True)
    settle_value(future)
    assert future.result() == 7


def test_cancel_of_a_settled_future_asks_nobody() -> None:
    """There is nothing to cancel."""
    home = Home(in_time=True)
    future: TaskFuture[Any] = TaskFuture(home, 1)
    settle_value(future)

    assert not future.cancel()
    assert home.asked == 0


def test_a_task_s_id_names_its_client_and_its_number() -> None:
    """So another step can ask for it."""
    assert new(7).task_id == "abc-7"


# callbacks


@pytest.mark.parametrize(("settle", "text"), OUTCOMES)
def test_callbacks_are_called_once_in_order(
    future: TaskFuture[Any], settle: Callable[[TaskFuture[Any]], None], text: str
) -> None:
    """Those added before when it is settled, a later one at once; each sees the outcome."""
    called: list[tuple[int, str]] = []
    for number in range(2):
        future.add_done_callback(lambda f, number=number: called.append((number, outcome(f))))  # type: ignore[misc]
    assert called == []
    settle(future)
    settle(future)
    assert called == [(0, text), (1, text)]
    future.add_done_callback(lambda f: called.append((2, outcome(f))))

    assert called == [(0, text), (1, text), (2, text)]


def test_a_callback_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is called; what happened is logged."""
    future, called = new(), []
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(called.append)
    settle_value(future)

    assert called == [future]
    assert "ZeroDivisionError" in caplog.text


# together with the standard library


def test_wait_and_as_completed_take_settled_and_open_ones() -> None:
    """In any mixture with standard futures."""
    early, late, standard = new(), new(), Future[Any]()
    settle_value(early)
    done, left = wait([early, late, standard], timeout=0)
    assert (done, left) == ({early}, {late, standard})
    settle_cancelled(late)
    standard.set_result(8)

    assert wait([early, late, standard], timeout=0).not_done == set()
    assert set(as_completed([early, late, standard], timeout=0)) == {early, late, standard}


@pytest.mark.parametrize(("settle", "text"), OUTCOMES)
def test_as_completed_is_woken_by_each_kind_of_outcome(settle: Callable[[TaskFuture[Any]], None], text: str) -> None:
    """While it waits."""
    futures = [new(number) for number in range(3)]

    def settle_all() -> None:
        steps.wait_until(lambda: all(future._waiters for future in futures))
        for future in reversed(futures):
            settle(future)

    thread = threading.Thread(target=settle_all)
    thread.start()
    found = list(as_completed(futures, timeout=10))
    thread.join()

    assert sorted(future.number for future in found) == [0, 1, 2]  # type: ignore[attr-defined]
    assert {outcome(future) for future in found} == {text}


def test_wait_for_the_first_exception_ends_with_it() -> None:
    """A value does not end it."""
    futures = [new(number) for number in range(3)]

    def settle_two() -> None:
        steps.wait_until(lambda: all(future._waiters for future in futures))
        settle_value(futures[0])
        settle_error(futures[1])

    thread = threading.Thread(target=settle_two)
    thread.start()
    done, left = wait(futures, timeout=10, return_when=FIRST_EXCEPTION)
    thread.join()

    assert (done, left) == (set(futures[:2]), {futures[2]})


def test_asyncio_can_await_it() -> None:
    """By ``asyncio.wrap_future``, settled before or after."""

    async def main() -> list[object]:
        early, late, failed = new(), new(), new()
        settle_value(early)
        wrapped = [asyncio.wrap_future(future) for future in (early, late, failed)]
        thread = threading.Thread(target=lambda: (settle_value(late), settle_error(failed)))
        thread.start()
        got = await asyncio.wait_for(asyncio.gather(*wrapped, return_exceptions=True), 10)
        thread.join()
        return got

    first, second, third = asyncio.run(main())

    assert (first, second) == (7, 7)
    assert isinstance(third, KeyError)


# races


LOOKS: dict[str, Callable[[TaskFuture[Any], list[object]], object]] = {
    "result": lambda future, got: got.append(future.result(10)),
    "wait": lambda future, got: got.extend(f.result() for f in wait([future], timeout=10).done),
    "callback": lambda future, got: future.add_done_callback(lambda f: got.append(f.result())),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_no_outcome_is_missed_by_who_begins_to_look_at_that_moment(
    look: Callable[[TaskFuture[Any], list[object]], object],
) -> None:
    """Settling races with the first look, which makes the condition."""
    futures = [new(number) for number in range(300)]
    barrier = threading.Barrier(2)
    got: list[object] = []

    def look_at_all() -> None:
        for future in futures:
            barrier.wait()
            look(future, got)

    thread = threading.Thread(target=look_at_all)
    thread.start()
    for future in futures:
        barrier.wait()
        settle_value(future)
    thread.join()

    assert got == [7] * 300


class Watched(TaskFuture[Any]):
    """Has something happen when its state is looked at."""

    happen: Callable[[], object] | None = None

    @property
    def _state(self) -> str:  # type: ignore[override]
        happen, self.happen = self.happen, None
        if happen is not None:
            happen()
        return self.__dict__["state"]

    @_state.setter
    def _state(self, value: str) -> None:
        self.__dict__["state"] = value


def test_who_begins_to_wait_in_the_middle_of_settling_is_not_forgotten() -> None:
    """The future was seen without a condition, and its outcome is not set yet."""
    future, got = Watched(lambda _: False, 0), []
    thread = threading.Thread(target=lambda: got.extend(wait([future], timeout=2).done))

    def begin_to_wait() -> None:
        thread.start()
        assert thread.ident is not None
        frames = sys._current_frames
        # It waits to make the condition; or, if that goes wrong, already with it.
        steps.wait_until(
            lambda: frames()[thread.ident].f_code.co_name == "_condition" or future._waiters  # type: ignore[index]
        )

    future.happen = begin_to_wait
    settle_value(future)
    thread.join()

    assert got == [future]
    assert future.result() == 7


def test_a_fork_does_not_copy_the_lock_held() -> None:
    """Futures work in a child that was forked while other threads looked at futures."""
    code = """
        import os, threading
        from ipcluster_core.futures import TaskFuture

        over = threading.Event()

        def look():
            while not over.is_set():
                TaskFuture(None, 0).done()

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(8):
            pid = os.fork()
            if not pid:
                future = TaskFuture(None, 0)
                future.settle(3, None)
                os._exit(future.result() if future.done() else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        over.set()
        print(set(codes))
    """

    assert steps.run_step(code, timeout=10) == "{3}"
