"""What is sent, kept, found and sent anew over the attempts of a map; no cluster is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ipcluster_core.errors import ClusterError, ResultExpired
from prefect_ipcluster import chunks
from prefect_ipcluster.chunks import ChunkedMap


class Sent(Future[Any]):
    """A task that was sent."""

    def __init__(self, task_id: str) -> None:
        super().__init__()
        self.task_id = task_id


class FakeClient:
    """Notes what is sent and what is asked for; the test settles it."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], Sent]] = []
        self.fetched: dict[str, Sent] = {}

    def submit(self, apply: Callable[..., Any], *columns: list[int]) -> Sent:
        """Note a chunk."""
        sent = Sent(f"{id(self)}-{len(self.sent)}")
        self.sent.append((columns[0], sent))
        return sent

    def future(self, task_id: str) -> Sent:
        """Note a task that is asked for."""
        return self.fetched.setdefault(task_id, Sent(task_id))

    @property
    def items(self) -> list[list[int]]:
        """The items of the chunks that were sent."""
        return [items for items, _ in self.sent]


@pytest.fixture
def client() -> Any:  # noqa: ANN401 - stands in for a client
    """The client of the first attempt."""
    return FakeClient()


@pytest.fixture
def failed(client: Any) -> tuple[ChunkedMap, list[Sent]]:  # noqa: ANN401
    """A map of three chunks after its first attempt: one is finished, one has failed, one goes on."""
    work = ChunkedMap(abs, [range(6)], chunksize=2)
    work.begin(client)
    sent = [one for _, one in client.sent]
    sent[0].set_result([0, 1])
    assert work.pending(client) == sent[1:]
    sent[1].set_exception(RuntimeError("the first time"))
    with pytest.raises(RuntimeError, match="the first time"):
        work.pending(client)
    work.park()
    return work, sent


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Begin and end with nothing kept."""
    chunks.forget()
    yield
    chunks.forget()


def test_a_map_is_sent_in_chunks_and_collected_in_order(client: Any) -> None:  # noqa: ANN401
    """The last one may be smaller, and they may finish in any order."""
    work = ChunkedMap(abs, [range(5), range(9)], chunksize=2)
    work.begin(client)
    for (items, sent), percent in zip(reversed(client.sent), (33, 67, 100), strict=True):
        sent.set_result(items)
        assert round(work.percent) == percent

    assert client.items == [[0, 1], [2, 3], [4]]
    assert work.pending(client) == []
    assert work.results() == [0, 1, 2, 3, 4]


def test_the_next_attempt_sends_only_what_has_failed(client: Any, failed: tuple[ChunkedMap, list[Sent]]) -> None:  # noqa: ANN401
    """What goes on is found by its id."""
    work, sent = failed
    again: Any = FakeClient()
    work.begin(again)
    waiting = work.pending(again)
    again.sent[0][1].set_result([2, 3])
    again.fetched[sent[2].task_id].set_result([4, 5])

    assert again.items == [[2, 3]]
    assert list(again.fetched) == [sent[2].task_id]
    assert len(waiting) == 2
    assert work.pending(again) == []
    assert work.results() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [ResultExpired("not kept"), RuntimeError("failed meanwhile")])
def test_what_cannot_be_found_any_more_or_has_failed_since_is_sent_anew(
    failed: tuple[ChunkedMap, list[Sent]], error: Exception
) -> None:
    """Once: if it fails then, so does the attempt."""
    work, sent = failed
    again: Any = FakeClient()
    work.begin(again)
    again.fetched[sent[2].task_id].set_exception(error)
    work.pending(again)
    again.sent[1][1].set_exception(error)

    assert again.items == [[2, 3], [4, 5]]
    with pytest.raises(type(error)):
        work.pending(again)


def test_what_is_cancelled_by_another_step_fails_the_map(client: Any) -> None:  # noqa: ANN401
    """It says so."""
    work = ChunkedMap(abs, [range(2)])
    work.begin(client)
    client.sent[0][1].cancel()

    with pytest.raises(ClusterError, match="was cancelled by another step"):
        work.pending(client)
    assert work.unfinished == [client.sent[1][1].task_id]


def test_few_maps_are_kept() -> None:
    """A task run that Prefect never retries must not hold its items for ever."""
    maps = [ChunkedMap(abs, [[]]) for _ in range(chunks.MOST_KEPT + 1)]
    for number, one in enumerate(maps):
        chunks.remember(str(number), one)

    assert chunks.recall("0") is None
    assert chunks.recall("1") is maps[1]
    assert chunks.recall("1") is None
    assert chunks.recall(None) is None
