"""What a client's callers have to send."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

import steps
from ipcluster_core import outbox
from ipcluster_core.futures import TaskFuture
from ipcluster_core.outbox import Options, Outbox, Question, Statement, Task, fits
from ipcluster_core.wire import Drop, Kind, Notice

OPTIONS = Options()


def task(number: int, size: int = 10, *, function: bytes = b"f", options: Options = OPTIONS, **changes: Any) -> Task:
    """Return a task with so much in it."""
    future: TaskFuture[Any] = TaskFuture(None, number)  # type: ignore[arg-type]  # nobody cancels it
    return Task(future, function, b"blob", b"x" * size, (), options, frozenset())._replace(**changes)


def test_items_leave_in_the_order_in_which_they_came() -> None:
    """Whatever they are."""
    box = Outbox()
    items = [task(1), Statement(Drop(b"k" * 16)), Question(7, Notice(Kind.ASK, {}), concurrent.futures.Future())]
    for item in items:
        box.append(item)

    assert (len(box), box.first()) == (3, items[0])
    assert [box.pop() for _ in range(3)] == items
    assert not box


@pytest.mark.parametrize("size", [10, 2000])
def test_it_is_full_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Small content is not counted, its number is."""
    monkeypatch.setattr(outbox, "_MOST_ITEMS", 100)
    monkeypatch.setattr(outbox, "_MOST_BYTES", 20_000)
    box, number = Outbox(), 0
    while not box.full:
        number += 1
        box.append(task(number, size))

    assert number == (100 if size == 10 else 10)
    box.pop()
    assert not box.full


def test_a_caller_waits_until_there_is_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each single one that leaves."""
    monkeypatch.setattr(outbox, "_MOST_ITEMS", 10)
    box = Outbox()
    for number in range(10):
        box.append(task(number))
    thread = threading.Thread(target=box.wait_for_room, args=(lambda: False,))
    thread.start()
    steps.wait_until(lambda: box._callers)
    for _ in range(5):
        box.pop()
    assert thread.is_alive()
    box.pop()
    thread.join(10)

    assert not thread.is_alive()


def test_a_caller_does_not_wait_for_what_will_not_come() -> None:
    """The connection is over, and says so."""
    box, over = Outbox(), threading.Event()
    outbox_full = threading.Thread(target=box.wait_for_room, args=(over.is_set,))
    box._bytes = 1 << 40
    outbox_full.start()
    steps.wait_until(lambda: box._callers)
    over.set()
    box.wake()
    outbox_full.join(10)

    assert not outbox_full.is_alive()


def test_tasks_travel_together_that_are_alike_and_follow_each_other() -> None:
    """Up to a number of them."""
    first = task(1)

    assert fits([first], task(2))
    assert not fits([first], task(3))
    assert not fits([first], task(2, function=b"g"))
    assert not fits([first], task(2, options=Options(retries=1)))
    assert not fits([first], task(2, buffers=[b"array"]))
    assert not fits([first], task(2, refs=frozenset((b"k",))))
    assert not fits([task(n) for n in range(1024)], task(1024))
