"""What engines print, as lines: none is lost, changed or doubled, and what is too much is counted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core.output import LineLimit, LineSplitter, notice_of

NOTICE = re.compile(rb"\[ipcluster\] (\d+) lines? dropped")


def split(pieces: list[bytes], longest: int = 1000) -> list[bytes]:
    """Return the lines that a splitter makes of pieces."""
    splitter = LineSplitter(longest)
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n", b"a\nb", b"\r\n", b""]), max_size=20))
def test_lines_are_the_same_however_the_bytes_were_cut(pieces: list[bytes]) -> None:
    """And together they are what was written, a last line without its end included."""
    whole = b"".join(pieces)
    lines = whole.split(b"\n")

    assert split(pieces) == split([whole]) == (lines if lines[-1] else lines[:-1])


@given(st.lists(st.sampled_from([b"\n", b"a", b"abcdefgh", b"abcdefghijklmn\nab", b"123456789\n"]), max_size=20))
def test_long_lines_are_cut_the_same_however_the_bytes_were_cut(pieces: list[bytes]) -> None:
    """The rest of each is counted."""
    whole = b"".join(pieces)
    lines = split(pieces, longest=8)

    assert lines == split([whole], longest=8) == split([bytes([byte]) for byte in whole], longest=8)
    for line, written in zip(lines, whole.split(b"\n"), strict=False):
        more = len(written) - 8
        assert line == (written if more <= 0 else written[:8] + f" [ipcluster] {more} bytes cut".encode())


def test_a_splitter_holds_no_more_than_the_longest_line() -> None:
    """Whatever comes without an end."""
    splitter = LineSplitter()
    for _ in range(100):
        splitter.feed(b"x" * 100_000)

    assert len(splitter._begun) == 64 * 1024
    assert splitter.feed(b"\nnext\n") == [b"x" * 65536 + b" [ipcluster] 9934464 bytes cut", b"next"]


def numbers(first: int, last: int) -> list[bytes]:
    """Return lines that can be told apart."""
    return [b"%d" % n for n in range(first, last)]


def test_up_to_the_burst_nothing_is_dropped() -> None:
    """Also when it comes at once, and again once the rate has made room for it."""
    limit = LineLimit(0.0, rate=10, burst=100)

    assert limit.admit(numbers(0, 100), 0.0) == numbers(0, 100)
    assert limit.admit(numbers(0, 50), 5.0) == numbers(0, 50)
    assert limit.deadline is None
    assert limit.flush() == []


def test_a_flood_is_dropped_until_a_seconds_worth_has_gathered() -> None:
    """So there is one notice a second, where the lines are missing."""
    limit = LineLimit(0.0, rate=10, burst=100)

    assert limit.admit(numbers(0, 150), 0.0) == numbers(0, 100)
    assert limit.admit(numbers(150, 155), 0.9) == []
    assert limit.admit(numbers(155, 170), 1.0) == [notice_of(55), *numbers(155, 165)]
    assert limit.admit(numbers(170, 171), 1.1) == []
    assert limit.flush() == [notice_of(6)]
    assert limit.flush() == []


def test_a_flood_that_has_stopped_is_told_in_time() -> None:
    """There is a time to look again, until it has been told."""
    limit = LineLimit(0.0, rate=10, burst=100)
    limit.admit(numbers(0, 101), 0.0)

    assert limit.deadline == pytest.approx(1.0)
    assert limit.admit([], 0.5) == []
    assert limit.deadline == pytest.approx(1.0)
    assert limit.admit([], 1.0) == [b"[ipcluster] 1 line dropped"]
    assert limit.deadline is None


@given(
    st.lists(st.tuples(st.integers(0, 60), st.floats(0, 3), st.booleans()), max_size=30),
    st.floats(0.5, 50),
    st.integers(1, 40),
)
def test_kept_and_dropped_are_what_was_written(steps: list[tuple[int, float, bool]], rate: float, burst: int) -> None:
    """In order, with each notice where the lines are missing, and no more than rate and burst allow."""
    limit, now, written, kept = LineLimit(0.0, rate, burst), 0.0, 0, list[bytes]()
    for count, pause, asked in steps:
        now += pause
        kept += limit.admit(numbers(written, written + count), now)
        written += count
        kept += limit.flush() if asked else []
    kept += limit.flush()

    expected = passed = 0
    for line in kept:
        notice = NOTICE.fullmatch(line)
        if notice is None:
            assert int(line) == expected
            passed += 1
        expected += 1 if notice is None else int(notice[1])
    assert expected == written
    assert passed <= burst + rate * now + 1
