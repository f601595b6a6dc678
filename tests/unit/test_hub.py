"""One end of many connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipcluster_core.channel import Channel, connect
from ipcluster_core.hub import Hub

#: Seconds after which a thing that must happen will not.
PATIENCE = 10.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """One that listens in a folder of the test's own."""
    hub = Hub(str(tmp_path), "task")
    yield hub
    hub.close(0.0)


@pytest.fixture
def join(hub: Hub, tmp_path: Path) -> Iterator[Callable[[], Channel]]:
    """Connect to it."""
    ends: list[Channel] = []

    def joined() -> Channel:
        ends.append(Channel(connect(str(tmp_path), "task")))
        return ends[-1]

    yield joined
    for end in ends:
        end.close()


def read_on(end: Channel) -> None:
    """Read until the other end is gone."""
    while True:
        end.receive()


def hear(hub: Hub) -> list[tuple[int, bytes]]:
    """Wait until somebody speaks; return who said what."""
    while True:
        _, speaking = hub.wait(PATIENCE)
        found = [(number, bytes(frames[0])) for number in speaking for frames in hub.receive(number)]
        if found:
            return found


def test_partners_are_numbered_as_they_come_and_answered_by_number(hub: Hub, join: Callable[[], Channel]) -> None:
    """A number never comes again."""
    first = join()
    first.send([b"one"])
    assert hear(hub) == [(1, b"one")]
    hub.drop(1)
    hub.drop(1)
    second = join()
    second.send([b"two"])
    assert hear(hub) == [(2, b"two")]
    hub.send(1, [b"to nobody"])
    hub.send(2, [b"answer"])

    assert second.receive() == [[b"answer"]]
    with pytest.raises(EOFError):
        first.receive()
    with pytest.raises(EOFError):
        hub.receive(1)


def test_watched_descriptors_are_told_apart_from_partners(hub: Hub, join: Callable[[], Channel]) -> None:
    """Until they are not watched any more."""
    read, write = os.pipe()
    hub.watch(read)
    os.write(write, b"x")
    join().send([b"hello"])
    seen = set()
    while hub.wait(0.0) != ({read}, [1]):
        seen.add(read)

    hub.unwatch(read)
    assert hub.wait(PATIENCE) == (set(), [1])
    os.close(read)
    os.close(write)


def test_strangers_may_say_little_until_they_are_trusted(hub: Hub, join: Callable[[], Channel]) -> None:
    """So nobody without the secret can make it take memory."""
    stranger, friend = join(), join()
    stranger.send([b"x"])
    friend.send([b"x"])
    while len(hear(hub)) < 1 or len(hub._channels) < 2:
        pass
    hub.trust(2)
    for end in (stranger, friend):
        end.send([b"x" * 100_000])
    hub.wait(PATIENCE)

    with pytest.raises(ValueError, match="at most 65536"):
        hub.receive(1)
    assert any(len(message[0]) == 100_000 for _ in range(2) for message in hub.receive(2))


def test_a_slow_reader_gets_it_all_and_holds_up_nobody(hub: Hub, join: Callable[[], Channel]) -> None:
    """What it does not take waits for it alone."""
    slow, quick = join(), join()
    slow.send([b"slow"])
    quick.send([b"quick"])
    heard: list[tuple[int, bytes]] = []
    while len(heard) < 2:
        heard += hear(hub)
    names = {text: number for number, text in heard}
    hub.send(names[b"slow"], [b"x" * 20_000_000])
    hub.send(names[b"quick"], [b"now"])
    assert quick.receive() == [[b"now"]]
    while not (found := slow.receive()):
        hub.wait(PATIENCE)

    assert len(found[0][0]) == 20_000_000


def test_a_paused_partner_is_not_heard_until_it_goes_on(hub: Hub, join: Callable[[], Channel]) -> None:
    """What it says stays in its socket."""
    end = join()
    end.send([b"first"])
    assert hear(hub) == [(1, b"first")]
    hub.pause(1, on=True)
    hub.pause(1, on=True)
    end.send([b"second"])
    assert hub.wait(0.0) == (set(), [])
    hub.pause(1, on=False)

    assert hear(hub) == [(1, b"second")]


def test_closing_gives_what_waits_a_moment(tmp_path: Path) -> None:
    """A partner that reads gets the last message, one that does not cannot hold it up."""
    hub = Hub(str(tmp_path), "task")
    end = Channel(connect(str(tmp_path), "task"))
    end.send([b"hello"])
    assert hear(hub) == [(1, b"hello")]
    hub.send(1, [b"x" * 20_000_000])
    hub.send(1, [b"last"])
    hub.close(0.01)

    with pytest.raises(EOFError):
        read_on(end)
    end.close()
    with pytest.raises(ConnectionRefusedError):
        connect(str(tmp_path), "task")
