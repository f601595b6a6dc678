"""Shared-memory segments: written, read, used again, and gone."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ipcluster_core import segments
from ipcluster_core.segments import SEGMENT_BYTES, Copies, Pool, Reader, folder_of, is_reference, remove


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for the segments of an incarnation."""
    path = Path(folder_of(uuid4().hex))
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


def large(byte: bytes = b"x", size: int = SEGMENT_BYTES) -> memoryview:
    """Return a buffer that is worth a segment."""
    return memoryview(byte * size)


def test_a_large_buffer_becomes_a_reference_and_is_read_back(folder: Path) -> None:
    """What is read is a private, writable copy."""
    pool, reader = Pool(str(folder), "w"), Reader(str(folder))
    (reference,) = pool.share([large(b"a")])
    (copy,) = reader.load([reference], release=False)

    assert is_reference(reference)
    assert bytes(copy) == b"a" * SEGMENT_BYTES
    copy[0] = 0  # type: ignore[index]
    (again,) = reader.load([reference], release=False)
    assert again[0] == ord("a")
    pool.close()
    reader.close()


def test_a_buffer_that_is_not_large_stays_as_it_is(folder: Path) -> None:
    """It travels in the message."""
    pool, reader = Pool(str(folder), "w"), Reader(str(folder))
    small = memoryview(b"s" * (SEGMENT_BYTES - 1))

    assert pool.share([small]) == [small]
    assert reader.load([small], release=True) == [small]
    assert list(folder.iterdir()) == []


def test_a_released_segment_is_used_again(folder: Path) -> None:
    """By the reader or by the writer; a busy one is not."""
    pool, reader = Pool(str(folder), "w"), Reader(str(folder))
    first = pool.share([large()])
    second = pool.share([large()])
    reader.load(first, release=True)
    third = pool.share([large(b"c")])
    pool.release(second)
    fourth = pool.share([large(b"d")])

    assert third == first
    assert fourth == second
    assert bytes(reader.load(third, release=True)[0][:1]) == b"c"
    assert len(list(folder.iterdir())) == 2
    reader.release(fourth)
    pool.close()
    reader.close()
    assert list(folder.iterdir()) == []


def test_a_very_large_segment_gives_its_memory_back_when_it_is_freed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although writer and reader have it mapped; the next one is a new one, and the old one's file goes."""
    monkeypatch.setattr(segments, "_LARGEST_KEPT_BYTES", SEGMENT_BYTES)
    pool, reader = Pool(str(folder), "e0"), Reader(str(folder))
    for round_ in range(2):
        (reference,) = pool.share([memoryview(bytes((round_,)) * (SEGMENT_BYTES + 1))])
        (path,) = folder.iterdir()
        before = path.stat().st_blocks
        (copy,) = reader.load([reference], release=True)

        assert bytes(copy) == bytes((round_,)) * (SEGMENT_BYTES + 1)
        assert path.stat().st_blocks * 512 <= mmap.PAGESIZE < before * 512
    pool.close()
    reader.close()
    assert list(folder.iterdir()) == []


def test_closing_leaves_what_is_still_needed(folder: Path) -> None:
    """A task that is queued can read it; whoever cleans up after the writer removes it."""
    pool, reader = Pool(str(folder), "w"), Reader(str(folder))
    free, needed = pool.share([large(b"f")]), pool.share([large(b"n")])
    pool.release(free)
    pool.close()

    assert len(list(folder.iterdir())) == 1
    assert bytes(reader.load(needed, release=False)[0][:1]) == b"n"
    remove(str(folder), "w", free_only=True)
    assert len(list(folder.iterdir())) == 1
    remove(str(folder), "other")
    remove(str(folder), "w")
    assert list(folder.iterdir()) == []
    reader.close()


def test_a_pool_takes_over_what_its_predecessor_left(folder: Path) -> None:
    """So an engine that is killed again and again does not fill the memory."""
    before, reader = Pool(str(folder), "e0"), Reader(str(folder))
    unread = before.share([large(b"u")])
    before.close()
    after = Pool(str(folder), "e0")
    fresh = after.share([large(b"v")])
    reader.load(unread, release=True)

    assert fresh != unread
    assert after.share([large(b"w")]) == unread
    after.release([*fresh, *unread])
    after.close()
    reader.close()


def test_a_new_segment_never_has_the_name_of_an_earlier_one(folder: Path) -> None:
    """A reader that has the old one mapped would read its content as the new one's."""
    before, reader = Pool(str(folder), "e0"), Reader(str(folder))
    old = before.share([large(b"o")])
    reader.load(old, release=True)
    before.close()
    remove(str(folder), "e0", free_only=True)
    after = Pool(str(folder), "e0")
    new = after.share([large(b"n")])

    assert bytes(reader.load(new, release=True)[0][:1]) == b"n"
    after.close()
    reader.close()


def test_without_the_folder_buffers_stay_as_they_are() -> None:
    """Another host, or a container with shared memory of its own."""
    pool = Pool(folder_of("nowhere"), "w")
    buffer = large()

    assert pool.share([buffer]) == [buffer]
    remove(folder_of("nowhere"), "w")


def test_without_room_buffers_stay_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has a bound; what does not fit travels in the message, and free segments make room."""
    monkeypatch.setattr("ipcluster_core.segments._POOL_BYTES", 3 * SEGMENT_BYTES)
    pool = Pool(str(folder), "w")
    held = pool.share([large(), large()])
    big = memoryview(b"b" * (2 * SEGMENT_BYTES))

    assert pool.share([big]) == [big]
    pool.release(held)
    assert is_reference(pool.share([big])[0])
    pool.close()


def test_a_name_outside_the_folder_is_refused(folder: Path) -> None:
    """References come from other processes."""
    with pytest.raises(ValueError, match="is not the name of a segment"):
        Reader(str(folder)).load([b'{"segment": "../secret", "bytes": 1}'], release=False)


def test_those_on_other_hosts_get_one_copy_of_what_is_shared(folder: Path) -> None:
    """All of them the same one, until it is to be forgotten; the segment stays as it is."""
    pool, reader = Pool(str(folder), "w"), Reader(str(folder))
    copies, small = Copies(reader), memoryview(b"small" * 1000)
    (reference,) = pool.share([large(b"a")])
    first, beside = copies([reference, small])
    (second,) = copies([reference])
    copies.forget()
    (third,) = copies([reference])

    assert bytes(first) == b"a" * SEGMENT_BYTES
    assert beside is small
    assert second is first
    assert third is not first
    assert copies([b'{"segment": "gone", "bytes": 9}']) == [b'{"segment": "gone", "bytes": 9}']
    pool.release([reference])
    pool.close()
    reader.close()
