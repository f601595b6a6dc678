"""What the broker keeps for engines: functions, values that clients have put, and the tasks' own bytes.

Each is kept as long as somebody may need it: a function while one of the clients that sent it remembers that, or a work
uses it; a value while its client has not dropped it, or a work uses it; a task's bytes until its work is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from . import wire
from .recent import Recent
from .scheduling import Assignment, Work
from .values import Values
from .wire import Buffer

__all__ = ["Inventory", "Shelf", "work_of"]


def work_of(client: str, message: wire.Submit) -> Work:
    """Return the work that a client's submit asks for.

    Returns
    -------
    Work
        Not queued yet.

    Raises
    ------
    ValueError
        Its options make no sense. Values of a wrong kind give a TypeError or OverflowError.
    """
    options = message.options or {}
    engines, timeout = options.get("engines"), options.get("timeout")
    seconds = None if timeout is None else float(timeout)
    if seconds is not None and not seconds > 0:
        raise ValueError(f"a task's limit of {seconds} s")
    return Work(
        client,
        message.base,
        message.tasks,
        message.function,
        None if engines is None else frozenset(map(int, engines)),
        int(options.get("retries", 0)),
        seconds,
        str(options.get("name", "")),
    )


@dataclass(slots=True)
class Shelf:
    """What an engine has got already. `inline` makes of shared buffers what it is sent, for one on another host."""

    functions: Recent = field(default_factory=Recent)
    values: set[bytes] = field(default_factory=set)
    inline: Callable[[Sequence[Buffer]], Sequence[Buffer]] | None = None


@dataclass(slots=True)
class _Function:
    blob: bytes
    users: int = 0  # clients that remember having sent it, and works


@dataclass(slots=True, eq=False)
class _Payload:
    offsets: list[int]
    sizes: Buffer
    body: Buffer
    buffers: Sequence[Buffer]
    refs: list[bytes]

    @property
    def size(self) -> int:
        return len(self.sizes) + len(self.body) + sum(map(len, self.buffers))


class Inventory:
    """Contents by key or work; opens no pickle."""

    def __init__(self) -> None:
        self._functions: dict[bytes, _Function] = {}
        self._sent: dict[str, Recent] = {}
        self._values: Values[wire.Value] = Values()
        self._payloads: dict[Work, _Payload] = {}
        self.task_bytes = 0

    # from clients

    def add_function(self, client: str, function: wire.Function) -> None:
        """Keep a function that a client has sent."""
        sent = self._sent.setdefault(client, Recent())
        if function.key in sent:
            return
        self._functions.setdefault(function.key, _Function(bytes(function.blob))).users += 1
        forgotten = sent.add(function.key)
        if forgotten is not None:
            self._disuse(forgotten)

    def add_value(self, client: str, value: wire.Value) -> None:
        """Keep a value that a client has put."""
        self._values.put(value.key, client, value)

    def drop_values(self, keys: Iterable[bytes]) -> list[tuple[bytes, str]]:
        """Note that their client gives up values; return those that go, with their clients."""
        return self._remove(self._values.drop(keys))

    def forget_client(self, client: str) -> list[tuple[bytes, str]]:
        """Note that a client is gone; return the values that go with it."""
        for key in self._sent.pop(client, Recent()):
            self._disuse(key)
        return self.drop_values(self._values.of_client(client))

    def add_tasks(self, work: Work, message: wire.Submit) -> str:
        """Keep the bytes of a work.

        Returns
        -------
        str
            Empty, or why its tasks cannot run.

        Raises
        ------
        ValueError
            The message contradicts itself, or its function was never sent.
        """
        ends = wire.offsets(message.sizes, message.tasks)
        if ends[-1] != len(message.body) or message.function not in self._functions:
            raise ValueError("a submit whose sizes do not fit, or of an unknown function")
        refs = [bytes.fromhex(key) for key in (message.options or {}).get("refs", ())]
        if self._values.missing(refs):
            return "a value that it refers to is not (or no longer) here; was it put by this client?"
        self._values.take(refs)
        self._functions[message.function].users += 1
        payload = self._payloads[work] = _Payload(ends, message.sizes, message.body, message.buffers, refs)
        self.task_bytes += payload.size
        return ""

    def settle(self, work: Work) -> list[tuple[bytes, str]]:
        """Forget the bytes of a work that is settled; return the values that go with it, with their clients."""
        payload = self._payloads.pop(work, None)
        if payload is None:
            return []
        self.task_bytes -= payload.size
        self._disuse(bytes(work.function))  # type: ignore[call-overload]
        return self._remove(self._values.give_back(payload.refs))

    # to engines

    def messages(self, assignment: Assignment, shelf: Shelf) -> list[list[Buffer]]:
        """Return what to send to an engine for a chunk: values and function that it lacks, and the tasks."""
        piece = assignment.slice
        work, payload = piece.work, self._payloads[piece.work]
        ends = payload.offsets
        new = [key for key in payload.refs if key not in shelf.values]
        shelf.values.update(new)
        function = bytes(work.function)  # type: ignore[call-overload]
        blob = b""
        if function not in shelf.functions:
            shelf.functions.add(function)
            blob = self._functions[function].blob
        chunk = wire.Chunk(
            assignment.chunk,
            work.base + piece.start,
            piece.stop - piece.start,
            function,
            payload.sizes[8 * piece.start : 8 * piece.stop],
            memoryview(payload.body)[ends[piece.start] : ends[piece.stop]],
            blob,
            payload.buffers,
        )
        values = [self._values.content(key) for key in new]
        if shelf.inline is not None:
            values = [value._replace(buffers=shelf.inline(value.buffers)) for value in values]
            chunk = chunk._replace(buffers=shelf.inline(chunk.buffers))
        return [*(value.encode() for value in values), chunk.encode()]

    def _disuse(self, key: bytes) -> None:
        function = self._functions[key]
        function.users -= 1
        if function.users == 0:
            del self._functions[key]

    def _remove(self, keys: Iterable[bytes]) -> list[tuple[bytes, str]]:
        gone = [(key, str(self._values.owner(key))) for key in keys]
        for key, _ in gone:
            self._values.remove(key)
        return gone
