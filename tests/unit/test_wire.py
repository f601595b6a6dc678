"""Messages and their frames."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipcluster_core import wire
from ipcluster_core.wire import (
    Buffer,
    Cancel,
    Cancelled,
    CancelOutcome,
    Chunk,
    Done,
    Function,
    Kind,
    Note,
    Notice,
    Results,
    Submit,
)

KEY = bytes(range(16))
Message = Notice | Function | Submit | Chunk | Done | Note | Results | Cancel | Cancelled

MESSAGES: dict[str, Message] = {
    "hello": Notice(Kind.HELLO, {"role": "engine", "engine": 3, "name": "Zoë"}),
    "function": Function(KEY, b"pickle"),
    "submit of two": Submit(7, 2, KEY, wire.lengths([b"ab", b"c"]), b"abc", {"engines": [0, 2], "retries": 1}),
    "submit with buffers": Submit(2**64 - 1, 1, KEY, wire.lengths([b"a"]), b"a", None, [b"large", b"larger"]),
    "chunk of two": Chunk(5, 7, 2, KEY, wire.lengths([b"ab", b"c"]), b"abc"),
    "chunk with buffers": Chunk(2**32 - 1, 7, 1, KEY, wire.lengths([b"ab"]), b"ab", b"function", [b"large"]),
    "done of two": Done(5, 1, 2, 10**12, wire.lengths([b"ab", b""]), b"\0\1", b"ab"),
    "done with buffers": Done(5, 1, 1, 0, wire.lengths([b"ab"]), b"\0", b"ab", [b"large"]),
    "note": Note(5, 1, b"pickle"),
    "results of two": Results(7, 2, wire.lengths([b"ab", b""]), b"\0\3", b"ab"),
    "results with buffers": Results(7, 1, wire.lengths([b"ab"]), b"\0", b"ab", [b"large"]),
    "cancel": Cancel(2**40),
    "cancelled": Cancelled(7, CancelOutcome.ASKED),
    "not cancelled": Cancelled(7, CancelOutcome.TOO_LATE),
    "cancel a running one": Cancel(0, running=True),
}


def content(message: Message) -> dict[str, object]:
    """Return the fields of a message."""
    found = message._asdict()
    return {**found, "buffers": [bytes(buffer) for buffer in found.get("buffers", ())]}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_messages_come_out_as_they_went_in(message: Message) -> None:
    """Whatever a message holds; frames arrive as views on received memory."""
    frames: list[Buffer] = [memoryview(bytes(frame)) for frame in message.encode()]
    again = type(message).decode(frames)

    assert content(again) == content(message)
    assert [bytes(frame) for frame in again.encode()] == [bytes(frame) for frame in frames]


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_every_kind_has_its_own_first_byte(message: Message) -> None:
    """The receiver knows what it has before it looks further."""
    kind = wire.kind_of(message.encode())

    assert kind.name == (message.kind.name if isinstance(message, Notice) else type(message).__name__.upper())


def test_task_messages_hold_no_pickle_of_their_own() -> None:
    """The broker opens none: a header is packed numbers, and bodies pass through as they are."""
    body = pickle.dumps({"a": 1})
    frames = Submit(1, 1, KEY, wire.lengths([body]), body).encode()

    assert frames[2] is body
    assert len(frames[0]) == 1 + 8 + 4 + 16


@pytest.mark.parametrize("frames", [[], [b""], [b"\0"], [b"\xff"]])
def test_what_is_none_of_our_messages_is_refused(frames: list[bytes]) -> None:
    """A stranger's bytes are a ValueError, whatever they are."""
    with pytest.raises(ValueError, match=r"empty message|not a valid Kind"):
        wire.kind_of(frames)


SUBMIT = [bytes(frame) for frame in MESSAGES["submit of two"].encode()]
DONE = [bytes(frame) for frame in MESSAGES["done of two"].encode()]
MALFORMED: list[tuple[type[Submit | Chunk | Done | Results | Cancel], list[Buffer], str]] = [
    (Submit, [], "malformed message of kind None"),
    (Submit, [b"\5short", b"", b"", b""], "malformed message of kind 5"),
    (Submit, [*SUBMIT[:3]], "malformed message of kind 5"),
    (Submit, Submit(1, 0, KEY, b"", b"").encode(), "malformed submit"),
    (Submit, Submit(1, 2, KEY, b"", b"", None, [b"x"]).encode(), "malformed submit"),
    (Submit, [*SUBMIT[:3], b"[1]"], "not a JSON object"),
    (Submit, [*SUBMIT[:3], b"{"], "Expecting property name"),
    (Chunk, [b"\6", b"", b"", b""], "malformed message of kind 6"),
    (Submit, Submit(2**64 - 1, 2, KEY, b"\0" * 16, b"").encode(), "malformed submit"),
    (Submit, Submit(1, 2**32 - 1, KEY, b"\0" * 8, b"").encode(), "8 bytes of lengths for 4294967295 tasks"),
    (Chunk, Chunk(1, 1, 2, KEY, b"\0" * 8, b"").encode(), "8 bytes of lengths for 2 tasks"),
    (Done, Done(1, 0, 0, 0, b"", b"", b"").encode(), "0 statuses for 0 tasks"),
    (Done, [DONE[0], b"", *DONE[2:]], "0 bytes of lengths for 2 tasks"),
    (Results, Results(0, 1, b"", b"\0", b"").encode(), "0 bytes of lengths for 1 tasks"),
    (Done, [*DONE[:2], b"\0", b""], "1 statuses for 2 tasks"),
    (Results, Results(0, 3, b"", b"\0", b"").encode(), "1 statuses for 3 tasks"),
    (Cancel, [b"\x09\0"], "malformed message of kind 9"),
]


@pytest.mark.parametrize(("kind", "frames", "text"), MALFORMED)
def test_malformed_task_message_is_refused(kind: type[Submit], frames: list[Buffer], text: str) -> None:
    """Frames that are missing, too short, or do not fit each other are a ValueError that says so."""
    with pytest.raises(ValueError, match=text):
        kind.decode(frames)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\1", "Expecting value"),
        (b"\1nothing", "Expecting value"),
        (b"\1{\xff}", "codec can't decode"),
        (b"\1[1, 2]", "not a JSON object"),
        (b"\1" + b"[" * 200_000, "nested too deeply"),
        (b"\xaa{}", "not a valid Kind"),
    ],
)
def test_malformed_notice_is_refused(frame: bytes, text: str) -> None:
    """A hello is read before its sender is known: nothing in it may do more than raise ValueError."""
    with pytest.raises(ValueError, match=text):
        Notice.decode([frame])


def test_notice_without_frames_is_refused() -> None:
    """Also what has no frame at all."""
    with pytest.raises(ValueError, match="empty message"):
        Notice.decode([])


@settings(max_examples=200, derandomize=True, database=None)
@given(frames=st.lists(st.binary(max_size=40), max_size=6), kind=st.sampled_from(list(Kind)))
def test_no_bytes_do_more_than_raise_valueerror(frames: list[bytes], kind: Kind) -> None:
    """Whatever arrives, each decoder takes it or refuses it."""
    readers: list[type[Message]] = [Notice, Function, Submit, Chunk, Done, Results, Cancel, Cancelled]
    arrived = [bytes((kind,)) + frames[0], *frames[1:]] if frames else []
    outcomes = [outcome(reader, arrived) for reader in readers]

    assert set(outcomes) <= {"taken", "refused"}


def outcome(reader: type[Message], frames: Sequence[bytes]) -> str:
    """Return what a decoder made of some frames."""
    try:
        reader.decode(frames)
    except ValueError:
        return "refused"
    return "taken"


@given(payloads=st.lists(st.binary(max_size=5), max_size=50))
@settings(max_examples=100, derandomize=True, database=None)
def test_offsets_cut_a_body_into_its_payloads(payloads: list[bytes]) -> None:
    """A run of tasks is one body, of which any slice can be handed out."""
    body = b"".join(payloads)
    ends = wire.offsets(memoryview(wire.lengths(payloads)), len(payloads))

    assert [body[ends[i] : ends[i + 1]] for i in range(len(payloads))] == payloads
    assert ends[-1] == len(body)


@pytest.mark.parametrize(
    ("packed", "count", "text"),
    [(b"\0" * 16, 3, "2 lengths for 3 tasks"), (b"\0" * 16, 1, "2 lengths for 1 tasks"), (b"\0" * 7, 1, "multiple")],
)
def test_lengths_that_do_not_fit_the_number_of_tasks_are_refused(packed: bytes, count: int, text: str) -> None:
    """A body is cut only if it is certain where."""
    with pytest.raises(ValueError, match=text):
        wire.offsets(packed, count)


@pytest.mark.parametrize("value", [-1, 2**64, 1.0, "1", None, float("nan"), [1]])
def test_what_no_message_can_carry_is_no_number(value: object) -> None:
    """It is refused where it comes in, not where it would be sent on."""
    with pytest.raises(ValueError, match="is not the number of anything"):
        wire.number_of(value)
    assert wire.number_of(2**64 - 1) == 2**64 - 1


def test_lengths_are_little_endian() -> None:
    """Machines of any kind read each other's."""
    assert wire.lengths([b"x" * 258]) == bytes([2, 1, 0, 0, 0, 0, 0, 0])


def test_notice_travels_as_plain_json() -> None:
    """Whoever debugs can read it."""
    (frame,) = Notice(Kind.END, {"reason": "torn down"}).encode()

    assert json.loads(bytes(frame[1:])) == {"reason": "torn down"}
