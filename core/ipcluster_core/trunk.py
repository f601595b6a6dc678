"""One stream of bytes to another host that carries many, and signs of life. Pure: bytes in, events and bytes out.

::

    | kind u8 | number u32 | length u32 | payload |         little-endian

    OPEN n name      a new stream; each side numbers its own, and no number comes again
    DATA n bytes     at most `WINDOW_BYTES` of them that were not taken yet
    CREDIT n u32     so many of them were
    CLOSE n          the end of a stream, from either side; what still comes for it is dropped
    TELL 0 json      from one side to the other
    POKE k writes    what has changed in the memory of rank k: (offset u32, length u32, bytes) ...
    PING 0           when nothing else was to be sent for a while

Who has heard nothing for `SILENCE_SECONDS` takes the other side for lost.
"""

from __future__ import annotations

import enum
import itertools
import json
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "PREAMBLE",
    "SILENCE_SECONDS",
    "Arrived",
    "Closed",
    "Event",
    "Opened",
    "Poked",
    "Told",
    "Trunk",
    "Write",
    "after_preamble",
]

#: What an outpost says first: whatever a login has printed before it is no part of the trunk.
PREAMBLE = b"\0ipcluster-outpost/1\n"

#: Seconds without a word after which the other side is lost.
SILENCE_SECONDS = 10.0

#: Seconds after which a side says something, if it has nothing to say.
PING_SECONDS = 2.0

#: Bytes of one stream that may be on their way.
WINDOW_BYTES = 1 << 20

#: Bytes that may wait to be sent before streams have to wait: a ping waits behind them.
_BACKLOG_BYTES = 1 << 20

#: Longest payload of a frame, in bytes.
_LONGEST = 1 << 24

_HEAD = struct.Struct("<BII")
_COUNT = struct.Struct("<I")
_PLACE = struct.Struct("<II")


class _Kind(enum.IntEnum):
    PING = 0
    OPEN = 1
    DATA = 2
    CREDIT = 3
    CLOSE = 4
    TELL = 5
    POKE = 6


class Write(NamedTuple):
    """Bytes at a place in a rank's memory."""

    offset: int
    content: bytes


class Opened(NamedTuple):
    """The other side has opened a stream to what has that name here."""

    number: int
    name: str


class Arrived(NamedTuple):
    """Bytes of a stream. They are given back when somebody has taken them, see `Trunk.give_back`."""

    number: int
    content: bytes


class Closed(NamedTuple):
    """A stream has come to its end; whatever had been sent has arrived before."""

    number: int


class Told(NamedTuple):
    """The other side says something."""

    message: Mapping[str, Any]


class Poked(NamedTuple):
    """The other side's memory of a rank has changed; the writes are to be made in their order."""

    rank: int
    writes: Sequence[Write]


Event = Opened | Arrived | Closed | Told | Poked


class _Stream:
    __slots__ = ("credit", "owed")

    def __init__(self) -> None:
        self.credit = WINDOW_BYTES  # bytes that may be sent
        self.owed = 0  # bytes that were taken, and the other side does not know it yet


class Trunk:
    """One side.

    Parameters
    ----------
    now
        As `time.monotonic` has it.
    first
        Number of its first stream: 1 on one side, 2 on the other.
    """

    def __init__(self, now: float, *, first: int) -> None:
        self._numbers = itertools.count(first, 2)
        self._streams: dict[int, _Stream] = {}
        self._rest = b""
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_heard = True
        self._spoke = self._heard = now

    # streams

    def open(self, name: str) -> int:
        """Open a stream to what has that name on the other side; return its number."""
        number = next(self._numbers)
        self._streams[number] = _Stream()
        self._put(_Kind.OPEN, number, name.encode())
        return number

    def room(self, number: int) -> int:
        """Return how many bytes of a stream may be sent now."""
        stream = self._streams.get(number)
        return 0 if stream is None else min(stream.credit, max(0, _BACKLOG_BYTES - self._unsent_bytes))

    def send(self, number: int, content: bytes) -> None:
        """Send bytes of a stream, for which there must be room."""
        self._streams[number].credit -= len(content)
        self._put(_Kind.DATA, number, content)

    def give_back(self, number: int, size: int) -> None:
        """Note that bytes that had arrived were taken: so many more may come."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.owed += size
        if stream.owed >= WINDOW_BYTES // 4:
            self._put(_Kind.CREDIT, number, _COUNT.pack(stream.owed))
            stream.owed = 0

    def close(self, number: int) -> None:
        """Close a stream. Idempotent."""
        if self._streams.pop(number, None) is not None:
            self._put(_Kind.CLOSE, number, b"")

    # anything else

    def tell(self, message: Mapping[str, Any]) -> None:
        """Say something to the other side."""
        self._put(_Kind.TELL, 0, json.dumps(message, separators=(",", ":")).encode())

    def poke(self, rank: int, writes: Iterable[Write]) -> None:
        """Tell what has changed in the memory of a rank."""
        pieces = [part for at, content in writes for part in (_PLACE.pack(at, len(content)), content)]
        if pieces:
            self._put(_Kind.POKE, rank, b"".join(pieces))

    # bytes

    def feed(self, data: bytes, now: float) -> list[Event]:
        """Take bytes from the other side.

        Returns
        -------
        list
            What they mean, in order.

        Raises
        ------
        ValueError
            They mean nothing: nothing more can be understood.
        """
        self._heard = now
        data = self._rest + data if self._rest else data
        events: list[Event] = []
        at = 0
        while len(data) - at >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(data, at)
            if kind > max(_Kind) or length > _LONGEST:
                raise ValueError(f"a frame of kind {kind} and {length} bytes is none of ours")
            end = at + _HEAD.size + length
            if end > len(data):
                break
            try:
                events += self._understand(_Kind(kind), number, data[at + _HEAD.size : end])
            except struct.error as error:
                raise ValueError(f"a frame of kind {kind} is none of ours: {error}") from error
            at = end
        self._rest = data[at:]
        return events

    def _understand(self, kind: _Kind, number: int, payload: bytes) -> list[Event]:
        match kind:
            case _Kind.OPEN:
                self._streams[number] = _Stream()
                return [Opened(number, payload.decode())]
            case _Kind.DATA if number in self._streams:
                return [Arrived(number, payload)]
            case _Kind.CREDIT if number in self._streams:
                self._streams[number].credit += _COUNT.unpack(payload)[0]
            case _Kind.CLOSE if self._streams.pop(number, None) is not None:
                return [Closed(number)]
            case _Kind.TELL:
                return [Told(json.loads(payload))]
            case _Kind.POKE:
                return [Poked(number, _writes(payload))]
            case _:  # a ping, or what was under way when a stream was closed
                pass
        return []

    def _put(self, kind: _Kind, number: int, payload: bytes) -> None:
        if not self._is_heard:
            return
        self._unsent.append(memoryview(_HEAD.pack(kind, number, len(payload)) + payload))
        self._unsent_bytes += _HEAD.size + len(payload)

    @property
    def unsent(self) -> Sequence[memoryview]:
        """What is to be sent, in pieces."""
        return self._unsent

    def sent(self, size: int, now: float) -> None:
        """Note that so many bytes of `unsent` have left."""
        self._spoke = now
        self._unsent_bytes -= size
        while size:
            if size < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][size:]
                return
            size -= len(self._unsent.popleft())

    def fall_silent(self) -> None:
        """Note that nobody hears this side any more."""
        self._is_heard = False
        self._unsent.clear()
        self._unsent_bytes = 0

    # signs of life

    def tick(self, now: float) -> None:
        """Have something to say, if it is time."""
        if not self._unsent and now - self._spoke >= PING_SECONDS:
            self._put(_Kind.PING, 0, b"")

    def is_silent(self, now: float) -> bool:
        """Tell whether the other side is to be taken for lost."""
        return now - self._heard >= SILENCE_SECONDS

    def deadline(self) -> float:
        """Return when to look at `tick` and `is_silent` again."""
        silent = self._heard + SILENCE_SECONDS
        waits = self._unsent or not self._is_heard
        return silent if waits else min(silent, self._spoke + PING_SECONDS)


def _writes(payload: bytes) -> list[Write]:
    found, at = [], 0
    while at < len(payload):
        offset, length = _PLACE.unpack_from(payload, at)
        at += _PLACE.size
        if at + length > len(payload):
            raise ValueError("a write that is longer than its frame")
        found.append(Write(offset, payload[at : at + length]))
        at += length
    return found


def after_preamble(data: bytes) -> tuple[bytes, bytes | None]:
    """Split what an outpost has sent first: what its login had printed, and what is the trunk's.

    Returns
    -------
    tuple
        The second is None as long as the preamble has not come.
    """
    noise, found, rest = data.partition(PREAMBLE)
    return noise, rest if found else None
