"""The way to another host, as bytes: what is put in at one end comes out at the other, bounded, and silence is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core.trunk import (
    PING_SECONDS,
    PREAMBLE,
    SILENCE_SECONDS,
    WINDOW_BYTES,
    Arrived,
    Closed,
    Event,
    Opened,
    Poked,
    Told,
    Trunk,
    Write,
    after_preamble,
)


def taken(trunk: Trunk, now: float = 0.0) -> bytes:
    """Take all that a side wants to send."""
    data = b"".join(trunk.unsent)
    trunk.sent(len(data), now)
    return data


def pass_on(source: Trunk, target: Trunk, now: float = 0.0) -> list[Event]:
    """Carry all that one side wants to send to the other one."""
    return target.feed(taken(source, now), now)


def pair() -> tuple[Trunk, Trunk]:
    """Return two sides."""
    return Trunk(0.0, first=1), Trunk(0.0, first=2)


def test_streams_carry_bytes_both_ways_until_either_side_closes_them() -> None:
    """Each side numbers its own, so that both can open some at the same time."""
    head, outpost = pair()
    mine, theirs = head.open("errand"), outpost.open("task")
    head.send(mine, b"run")
    opened = pass_on(head, outpost) + pass_on(outpost, head)
    outpost.send(mine, b"done")
    outpost.close(mine)

    assert mine != theirs
    assert opened == [Opened(mine, "errand"), Arrived(mine, b"run"), Opened(theirs, "task")]
    assert pass_on(outpost, head) == [Arrived(mine, b"done"), Closed(mine)]
    assert head.room(mine) == 0


def test_what_comes_for_a_closed_stream_is_dropped() -> None:
    """It was under way when this side closed; closing again does nothing."""
    head, outpost = pair()
    number = head.open("task")
    pass_on(head, outpost)
    outpost.send(number, b"late")
    outpost.give_back(number, WINDOW_BYTES)
    head.close(number)
    head.close(number)

    assert pass_on(outpost, head) == []
    assert pass_on(head, outpost) == [Closed(number)]
    assert pass_on(head, outpost) == []


def test_a_stream_has_room_for_what_was_taken_on_the_other_side() -> None:
    """A slow reader holds up its stream, and no other."""
    head, outpost = pair()
    slow, other = head.open("task"), head.open("ranks")
    pass_on(head, outpost)
    for _ in range(4):
        head.send(slow, bytes(WINDOW_BYTES // 4))
        pass_on(head, outpost)
    full, beside = head.room(slow), head.room(other)
    outpost.give_back(slow, WINDOW_BYTES // 2)
    pass_on(outpost, head)

    assert (full, beside) == (0, WINDOW_BYTES)
    assert head.room(slow) == WINDOW_BYTES // 2


def test_streams_wait_while_much_is_to_be_sent() -> None:
    """So that memory is bounded, and a sign of life does not wait behind minutes of data."""
    head, _ = pair()
    first, second = head.open("a"), head.open("b")
    head.send(first, bytes(WINDOW_BYTES))
    before = head.room(second)
    taken(head)

    assert before == 0
    assert head.room(second) == WINDOW_BYTES


@given(st.lists(st.integers(1, 40), max_size=30))
def test_frames_may_come_in_any_pieces(sizes: list[int]) -> None:
    """As a pipe gives them."""
    head, outpost = pair()
    head.tell({"secret": "s"})
    number = head.open("output-0")
    head.send(number, b"x" * 100)
    head.poke(3, [Write(8, b"ab"), Write(0, b"")])
    head.close(number)
    data, events, at = taken(head), [], 0
    for size in [*sizes, 1000]:
        events += outpost.feed(data[at : at + size], 0.0)
        at += size

    assert events == [
        Told({"secret": "s"}),
        Opened(number, "output-0"),
        Arrived(number, b"x" * 100),
        Poked(3, [Write(8, b"ab"), Write(0, b"")]),
        Closed(number),
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x63" + bytes(8), "kind 99"),
        (b"\x02" + b"\xff" * 8, "4294967295 bytes"),
        (b"\x06" + bytes(4) + b"\x09\0\0\0" + bytes(4) + b"\x09\0\0\0" + b"x", "longer than its frame"),
        (b"\x06" + bytes(4) + b"\x01\0\0\0" + b"x", "requires a buffer"),
        (b"\x05" + bytes(4) + b"\x01\0\0\0" + b"{", "Expecting property name"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, text: str) -> None:
    """Nothing after it could be understood."""
    with pytest.raises(ValueError, match=text):
        Trunk(0.0, first=1).feed(data, 0.0)


def test_a_side_with_nothing_to_say_says_so() -> None:
    """Soon enough for the other one, which takes it for a word and nothing else."""
    head, outpost = pair()
    head.tick(PING_SECONDS - 0.1)
    quiet = taken(head)
    head.tick(PING_SECONDS)
    events = pass_on(head, outpost, PING_SECONDS)

    assert (quiet, events) == (b"", [])
    assert not outpost.is_silent(SILENCE_SECONDS)
    assert outpost.is_silent(PING_SECONDS + SILENCE_SECONDS)
    assert 2 * PING_SECONDS < SILENCE_SECONDS


def test_the_deadline_is_the_next_sign_of_life_or_the_others_silence() -> None:
    """What waits to be sent is a sign of life of its own."""
    head, _ = pair()
    idle = head.deadline()
    head.tell({})
    waiting = head.deadline()
    head.fall_silent()

    assert (idle, waiting, head.deadline()) == (PING_SECONDS, SILENCE_SECONDS, SILENCE_SECONDS)


def test_a_side_that_is_not_heard_says_nothing_more() -> None:
    """And still understands."""
    head, outpost = pair()
    head.tell({"lost": True})
    head.fall_silent()
    head.tell({"lost": True})
    outpost.tell({"gone": []})

    assert taken(head) == b""
    assert pass_on(outpost, head) == [Told({"gone": []})]


def test_what_a_login_prints_is_no_part_of_it() -> None:
    """A banner, a fortune, in whatever pieces."""
    banner = b"Welcome to node2!\n"

    assert after_preamble(banner + PREAMBLE[:5]) == (banner + PREAMBLE[:5], None)
    assert after_preamble(banner + PREAMBLE + b"rest") == (banner, b"rest")
    assert after_preamble(PREAMBLE) == (b"", b"")
