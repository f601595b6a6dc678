"""Log files: bounded, in order, and followed while they are begun anew."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipcluster_core import logs
from ipcluster_core.logs import LogFollower, LogWriter, PartHandler, open_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a log is to be."""
    return tmp_path / "engine-3.log"


@pytest.fixture
def writer(path: Path) -> Iterator[LogWriter]:
    """The writer of a log of twice 100 bytes."""
    made = LogWriter(str(path), most=100)
    yield made
    made.close()


@pytest.fixture
def follow(path: Path) -> Iterator[Callable[[], LogFollower]]:
    """Follow the log."""
    made: list[LogFollower] = []

    def begin() -> LogFollower:
        made.append(LogFollower(str(path)))
        return made[-1]

    yield begin
    for follower in made:
        follower.close()


def test_a_log_keeps_its_last_lines_within_its_bound(writer: LogWriter, path: Path) -> None:
    """Two files of 100 bytes, whatever is written."""
    for n in range(1000):
        writer.write([b"line %d" % n])
    older = path.with_name("engine-3.log.1")
    lines = (older.read_text() + path.read_text()).splitlines()

    assert older.stat().st_size <= 100
    assert path.stat().st_size <= 100
    assert lines == [f"line {n}" for n in range(1000 - len(lines), 1000)]
    assert len(lines) > 10


def test_the_next_life_of_an_engine_adds_to_its_log(writer: LogWriter, path: Path) -> None:
    """And counts what is there towards the bound."""
    writer.write([b"x" * 60])
    second = LogWriter(str(path), most=100)
    second.write([b"y" * 30])
    assert path.read_bytes() == b"x" * 60 + b"\n" + b"y" * 30 + b"\n"
    second.write([b"z" * 30])
    second.close()

    assert path.read_bytes() == b"z" * 30 + b"\n"


def test_a_disk_that_is_full_costs_lines_and_says_how_many(
    writer: LogWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nanny lives on."""

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.write([b"before"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        writer.write([b"lost", b"lost too"])
    writer.write([b"after"])

    assert path.read_text() == "before\n[ipcluster] 2 lines could not be written to the log\nafter\n"


def test_a_log_that_could_not_be_begun_anew_is_when_there_is_room(
    writer: LogWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older half is there as before."""

    def full(path: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.write([b"x" * 80])
    with monkeypatch.context() as patch:
        patch.setattr(logs, "open_log", full)
        writer.write([b"y" * 80])
    writer.write([b"after"])

    assert path.read_text() == "[ipcluster] 1 lines could not be written to the log\nafter\n"
    assert path.with_name("engine-3.log.1").read_bytes() == b"x" * 80 + b"\n"


def test_a_follower_reads_each_line_once_across_new_beginnings(
    writer: LogWriter, follow: Callable[[], LogFollower]
) -> None:
    """In order, whether it looks often or seldom."""
    for n in range(15):
        writer.write([b"line %d" % n])  # the older half is full by now
    follower = follow()
    read = follower.read()
    first = int(read[0].split()[1])
    for n in range(15, 200):
        writer.write([b"line %d" % n])
        if n % 7 == 0:
            read += follower.read()
    read += follower.read()

    assert first < 5
    assert read == [f"line {n}" for n in range(first, 200)]
    assert follower.read() == []


def test_a_follower_waits_for_the_end_of_a_line_and_for_the_log(path: Path, follow: Callable[[], LogFollower]) -> None:
    """A log that is not there yet, or no more, has no lines."""
    follower = follow()
    assert follower.read() == []
    path.write_text("half")
    assert follower.read() == []
    with path.open("a") as file:
        file.write(" and half\n")
    assert follower.read() == ["half and half"]
    path.unlink()

    assert follower.read() == []


def test_a_part_begins_its_log_anew_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its standard output and error."""
    monkeypatch.setattr(logs, "PART_LOG_BYTES", 1000)
    path = tmp_path / "broker.log"
    saved = os.dup(1), os.dup(2)
    fd = open_log(str(path))
    try:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        with open(2, "w", buffering=1, closefd=False) as stream:
            handler = PartHandler(stream)
            for n in range(1000):
                handler.emit(logging.LogRecord("part", logging.INFO, "", 0, "record %d", (n,), None))
            os.write(1, b"last words\n")
    finally:
        for number, copy in enumerate(saved, 1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(fd)
    sys.stdout.flush()
    lines = path.read_text().splitlines()

    assert [entry.name for entry in sorted(tmp_path.iterdir()) if entry.is_file()] == ["broker.log", "broker.log.1"]
    assert all(entry.stat().st_size < 1100 for entry in tmp_path.iterdir() if entry.is_file())
    assert lines[-2:] == ["record 999", "last words"]
