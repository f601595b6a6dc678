"""What a client's caller puts into the queue for the I/O thread, and which tasks travel together."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import wire
from .futures import TaskFuture
from .wire import Buffer, Notice

__all__ = ["Farewell", "Lease", "Options", "Question", "Statement", "Task", "fits"]

#: Most tasks in one message to the broker.
_MOST_TASKS = 1024


class Options(NamedTuple):
    """What a view of a client has set."""

    retries: int = 0
    engines: tuple[int, ...] | None = None
    timeout: float | None = None
    name: str | None = None
    gang: tuple[int, int] | None = None  # its number, and how many tasks are of it

    def on_wire(self, refs: frozenset[bytes]) -> dict[str, Any] | None:
        """Return what the broker must know; None if nothing differs from the defaults."""
        found: dict[str, Any] = {"refs": [key.hex() for key in sorted(refs)]} if refs else {}
        if self.retries:
            found["retries"] = self.retries
        if self.engines is not None:
            found["engines"] = self.engines
        if self.timeout is not None:
            found["timeout"] = self.timeout
        if self.name is not None:
            found["name"] = self.name
        if self.gang is not None:
            found["gang"] = self.gang
        return found or None


class Task(NamedTuple):
    """A task on its way to the broker."""

    future: TaskFuture[Any]
    function: bytes
    blob: bytes
    payload: bytes
    buffers: Sequence[Buffer]
    options: Options
    refs: frozenset[bytes]


class Lease:
    """Shared buffers, and how many tasks that are not settled need them."""

    __slots__ = ("buffers", "tasks")

    def __init__(self, buffers: Sequence[Buffer], tasks: int) -> None:
        self.buffers = buffers
        self.tasks = tasks


class Statement(NamedTuple):
    """A message that is not answered, or by the outcome of a task."""

    message: wire.Value | wire.Drop | Notice


class Question(NamedTuple):
    """A message that is answered under a number."""

    number: int
    message: Notice | wire.Cancel
    answer: concurrent.futures.Future[Any]


class Farewell(NamedTuple):
    """The last message."""


def fits(run: list[Task], task: Task) -> bool:
    """Tell whether a task may travel with those gathered before it: same function, next number, no buffers."""
    last = run[-1]
    return (
        last.function == task.function
        and last.options is task.options
        and last.refs == task.refs
        and last.future.number + 1 == task.future.number
        and not last.buffers
        and not task.buffers
        and len(run) < _MOST_TASKS
    )
