"""Pipes between the parts of a cluster."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ipcluster_core import link
from ipcluster_core.link import Link, link_pair


@pytest.fixture
def pair() -> Iterator[tuple[Link, Link]]:
    """Both ends of a link."""
    left, right = link_pair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Link, Link]]:
    """Both ends of a link on which nobody waits for long."""
    monkeypatch.setattr(link, "_PATIENCE", 0.05)
    left, right = link_pair()
    yield left, right
    left.close()
    right.close()


def receive(end: Link, count: int) -> list[tuple[dict[str, Any], bytes]]:
    """Return so many messages, reading as often as is needed."""
    found: list[tuple[dict[str, Any], bytes]] = []
    while len(found) < count:
        assert select.select([end], [], [], 10)[0] == [end]
        found += end.receive()
    return found


# links


def test_messages_arrive_whole_and_in_order(pair: tuple[Link, Link]) -> None:
    """Both ways, with their bytes or without."""
    left, right = pair
    for number in range(100):
        assert left.send({"number": number, "text": "ä\n"}, bytes([number]) * number)
    assert right.send({"answer": None})

    assert receive(right, 100) == [({"number": n, "text": "ä\n"}, bytes([n]) * n) for n in range(100)]
    assert receive(left, 1) == [({"answer": None}, b"")]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 20_000_001])
def test_bytes_of_any_size_arrive_equal(pair: tuple[Link, Link], size: int) -> None:
    """Also many times more than a socket holds."""
    left, right = pair
    blob = os.urandom(1024) * (size // 1024 + 1)
    thread = threading.Thread(target=left.send, args=({"size": size}, blob[:size]))
    thread.start()
    ((message, found),) = receive(right, 1)
    thread.join()

    assert message == {"size": size}
    assert found == blob[:size]


def test_the_partner_s_end_reads_as_end_of_file(pair: tuple[Link, Link]) -> None:
    """After its last messages; the descriptor tells that there is something to read."""
    left, right = pair
    left.send({"last": 1})
    left.send({"last": 2})
    left.close()

    assert receive(right, 2) == [({"last": 1}, b""), ({"last": 2}, b"")]
    assert select.select([right], [], [], 5)[0] == [right]
    with pytest.raises(EOFError):
        list(right.receive())


def test_the_end_of_a_partner_that_has_not_read_all_is_an_end_too(pair: tuple[Link, Link]) -> None:
    """The kernel calls that a reset connection."""
    left, right = pair
    right.send({"unread": True})
    left.close()

    with pytest.raises(EOFError):
        list(right.receive())


def test_a_message_to_a_partner_that_is_gone_is_not_sent(pair: tuple[Link, Link]) -> None:
    """That is said, and is no error."""
    left, right = pair
    right.close()

    assert not left.send({"n": 1})
    assert not left.send({"n": 2}, b"x" * (1 << 20))


def test_a_partner_that_takes_nothing_is_cut_off(impatient: tuple[Link, Link]) -> None:
    """Within the patience; afterwards both see the end."""
    left, right = impatient
    start = time.monotonic()
    sent = left.send({"n": 1}, b"x" * 10_000_000)
    passed = time.monotonic() - start

    assert not sent
    assert 0.05 <= passed < 1
    assert not left.send({"n": 2})
    with pytest.raises(EOFError):
        list(left.receive())
    with pytest.raises(EOFError):
        receive(right, 1)


def test_two_parts_may_send_each_other_much_before_either_reads(impatient: tuple[Link, Link]) -> None:
    """As when a cluster grows by hundreds of engines: neither waits for the other."""
    left, right = impatient
    sent = [end.send({"do": "start", "engine": n, "incarnation": 0}) for n in range(250) for end in (left, right)]

    assert sent == [True] * 500
    assert [message["engine"] for message, _ in receive(right, 250)] == list(range(250))
    assert [message["engine"] for message, _ in receive(left, 250)] == list(range(250))


def test_reading_does_not_wait(pair: tuple[Link, Link]) -> None:
    """When there is nothing, nothing is yielded."""
    _, right = pair

    assert list(right.receive()) == []


def test_what_json_cannot_hold_is_refused_before_anything_is_sent(pair: tuple[Link, Link]) -> None:
    """The link can be used further."""
    left, right = pair
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        left.send({"n": {1}})
    left.send({"n": 1})

    assert receive(right, 1) == [({"n": 1}, b"")]
