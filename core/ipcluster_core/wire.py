"""Messages between client, broker and engines, and their frames.

::

    client                      broker                      engine
      | Hello ------------------->| <------------------ Hello |
      | <------ Welcome / Refused |-- Welcome / Refused ----->|
      | Value ------------------->|-- Value ----------------->|   before the first chunk that uses it
      | Function, Submit -------->|-- Chunk ----------------->|   a slice of one or several tasks
      | <------------------- Note |<------------------- Note  |   what a task tells before its outcome
      | <---------------- Results |<------------------- Done  |   any number of them a chunk
      | Drop -------------------->|-- Drop ------------------>|
      | <------------------- Drop |                           |
      | Cancel ------------------>|                           |
      | <-------------- Cancelled |                           |
      | Ask --------------------->|                           |   about engines, or other clients' tasks
      | <------- Answer / Results |                           |
      | <------- End  (cluster is over, and why)              |

The task path packs its header with struct; the rest is JSON. A run of tasks travels as one body of concatenated
pickles with an array of their lengths, so that the broker can hand out any slice of it without opening anything.
All numbers are little-endian. Messages are named tuples: a step that imports them waits a fifth as long as for
dataclasses, and they are made in a third of the time.
"""

from __future__ import annotations

import enum
import json
import struct

# What `hmac` has of it costs the import of OpenSSL.
from _operator import _compare_digest  # pyright: ignore[reportPrivateUsage]
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Buffer",
    "Cancel",
    "CancelOutcome",
    "Cancelled",
    "Chunk",
    "Done",
    "Drop",
    "Function",
    "Kind",
    "Note",
    "Notice",
    "Results",
    "Status",
    "Submit",
    "Value",
    "kind_of",
    "lengths",
    "number_of",
    "offsets",
    "parts_of",
    "same_secret",
]

#: Version of all this, told in `hello`; partners of different versions refuse each other.
VERSION = 3

Buffer = bytes | bytearray | memoryview

#: So many numbers there are: what a message can carry.
_NUMBERS = 1 << 64


class Kind(enum.IntEnum):
    """First byte of every message."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    FUNCTION = 4
    SUBMIT = 5
    CHUNK = 6
    DONE = 7
    RESULTS = 8
    CANCEL = 9
    CANCELLED = 10
    ASK = 11
    ANSWER = 12
    BYE = 13
    END = 14
    VALUE = 15
    DROP = 16
    NOTE = 17


class Status(enum.IntEnum):
    """How one task came out; one byte each in `Done` and `Results`."""

    OK = 0  # payload: pickle of the value
    ERROR = 1  # payload: see serialize.dump_exception
    LOST = 2  # payload: JSON of the reason; written by the broker
    CANCELLED = 3  # no payload; also of a running task that was asked to end, and did


_SUBMIT = struct.Struct("<BQI16s")
_FUNCTION = struct.Struct("<B16s")
_CHUNK = struct.Struct("<BIQI16s")
_DONE = struct.Struct("<BIIIQ")
_RESULTS = struct.Struct("<BQI")
_CANCEL = struct.Struct("<BQ?")
_CANCELLED = struct.Struct("<BQB")
_VALUE = struct.Struct("<B16s")
_DROP = struct.Struct("<B16s")
_NOTE = struct.Struct("<BQI")


def same_secret(shown: bytes, secret: bytes) -> bool:
    """Compare secrets in a time that does not tell how much of them is equal."""
    return _compare_digest(shown, secret)


def kind_of(frames: Sequence[Buffer]) -> Kind:
    """Return the kind of a message; ValueError when it is none of ours."""
    if not frames or not len(frames[0]):
        raise ValueError("empty message")
    return Kind(frames[0][0])


def lengths(payloads: Sequence[Buffer]) -> bytes:
    """Pack the lengths of payloads."""
    return array("Q", map(len, payloads)).tobytes()


def offsets(packed: Buffer, count: int) -> list[int]:
    """Return the `count` + 1 offsets that packed lengths stand for; ValueError if there are not that many."""
    sizes = array("Q")
    sizes.frombytes(packed)
    if len(sizes) != count:
        raise ValueError(f"{len(sizes)} lengths for {count} tasks")
    total, ends = 0, [0]
    for size in sizes:
        total += size
        ends.append(total)
    return ends


def number_of(value: object) -> int:
    """Return what may number a task or a question; ValueError if no message can carry it."""
    if not isinstance(value, int) or not 0 <= value < _NUMBERS:
        raise ValueError(f"{value!r} is not the number of anything")
    return value


def parts_of(task_id: str) -> tuple[str, int]:
    """Return client and number in the id of a task; ValueError when it is none."""
    client, _, number = task_id.rpartition("-")
    return client, int(number)


def _require_sizes(sizes: Buffer, count: int) -> None:
    """Make sure that there is one packed length for each task, before any memory is taken for them."""
    if len(sizes) != 8 * count:
        raise ValueError(f"{len(sizes)} bytes of lengths for {count} tasks")


def _unpack(header: struct.Struct, frames: Sequence[Buffer], least: int) -> tuple[Any, ...]:
    if len(frames) < least or len(frames[0]) != header.size:
        raise ValueError(f"malformed message of kind {frames[0][0] if frames and len(frames[0]) else None}")
    return header.unpack(frames[0])


def _json_object(frame: Buffer) -> dict[str, Any]:
    try:
        match json.loads(bytes(frame)):
            case dict(data):
                return data
            case _:
                raise ValueError("not a JSON object")
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


class Notice(NamedTuple):
    """A message that is one JSON object: hello, welcome, refused, ask, answer, bye, end."""

    kind: Kind
    data: Mapping[str, Any]

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [bytes((self.kind,)) + json.dumps(self.data, separators=(",", ":")).encode()]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Notice:
        """Read the frames; ValueError if they are malformed."""
        kind = kind_of(frames)
        return cls(kind, _json_object(frames[0][1:]))


class Function(NamedTuple):
    """A pickled function, sent once under its hash (16 bytes)."""

    key: bytes
    blob: Buffer

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_FUNCTION.pack(Kind.FUNCTION, self.key), self.blob]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Function:
        """Read the frames; ValueError if they are malformed."""
        _, key = _unpack(_FUNCTION, frames, 2)
        return cls(key, frames[1])


class Value(NamedTuple):
    """A pickled value that tasks refer to by its key (16 random bytes); also from the broker to an engine."""

    key: bytes
    blob: Buffer
    buffers: Sequence[Buffer] = ()

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_VALUE.pack(Kind.VALUE, self.key), self.blob, *self.buffers]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Value:
        """Read the frames; ValueError if they are malformed."""
        _, key = _unpack(_VALUE, frames, 2)
        return cls(key, frames[1], frames[2:])


class Drop(NamedTuple):
    """The client gives up a value; the broker has an engine forget it, and tells the client that it is gone."""

    key: bytes

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_DROP.pack(Kind.DROP, self.key)]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Drop:
        """Read the frames; ValueError if they are malformed."""
        return cls(_unpack(_DROP, frames, 1)[1])


class Submit(NamedTuple):
    """A run of `tasks` tasks of one function, numbered from `base` by the client that sends it.

    `body` is the concatenation of the pickled calls, `sizes` their packed lengths. Only a run of one task has
    `buffers` (out-of-band data of its pickle). `options`: ``engines`` (list of ids), ``retries``,
    ``refs`` (keys of the values that the tasks use, in hexadecimal).
    """

    base: int
    tasks: int
    function: bytes
    sizes: Buffer
    body: Buffer
    options: Mapping[str, Any] | None = None
    buffers: Sequence[Buffer] = ()

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        options = json.dumps(self.options).encode() if self.options else b""
        header = _SUBMIT.pack(Kind.SUBMIT, self.base, self.tasks, self.function)
        return [header, self.sizes, self.body, options, *self.buffers]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Submit:
        """Read the frames; ValueError if they are malformed."""
        _, base, count, function = _unpack(_SUBMIT, frames, 4)
        options = _json_object(frames[3]) if len(frames[3]) else None
        if count == 0 or base + count > _NUMBERS or (len(frames) > 4 and count != 1):
            raise ValueError("malformed submit")
        _require_sizes(frames[1], count)
        return cls(base, count, function, frames[1], frames[2], options, frames[4:])


class Chunk(NamedTuple):
    """Tasks for one engine. `number` counts the engine's chunks; `blob` is the function if it is new to it."""

    number: int
    base: int
    tasks: int
    function: bytes
    sizes: Buffer
    body: Buffer
    blob: Buffer = b""
    buffers: Sequence[Buffer] = ()

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        header = _CHUNK.pack(Kind.CHUNK, self.number, self.base, self.tasks, self.function)
        return [header, self.sizes, self.body, self.blob, *self.buffers]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Chunk:
        """Read the frames; ValueError if they are malformed."""
        _, number, base, count, function = _unpack(_CHUNK, frames, 4)
        _require_sizes(frames[1], count)
        return cls(number, base, count, function, frames[1], frames[2], frames[3], frames[4:])


class Done(NamedTuple):
    """Outcomes of the tasks ``first .. first + count`` of a chunk; `busy` is the time they took, in ns."""

    chunk: int
    first: int
    tasks: int
    busy: int
    sizes: Buffer
    statuses: Buffer
    body: Buffer
    buffers: Sequence[Buffer] = ()

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        header = _DONE.pack(Kind.DONE, self.chunk, self.first, self.tasks, self.busy)
        return [header, self.sizes, self.statuses, self.body, *self.buffers]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Done:
        """Read the frames; ValueError if they are malformed."""
        _, chunk, first, count, busy = _unpack(_DONE, frames, 4)
        if count == 0 or len(frames[2]) != count:
            raise ValueError(f"{len(frames[2])} statuses for {count} tasks")
        _require_sizes(frames[1], count)
        return cls(chunk, first, count, busy, frames[1], frames[2], frames[3], frames[4:])


class Note(NamedTuple):
    """What a running task tells, pickled: from an engine by chunk and place in it, to a client by the task's number."""

    number: int
    place: int
    body: Buffer

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_NOTE.pack(Kind.NOTE, self.number, self.place), self.body]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Note:
        """Read the frames; ValueError if they are malformed."""
        _, number, place = _unpack(_NOTE, frames, 2)
        return cls(number, place, frames[1])


class Results(NamedTuple):
    """Outcomes of the client's tasks ``base .. base + count``; layout as in `Done`."""

    base: int
    tasks: int
    sizes: Buffer
    statuses: Buffer
    body: Buffer
    buffers: Sequence[Buffer] = ()

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [
            _RESULTS.pack(Kind.RESULTS, self.base, self.tasks),
            self.sizes,
            self.statuses,
            self.body,
            *self.buffers,
        ]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Results:
        """Read the frames; ValueError if they are malformed."""
        _, base, count = _unpack(_RESULTS, frames, 4)
        if len(frames[2]) != count:
            raise ValueError(f"{len(frames[2])} statuses for {count} tasks")
        _require_sizes(frames[1], count)
        return cls(base, count, frames[1], frames[2], frames[3], frames[4:])


class Cancel(NamedTuple):
    """The client wants its task `number` cancelled; also, if `running`, when an engine has it."""

    number: int
    running: bool = False

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_CANCEL.pack(Kind.CANCEL, self.number, self.running)]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Cancel:
        """Read the frames; ValueError if they are malformed."""
        _, number, running = _unpack(_CANCEL, frames, 1)
        return cls(number, running)


class CancelOutcome(enum.IntEnum):
    """What came of a wish to cancel."""

    TOO_LATE = 0  # an engine has it, or it is over
    DONE = 1  # it never ran and will not
    ASKED = 2  # the engine that has it was asked to leave it: its outcome tells


class Cancelled(NamedTuple):
    """Answer to `Cancel`."""

    number: int
    outcome: CancelOutcome

    def encode(self) -> list[Buffer]:
        """Return the frames."""
        return [_CANCELLED.pack(Kind.CANCELLED, self.number, self.outcome)]

    @classmethod
    def decode(cls, frames: Sequence[Buffer]) -> Cancelled:
        """Read the frames; ValueError if they are malformed."""
        _, number, outcome = _unpack(_CANCELLED, frames, 1)
        return cls(number, CancelOutcome(outcome))
