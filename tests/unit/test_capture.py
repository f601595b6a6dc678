"""What the nanny reads from engines' pipes: all that was written, without ever waiting."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ipcluster_core.capture import Capture, Captures


class Heard:
    """What was published."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []

    def __call__(self, engine: int, lines: Sequence[bytes]) -> None:
        """Take lines."""
        self.lines += [(engine, line) for line in lines]


@pytest.fixture
def heard() -> Heard:
    """Whoever listens."""
    return Heard()


@pytest.fixture
def captures(tmp_path: Path, heard: Heard) -> Iterator[Captures]:
    """The captures of a nanny."""
    made = Captures(str(tmp_path), heard)
    yield made
    made.end()


@pytest.fixture
def engine(captures: Captures) -> Iterator[tuple[Capture, int]]:
    """Engine 3's capture, and its end of the pipe."""
    capture, out = captures.open(3)
    yield capture, out
    os.close(out)


def waiting(captures: Captures) -> bool:
    """Tell whether there is something to read."""
    return bool(select.select([captures], [], [], 0)[0])


def test_lines_go_to_the_log_and_to_whoever_listens(
    captures: Captures, engine: tuple[Capture, int], heard: Heard, tmp_path: Path
) -> None:
    """Each once, when its end has come."""
    _, out = engine
    os.write(out, b"one\ntw")
    assert waiting(captures)
    captures.serve()
    assert not waiting(captures)
    assert heard.lines == [(3, b"one")]
    os.write(out, b"o\n")
    captures.serve()

    assert heard.lines == [(3, b"one"), (3, b"two")]
    assert (tmp_path / "engine-3.log").read_text() == "one\ntwo\n"


def test_what_a_dead_engine_wrote_is_drained_although_a_child_holds_its_pipe(
    captures: Captures, engine: tuple[Capture, int], tmp_path: Path
) -> None:
    """The pipe is full, its other end is open, the last line has no end: all of it is there, and nobody waits."""
    capture, out = engine
    os.set_blocking(out, False)
    text = b"".join(b"line %d\n" % n for n in range(5000))
    assert os.write(out, text) == len(text)
    os.write(out, b"last words")

    assert capture.finish().splitlines()[-2:] == ["line 4999", "last words"]
    assert (tmp_path / "engine-3.log").read_bytes() == text + b"last words\n"
    captures.close(capture)
    with pytest.raises(BrokenPipeError):
        os.write(out, b"a child writes on")
    assert not waiting(captures)


def test_an_engine_that_closes_its_output_is_not_looked_at_again(captures: Captures) -> None:
    """It may live on, and must not keep the nanny busy."""
    capture, out = captures.open(0)
    os.write(out, b"bye\n")
    os.close(out)
    captures.serve()
    captures.serve()

    assert not waiting(captures)
    assert capture.last_words() == "bye"
    captures.close(capture)


def test_a_flood_is_told_in_the_log_and_its_last_words_are_kept(
    captures: Captures, engine: tuple[Capture, int], tmp_path: Path
) -> None:
    """Lines that came too fast for the log are still what an engine said last."""
    capture, out = engine
    for first in range(0, 100_000, 5000):
        os.write(out, b"".join(b"line %d\n" % n for n in range(first, first + 5000)))
        captures.serve()
    assert captures.deadline() is not None
    lines = capture.finish().splitlines()
    log = (tmp_path / "engine-3.log").read_text().splitlines()

    assert lines == [f"line {n}" for n in range(99_980, 100_000)]
    dropped = [int(line.split()[1]) for line in log if line.startswith("[ipcluster]")]
    assert len(log) - len(dropped) + sum(dropped) == 100_000
    assert len(dropped) == 1
    assert captures.deadline() is None


def test_what_is_drained_for_a_reader_tells_what_is_missing(captures: Captures, engine: tuple[Capture, int]) -> None:
    """Without waiting for the flood to be let through again."""
    _, out = engine
    for _ in range(5):
        os.write(out, b"x\n" * 5000)
        captures.drain()

    assert captures.deadline() is None
