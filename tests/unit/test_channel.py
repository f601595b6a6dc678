"""Frames over a stream socket, and sockets in folders of any depth."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core.channel import Channel, connect, listen


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a channel, neither of which waits."""
    left, right = map(Channel, socket.socketpair())
    yield left, right
    left.close()
    right.close()


def exchange(sender: Channel, receiver: Channel, count: int) -> list[list[bytes]]:
    """Receive so many messages while the rest of what was sent goes out."""
    found: list[list[bytes]] = []
    while len(found) < count:
        sender.flush()
        found += [[bytes(frame) for frame in message] for message in receiver.receive()]
    return found


@pytest.mark.parametrize(
    "frames",
    [
        [b"x"],
        [b""],
        [b"a", b"", b"ccc"],
        [bytes([n % 256]) for n in range(3000)],
        [b"head", os.urandom(100_000)],
        [b"", os.urandom(5_000_001), b"", b"tail"],
        [os.urandom(70_000)] * 700,
    ],
    ids=["one", "empty", "several", "many", "beyond small", "beyond the kernel's room", "large and many"],
)
def test_frames_arrive_as_they_were(pair: tuple[Channel, Channel], frames: list[bytes]) -> None:
    """However many and however large, and what follows them too."""
    left, right = pair
    for _ in range(2):
        assert left.send(frames)
    left.send([b"next"])

    assert exchange(left, right, 3) == [frames, frames, [b"next"]]
    assert not left.waiting


@given(messages=st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=4), min_size=1), cuts=st.data())
def test_any_cutting_of_the_stream_gives_the_same_messages(messages: list[list[bytes]], cuts: st.DataObject) -> None:
    """The kernel promises bytes in order and nothing more."""
    near, far = socket.socketpair()
    write, read = socket.socketpair()
    with near, far, write, read:
        sender, receiver = Channel(near), Channel(read)
        for message in messages:
            sender.send(message)
        raw = far.recv(1 << 20)
        found: list[list[bytes]] = []
        while raw:
            size = cuts.draw(st.integers(1, len(raw)))
            write.sendall(raw[:size])
            raw = raw[size:]
            found += [[bytes(frame) for frame in message] for message in receiver.receive()]

        assert found == messages


def test_what_the_other_end_does_not_take_is_kept(pair: tuple[Channel, Channel]) -> None:
    """Sending never waits; `waiting` tells that there is more to do."""
    left, right = pair
    left.send([b"x" * 10_000_000])
    left.send([b"later"])

    assert left.waiting
    assert left.unsent_bytes > 1_000_000
    assert [len(message[0]) for message in exchange(left, right, 2)] == [10_000_000, 5]


def test_a_flush_that_may_wait_sends_all_or_stops_in_time(pair: tuple[Channel, Channel]) -> None:
    """Nobody reads: the time is over. Somebody reads: it is all gone."""
    left, right = pair
    left.send([b"x" * 10_000_000])
    assert left.flush(0.02)
    assert left.waiting
    got: list[list[list[bytes]]] = []

    def read() -> None:
        blocking = Channel(socket.socket(fileno=os.dup(right.fileno())), blocking=True)
        got.append([[bytes(frame) for frame in message] for message in blocking.receive()])
        blocking.close()

    reader = threading.Thread(target=read)
    reader.start()
    assert left.flush(30.0)
    reader.join()

    assert not left.waiting
    assert got == [[[b"x" * 10_000_000]]]


def test_a_blocking_channel_waits_for_a_whole_message() -> None:
    """As an engine does, which has nothing else to do."""
    near, far = socket.socketpair()
    sender, receiver = Channel(near), Channel(far, blocking=True)
    writer = threading.Thread(target=lambda: [sender.send([b"y" * 300_000]), sender.flush(30.0)])
    writer.start()
    messages = receiver.receive()
    writer.join()

    assert [[bytes(frame) for frame in message] for message in messages] == [[b"y" * 300_000]]
    sender.close()
    receiver.close()


def test_small_messages_go_at_once_or_not_at_all(pair: tuple[Channel, Channel]) -> None:
    """And the sender knows which, whatever interrupts it."""
    left, right = pair
    taken: list[int] = []
    left.send_at_once([[b"function"], [b"task", b"1"]], taken)
    assert len(taken) == 1
    assert exchange(left, right, 2) == [[b"function"], [b"task", b"1"]]

    too_large: list[int] = []
    left.send_at_once([[b"x" * 20_000]], too_large)
    full: list[int] = []
    while not left.waiting:
        left.send([b"x" * 10_000])
    left.send_at_once([[b"no room"]], full)

    assert (too_large, full) == ([], [])


def test_the_end_comes_after_the_last_message(pair: tuple[Channel, Channel]) -> None:
    """Half a message before it is not one."""
    left, right = pair
    left.send([b"last"])
    left._socket.sendall(b"\1\0\0\0\x64")
    left.close()

    assert exchange(right, right, 1) == [[b"last"]]
    with pytest.raises(EOFError):
        right.receive()


def test_a_partner_that_is_gone_is_told_by_both_ways(pair: tuple[Channel, Channel]) -> None:
    """Nothing is kept for it."""
    left, right = pair
    right.send([b"unread"])
    right.close()

    assert not left.send([b"x" * 100_000])
    assert not left.waiting
    assert exchange(left, left, 1) == [[b"unread"]]
    with pytest.raises(EOFError):
        left.receive()


def test_shutting_ends_both_sides(pair: tuple[Channel, Channel]) -> None:
    """From whichever thread, and as often as you like."""
    left, right = pair
    left.shut()
    left.shut()

    for end in pair:
        with pytest.raises(EOFError):
            end.receive()
    right.close()
    right.shut()


@pytest.mark.parametrize(
    "raw", [b"\0\0\0\0more", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff"], ids=["no frame", "HTTP", "too many"]
)
def test_what_is_no_message_is_refused(pair: tuple[Channel, Channel], raw: bytes) -> None:
    """Without memory being taken for it."""
    left, right = pair
    left._socket.sendall(raw)

    with pytest.raises(ValueError, match="none of ours"):
        right.receive()


def test_a_message_beyond_the_limit_is_refused_before_it_is_read(pair: tuple[Channel, Channel]) -> None:
    """Its head is enough. The limit may be lifted."""
    left, right = pair
    right.limit = 1000
    left.send([b"x" * 1_000])
    with pytest.raises(ValueError, match="a message of 1012 bytes, where at most 1000 are taken"):
        right.receive()
    left._socket.sendall(b"\1\0\0\0" + (1 << 50).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="at most 1000"):
        right.receive()


@given(raw=st.binary(min_size=1, max_size=200))
def test_garbage_never_does_more_than_raise_value_error(raw: bytes) -> None:
    """From anybody who reaches the socket."""
    near, far = socket.socketpair()
    with near, far:
        receiver = Channel(far, limit=1 << 16)
        near.sendall(raw)
        try:
            receiver.receive()
        except ValueError:
            return


def test_a_message_for_which_there_is_no_memory_is_refused(
    pair: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is trusted may announce a message of any length: that must not end the broker."""

    def full(size: int) -> bytearray:
        raise MemoryError

    monkeypatch.setattr("ipcluster_core.channel.bytearray", full, raising=False)
    left, right = pair
    left._socket.sendall(b"\1\0\0\0" + (1 << 39).to_bytes(8, "little"))

    with pytest.raises(ValueError, match="there is no memory for a message of 549755813900 bytes"):
        right.receive()


@pytest.mark.parametrize("part", ["f" * 120, "ä" * 50, "a b"])
def test_sockets_are_reached_in_a_folder_of_any_depth(tmp_path: Path, part: str) -> None:
    """A socket's address holds 107 bytes; nothing has to be kept open for a longer one."""
    folder = tmp_path / part / ("deep" * 20)
    folder.mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with listen(str(folder), "task") as listener, connect(str(folder), "task") as end, listener.accept()[0] as other:
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 3
        Channel(end).send([b"hello"])

        assert Channel(other).receive() == [[b"hello"]]
        with pytest.raises(FileNotFoundError):
            connect(str(folder), "other")
    with pytest.raises(ConnectionRefusedError):
        connect(str(folder), "task")
