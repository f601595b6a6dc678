"""Engines' output for those who ask: in order, bounded for a slow reader, and for nobody without the secret."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core import streaming
from ipcluster_core.errors import ClusterBroken, ClusterTimeout, NotAuthorized
from ipcluster_core.record import ClusterState, Record
from ipcluster_core.store import Store
from ipcluster_core.streaming import Backlog, OutputStream, Publisher
from ipcluster_core.testing import memory_store
from steps import wait_until


def taken(backlog: Backlog, size: int = 1 << 30) -> list[bytes]:
    """Take up to so many bytes, as one send does; return them as lines."""
    data = backlog.next()[:size]
    backlog.sent(len(data))
    return data.splitlines()


def test_a_reader_that_takes_all_gets_all() -> None:
    """In order, with the engines' ids."""
    backlog = Backlog(100)
    for n in range(100):
        backlog.add(n % 3, [b"line %d" % n])

        assert taken(backlog) == [b"%d line %d" % (n % 3, n)]


def test_what_a_slow_reader_misses_is_told_for_each_engine_once_there_is_room() -> None:
    """Behind what it had not taken by then."""
    backlog = Backlog(40)
    backlog.add(1, [b"x" * 30])
    backlog.add(1, [b"lost", b"y" * 30])
    backlog.add(2, [b"z" * 30])
    assert taken(backlog) == [b"1 " + b"x" * 30, b"1 lost"]

    assert taken(backlog) == [
        b"1 [ipcluster] 1 line dropped: this reader was too slow",
        b"2 [ipcluster] 1 line dropped: this reader was too slow",
    ]


def test_an_answer_is_never_dropped_and_comes_behind_the_notice() -> None:
    """Who waits for it knows that it has all there is."""
    backlog = Backlog(10)
    backlog.add(1, [b"x" * 30])
    backlog.say(b"synced 1")

    assert taken(backlog) == [b"1 [ipcluster] 1 line dropped: this reader was too slow", b"synced 1"]


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-200, -1)), max_size=60))
def test_what_is_delivered_and_what_is_dropped_are_what_was_written(steps: list[int]) -> None:
    """A number adds so many lines, or takes so many bytes; never do more bytes wait than may."""
    backlog, written, stream = Backlog(150), 0, b""
    for step in steps:
        if step > 0:
            backlog.add(7, [b"%d" % n for n in range(written, written + step)])
            written += step
        else:
            data = backlog.next()[:-step]
            stream += data
            backlog.sent(len(data))
        assert len(backlog) < 150 + 10 + 80  # one line's head, and a notice
    backlog.say(b"end")
    stream += backlog.next()

    expected = 0
    *lines, end = stream.splitlines()
    for line in lines:
        _, _, text = line.partition(b" ")
        if text.startswith(b"[ipcluster]"):
            expected += int(text.split()[1])
        else:
            assert int(text) == expected
            expected += 1
    assert (end, expected) == (b"end", written)


class Served:
    """A publisher that is served by a thread, as a nanny serves it; that thread publishes too."""

    def __init__(self, folder: str) -> None:
        self.left: list[bytes] = []
        self._given = SimpleQueue[tuple[list[bytes], threading.Event]]()
        self.publisher = Publisher(folder, lambda shown: shown == b"secret", self._drain)
        self._over = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _drain(self) -> None:
        lines, self.left = self.left, []
        self.publisher.publish(3, lines)

    def _serve(self) -> None:
        while not self._over:
            while not self._given.empty():
                lines, published = self._given.get()
                self.publisher.publish(3, lines)
                published.set()
            self.publisher.serve(0.005)

    def publish(self, lines: list[bytes]) -> None:
        """Have the thread publish lines of engine 3."""
        published = threading.Event()
        self._given.put((lines, published))
        assert published.wait(10)

    def end(self) -> None:
        """End the thread, and the publisher with it."""
        if not self._over:
            self._over = True
            self._thread.join()
            self.publisher.close()


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A running cluster, as far as a reader of its output sees."""
    return Record(
        name="heard",
        incarnation=1,
        uid="c0ffee",
        state=ClusterState.RUNNING,
        created="2026-01-01T00:00:00Z",
        folder=str(tmp_path),
    )


@pytest.fixture
def store(record: Record) -> Iterator[Store]:
    """A store that holds record and secret."""
    with memory_store() as made:
        made.create("record", record.name, record.to_dict())
        made.create("secret", record.secret, {"key": "secret"})
        yield made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A publisher in the cluster's folder."""
    made = Served(str(tmp_path))
    yield made
    made.end()


def test_lines_are_delivered_until_the_block_is_left(served: Served, store: Store, record: Record) -> None:
    """What engines had written by then, and had not been read, included; text that is no UTF-8 does no harm."""
    heard: list[tuple[int, str]] = []
    served.publish([b"before"])
    with OutputStream(store, record, lambda engine, line: heard.append((engine, line)), 5.0) as stream:
        served.publish([b"one", b"\xff and \xc3\xa4"])
        served.left = [b"three"]
        assert stream.flush(5.0)
        assert [line for _, line in heard] == ["one", "\ufffd and ä", "three"]
        served.left = [b"four"]
    served.publish([b"after"])

    assert heard[3:] == [(3, "four")]
    assert repr(stream) == "<OutputStream of cluster 'heard' #1, closed>"


def test_a_callback_that_fails_is_told_once_and_gets_what_follows(
    served: Served, store: Store, record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    """Its trouble is not the stream's."""
    heard: list[str] = []

    def fail(engine: int, line: str) -> None:
        heard.append(line)
        raise ValueError(line)

    with OutputStream(store, record, fail, 5.0):
        served.publish([b"one", b"two"])

    assert heard == ["one", "two"]
    assert [entry.getMessage() for entry in caplog.records] == [
        "the callback for the output of cluster 'heard' #1 failed; it is called again"
    ]


def test_a_callback_cannot_wait_for_output_but_may_close(served: Served, store: Store, record: Record) -> None:
    """It would wait for itself."""
    raised: list[str] = []
    closed = threading.Event()

    def ask(engine: int, line: str) -> None:
        try:
            stream.flush()
        except RuntimeError as error:
            raised.append(str(error))
        stream.close()
        closed.set()

    stream = OutputStream(store, record, ask, 5.0)
    served.publish([b"one"])

    assert closed.wait(5)
    assert raised == ["the callback for engines' output cannot wait for output"]


def test_a_reader_that_takes_nothing_keeps_nobody_waiting(
    served: Served, store: Store, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one gets every line meanwhile; the slow one is told how many it missed; all add up."""
    monkeypatch.setattr(streaming.Backlog.__init__, "__defaults__", (50_000,))
    go, slow, quick = threading.Event(), list[str](), list[str]()

    def wait(engine: int, line: str) -> None:
        assert go.wait(10)
        slow.append(line)

    lines = [b"line %06d" % n for n in range(50_000)]
    with OutputStream(store, record, wait, 5.0), OutputStream(store, record, lambda _, line: quick.append(line), 5.0):
        for first in range(0, len(lines), 2500):
            served.publish(lines[first : first + 2500])
            wait_until(lambda done=first + 2500: len(quick) == done)
        go.set()
    dropped = [int(line.split()[1]) for line in slow if line.startswith("[ipcluster]")]

    assert quick == [line.decode() for line in lines]
    assert dropped
    assert sum(dropped) + len(slow) - len(dropped) == len(lines)


def test_who_does_not_know_the_secret_gets_nothing(served: Served, store: Store, record: Record) -> None:
    """It is refused, and hears no line meanwhile."""
    document = store.read("secret", record.secret)
    assert document is not None
    store.swap("secret", record.secret, {"key": "wrong"}, document.version)

    with pytest.raises(NotAuthorized, match="the nanny of cluster 'heard' #1 refused the secret"):
        OutputStream(store, record, None, 5.0)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{record.folder}/output")
        served.publish([b"private"])
        stranger.sendall(b"wrong\nsync 1\n")
        stranger.settimeout(5)
        assert stranger.recv(1000) == b"refused\n"
        assert stranger.recv(1000) == b""


def test_without_a_publisher_the_error_says_so(store: Store, record: Record) -> None:
    """A launcher may serve no output, or the nanny is gone."""
    with pytest.raises(ClusterBroken, match=r"the output of cluster 'heard' #1 cannot be had: No such file"):
        OutputStream(store, record, None, 5.0)


def test_a_publisher_that_does_not_answer_is_waited_for_no_longer_than_asked(store: Store, record: Record) -> None:
    """A frozen nanny."""
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(f"{record.folder}/output")
        frozen.listen()
        with pytest.raises(ClusterTimeout, match=r"did not answer a reader of output within 0.05 s"):
            OutputStream(store, record, None, 0.05)


def test_the_end_of_the_publisher_delivers_what_is_left_and_ends_the_stream(
    served: Served, store: Store, record: Record
) -> None:
    """Closing it then returns at once, without a warning."""
    heard: list[str] = []
    stream = OutputStream(store, record, lambda _, line: heard.append(line), 5.0)
    served.publish([b"x" * 1000] * 2000)
    served.end()
    wait_until(lambda: len(heard) == 2000)

    assert not stream.flush(5.0)
    stream.close()
