"""What a client's callers have to send, how much of it may wait, and which tasks travel together."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import wire
from .futures import TaskFuture
from .wire import Buffer, Notice

__all__ = ["Farewell", "Lease", "Options", "Outbox", "Question", "Statement", "Task", "fits"]

#: Items, and bytes of their content, that wait to be sent before callers have to wait.
_MOST_ITEMS = 200_000
_MOST_BYTES = 64 << 20

#: Content that is not counted: so many bytes, times the number of items, are no matter.
_SMALL_BYTES = 512

#: Most tasks in one message to the broker.
_MOST_TASKS = 1024


class Options(NamedTuple):
    """What a view of a client has set."""

    retries: int = 0
    engines: tuple[int, ...] | None = None
    timeout: float | None = None
    name: str | None = None
    gang: tuple[int, int] | None = None  # its number, and how many tasks are of it
    on_note: Callable[[Any], object] | None = None  # stays here

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


_Item: TypeAlias = Task | Question | Statement | Farewell


class Outbox:
    """What waits to be sent, in order: appended by callers' threads, taken by one thread at a time.

    A broker that keeps as much as it can leaves the rest with its clients; then callers have to wait for room.
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._bytes = 0  # of items that are not small
        self._room = threading.Condition()
        self._callers = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: _Item) -> None:
        """Add an item, whether there is room or not."""
        size = _size(item)
        if size > _SMALL_BYTES:
            with self._room:
                self._bytes += size
        self._items.append(item)

    def first(self) -> _Item:
        """Return the next item."""
        return self._items[0]

    def pop(self) -> _Item:
        """Take the next item."""
        item = self._items.popleft()
        size = _size(item)
        if size > _SMALL_BYTES:
            with self._room:
                self._bytes -= size
        if self._callers and self._is_below(0.5):
            self.wake()
        return item

    @property
    def full(self) -> bool:
        """Whether callers have to wait."""
        return not self._is_below(1.0)

    def _is_below(self, share: float) -> bool:
        return len(self._items) < share * _MOST_ITEMS and self._bytes < share * _MOST_BYTES

    def wait_for_room(self, give_up: Callable[[], bool]) -> None:
        """Wait until there is much room, or a reason not to wait: whoever brings that about calls `wake`."""
        with self._room:
            self._callers += 1
            try:
                self._room.wait_for(lambda: self._is_below(0.5) or give_up())
            finally:
                self._callers -= 1

    def wake(self) -> None:
        """Have callers that wait look again."""
        with self._room:
            self._room.notify_all()


def _size(item: _Item) -> int:
    return len(item.payload) + sum(map(len, item.buffers)) if isinstance(item, Task) else 0


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
