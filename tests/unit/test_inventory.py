"""What the broker keeps for engines."""

from __future__ import annotations

import pytest

from ipcluster_core import recent, wire
from ipcluster_core.inventory import Inventory, Shelf, work_of
from ipcluster_core.scheduling import Assignment, Slice, Work

F, G = b"f" * 16, b"g" * 16
KEY = b"k" * 16


def submit(function: bytes = F, refs: tuple[bytes, ...] = (), base: int = 0) -> tuple[Work, wire.Submit]:
    """Return a work of two tasks, and the message that brings it."""
    options = {"refs": [key.hex() for key in refs]} if refs else None
    body = [b"one", b"twoo"]
    message = wire.Submit(base, 2, function, wire.lengths(body), b"".join(body), options)
    return Work("c", base, 2, function), message


@pytest.fixture
def inventory() -> Inventory:
    """One with a function and a value of client "c"."""
    inventory = Inventory()
    inventory.add_function("c", wire.Function(F, b"def f"))
    inventory.add_value("c", wire.Value(KEY, b"value"))
    return inventory


def sent(inventory: Inventory, work: Work, shelf: Shelf, start: int, stop: int) -> list[wire.Chunk | wire.Value]:
    """Return what is sent for a slice."""
    messages = inventory.messages(Assignment(0, 5, Slice(work, start, stop)), shelf)
    *values, chunk = messages
    return [*map(wire.Value.decode, values), wire.Chunk.decode(chunk)]


def test_an_engine_gets_function_and_values_once(inventory: Inventory) -> None:
    """And of the tasks exactly its slice."""
    work, message = submit(refs=(KEY,))
    assert inventory.add_tasks(work, message) == ""
    shelf = Shelf()
    value, first = sent(inventory, work, shelf, 0, 1)
    (second,) = sent(inventory, work, shelf, 1, 2)

    assert isinstance(value, wire.Value)
    assert value.blob == b"value"
    assert isinstance(first, wire.Chunk)
    assert isinstance(second, wire.Chunk)
    assert (first.base, first.tasks, bytes(first.body), bytes(first.blob)) == (0, 1, b"one", b"def f")
    assert (second.base, second.tasks, bytes(second.body), bytes(second.blob)) == (1, 1, b"twoo", b"")


def test_bytes_of_tasks_are_counted_and_go_with_their_work(inventory: Inventory) -> None:
    """Twice settled is once settled."""
    work, message = submit()
    inventory.add_tasks(work, message)
    assert inventory.task_bytes == 7 + 16

    assert inventory.settle(work) == []
    assert inventory.settle(work) == []
    assert inventory.task_bytes == 0


def test_a_value_goes_when_neither_its_client_nor_a_task_needs_it(inventory: Inventory) -> None:
    """Whichever comes last."""
    work, message = submit(refs=(KEY,))
    inventory.add_tasks(work, message)

    assert inventory.drop_values([KEY]) == []
    assert inventory.settle(work) == [(KEY, "c")]
    assert inventory.add_tasks(*submit(refs=(KEY,), base=5)).startswith("a value that it refers to is not")


def test_a_function_is_there_as_long_as_a_client_or_a_work_uses_it(inventory: Inventory) -> None:
    """Also of a client that is gone, until its last task is settled."""
    inventory.add_function("d", wire.Function(F, b"def f"))
    work, message = submit()
    inventory.add_tasks(work, message)
    assert inventory.forget_client("d") == []
    assert inventory.forget_client("c") == [(KEY, "c")]
    (chunk,) = sent(inventory, work, Shelf(), 0, 2)
    assert isinstance(chunk, wire.Chunk)
    assert chunk.blob == b"def f"
    inventory.settle(work)

    with pytest.raises(ValueError, match="unknown function"):
        inventory.add_tasks(*submit(base=9))
    assert inventory._functions == {}


def test_a_client_that_makes_functions_for_ever_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has forgotten itself, by the same rule, are gone here."""
    monkeypatch.setattr(recent, "MOST", 10)
    inventory = Inventory()
    for number in range(100):
        inventory.add_function("c", wire.Function(bytes([number]) * 16, b"blob"))
        inventory.add_function("c", wire.Function(bytes([number]) * 16, b"blob"))

    assert sorted(inventory._functions) == [bytes([number]) * 16 for number in range(90, 100)]
    inventory.forget_client("c")
    assert inventory._functions == {}


def test_a_work_has_what_its_submit_asks_for() -> None:
    """And else the defaults."""
    _, plain = submit()
    wanted = plain._replace(options={"engines": [2, 0, 2], "retries": 1, "timeout": 2.5, "name": "fit"})
    work, default = work_of("c", wanted), work_of("c", plain)

    assert (work.client, work.base, work.count, work.function) == ("c", 0, 2, F)
    assert (work.engines, work.retries, work.timeout, work.name) == (frozenset({0, 2}), 1, 2.5, "fit")
    assert (default.engines, default.retries, default.timeout, default.name) == (None, 0, None, "")


@pytest.mark.parametrize(
    "options",
    [{"timeout": float("nan")}, {"timeout": 0}, {"timeout": "soon"}, {"retries": None}, {"engines": [None]}],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    """A limit that is not a number would never be over, and keep the broker looking at it."""
    with pytest.raises((ValueError, TypeError)):
        work_of("c", submit()[1]._replace(options=options))


@pytest.mark.parametrize("change", [{"body": b"short"}, {"function": G}])
def test_a_message_that_contradicts_itself_is_refused(inventory: Inventory, change: dict[str, bytes]) -> None:
    """Nothing is kept of it."""
    work, message = submit()
    with pytest.raises(ValueError, match="sizes do not fit, or of an unknown function"):
        inventory.add_tasks(work, message._replace(**change))

    assert inventory.task_bytes == 0


def test_what_an_engine_on_another_host_is_sent_has_no_references(inventory: Inventory) -> None:
    """Neither in values nor in tasks; what others are sent has."""
    inventory.add_value("c", wire.Value(G, b"large", [b"reference"]))
    work, message = submit(refs=(G,))
    inventory.add_tasks(work, message._replace(buffers=[b"reference"]))
    far, near = Shelf(inline=lambda buffers: [bytes(buffer).upper() for buffer in buffers]), Shelf()

    assert [list(map(bytes, part.buffers)) for part in sent(inventory, work, far, 0, 2)] == [[b"REFERENCE"]] * 2
    assert [list(map(bytes, part.buffers)) for part in sent(inventory, work, near, 0, 2)] == [[b"reference"]] * 2
