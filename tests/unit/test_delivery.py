"""Where outcomes of tasks go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ipcluster_core import delivery as module
from ipcluster_core import wire
from ipcluster_core.delivery import Delivery, lost_results
from ipcluster_core.segments import Pool, Reader
from ipcluster_core.wire import Buffer, Results, Status


class Sent:
    """What was sent, by partner: number, status and payload of each outcome."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int, int, bytes]] = []

    def __call__(self, partner: int, frames: Sequence[Buffer]) -> None:
        """Send."""
        results = Results.decode(frames)
        ends = wire.offsets(results.sizes, results.tasks)
        for index in range(results.tasks):
            payload = bytes(memoryview(results.body)[ends[index] : ends[index + 1]])
            self.log.append((partner, results.base + index, results.statuses[index], payload))


@pytest.fixture
def sent() -> Sent:
    """Nothing yet."""
    return Sent()


@pytest.fixture
def delivery(sent: Sent, tmp_path: Path) -> Delivery:
    """With client "a" as partner 1."""
    delivery = Delivery(sent, Reader(str(tmp_path)), 100.0)
    delivery.join("a", 1)
    return delivery


def results(base: int, *payloads: bytes, buffers: Sequence[Buffer] = ()) -> Results:
    """Return outcomes of tasks that were settled together."""
    return Results(base, len(payloads), wire.lengths(payloads), bytes(len(payloads)), b"".join(payloads), buffers)


def test_outcomes_go_to_the_client_that_asked(delivery: Delivery, sent: Sent) -> None:
    """As they are."""
    delivery.deliver("a", results(5, b"x", b"y"))

    assert sent.log == [(1, 5, Status.OK, b"x"), (1, 6, Status.OK, b"y")]


@pytest.mark.parametrize("there", [True, False])
def test_another_step_gets_them_by_number_also_when_that_client_is_gone(
    delivery: Delivery, sent: Sent, *, there: bool
) -> None:
    """And again, if it asks again."""
    if not there:
        delivery.leave("a")
    delivery.deliver("a", results(5, b"x", b"y"))
    sent.log.clear()
    for request in (70, 71):
        delivery.fetch(2, request, "a", 6, unsettled=False)

    assert sent.log == [(2, 70, Status.OK, b"y"), (2, 71, Status.OK, b"y")]


def test_one_that_is_not_settled_is_waited_for(delivery: Delivery, sent: Sent) -> None:
    """By any number of steps; those that go are forgotten."""
    delivery.join("b", 2)
    delivery.join("c", 3)
    delivery.fetch(2, 70, "a", 6, unsettled=True)
    delivery.fetch(3, 80, "a", 6, unsettled=True)
    delivery.fetch(3, 81, "a", 9, unsettled=True)
    delivery.leave("c")
    delivery.deliver("a", lost_results(6, "it died", engine=4))
    answers = [entry for entry in sent.log if entry[0] != 1]

    assert [(partner, request, status) for partner, request, status, _ in answers] == [(2, 70, Status.LOST)]
    assert json.loads(answers[0][3]) == {"message": "it died", "engine": 4}
    delivery.deliver("a", results(9, b"z"))
    assert [entry[0] for entry in sent.log] == [1, 2, 1]


def test_what_is_not_kept_is_said_to_be(delivery: Delivery, sent: Sent) -> None:
    """With the time for which it would have been."""
    delivery.fetch(2, 70, "a", 6, unsettled=False)
    ((_, request, status, payload),) = sent.log

    assert (request, status) == (70, Status.LOST)
    content = json.loads(payload)
    assert content["error"] == "ResultExpired"
    assert content["message"].startswith("the result of task a-6 is not kept (any more): results are kept for 100 s")


def test_large_ones_are_kept_only_for_a_client_that_has_not_got_them(delivery: Delivery, sent: Sent) -> None:
    """The broker is not where a client's data live."""
    delivery.deliver("a", results(1, b"x" * 100_000))
    delivery.leave("a")
    delivery.deliver("a", results(2, b"x" * 100_000))
    sent.log.clear()
    delivery.fetch(2, 70, "a", 1, unsettled=False)
    delivery.fetch(2, 71, "a", 2, unsettled=False)

    assert [(request, status) for _, request, status, _ in sent.log] == [(70, Status.LOST), (71, Status.OK)]


def test_shared_memory_is_freed_when_nobody_will_read_it(sent: Sent, tmp_path: Path) -> None:
    """What is read is freed by its reader, and read once."""
    pool = Pool(str(tmp_path), "e0")
    delivery = Delivery(sent, Reader(str(tmp_path)), 100.0)
    first, second = (pool.share([memoryview(bytes([n]) * (1 << 20))]) for n in (1, 2))
    delivery.deliver("gone", results(1, b"one", buffers=first))
    delivery.deliver("gone", results(2, b"two", buffers=second))
    busy = [segment.busy for segment in pool._segments.values()]
    delivery.fetch(2, 70, "gone", 1, unsettled=False)
    delivery.fetch(2, 71, "gone", 1, unsettled=False)
    delivery.expire(1e12)

    assert busy == [True, True]
    assert [status for _, _, status, _ in sent.log] == [Status.OK, Status.LOST]
    assert [segment.busy for segment in pool._segments.values()] == [True, False]
    pool.release(first)
    pool.close()
    delivery._reader.close()


def test_what_tasks_tell_is_bounded_for_a_client_that_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets further notes once it has taken those that wait; the log tells it once. One that is gone gets none."""
    monkeypatch.setattr(module, "_MOST_NOTES_BYTES", 10)
    passed: list[bytes] = []
    behind = True
    delivery = Delivery(
        lambda _, frames: passed.append(bytes(wire.Note.decode(frames).body)),
        Reader(str(tmp_path)),
        100.0,
        lambda _: behind,
    )
    delivery.join("a", 1)
    for number in range(9):
        delivery.pass_on(("a", number), b"%d234" % number)
    behind = False
    delivery.pass_on(("a", 9), b"last")
    delivery.pass_on(None, b"none")
    delivery.leave("a")
    delivery.pass_on(("a", 9), b"none")

    assert passed == [b"0234", b"1234", b"2234", b"last"]
    assert [record.getMessage() for record in caplog.records] == [
        "client a does not take what its tasks tell; further notes are dropped"
    ]
