"""A rank's journal on two hosts: the copy never says more than the journal did, and all of it in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipcluster_core.interrupts import Why
from ipcluster_core.journal import Finished, Journal, Progress, make_file, map_file
from ipcluster_core.mirror import Mirror, Wishes, carry_out


class Pair:
    """A journal as its rank has it, and as the nanny has it, and what goes to and fro."""

    def __init__(self, folder: Path) -> None:
        self._fds = [make_file(str(folder / name)) for name in ("there", "here")]
        self.rank, self.nanny = map(Journal, self._fds)
        self._there, self._here = (map_file(str(folder / name)) for name in ("there", "here"))
        self.mirror, self.wishes = Mirror(self._there), Wishes(self._here)

    def carry(self, *, at_most: int | None = None) -> int:
        """Bring the rank's news to the nanny, or the first of them; return how many there were."""
        news = self.mirror.news()
        carry_out(self._here, news[:at_most])
        return len(news)

    def carry_back(self) -> int:
        """Bring the nanny's wishes to the rank."""
        news = self.wishes.news()
        carry_out(self._there, news)
        return len(news)

    def close(self) -> None:
        """Give it all back."""
        for part in (self.rank, self.nanny, self._there, self._here):
            part.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A new pair whose first news, of nothing, are carried."""
    made = Pair(tmp_path)
    made.carry()
    yield made
    made.close()


def run(journal: Journal, chunk: int, payloads: list[bytes]) -> None:
    """Have a chunk's tasks finish with these results."""
    journal.open_chunk(chunk)
    for index, payload in enumerate(payloads):
        journal.begin(index)
        journal.finish(0, payload)


def test_the_copy_says_what_runs_and_what_had_come_of_the_others(pair: Pair) -> None:
    """As the nanny reads it after a death, and for an interrupt."""
    run(pair.rank, 4, [b"one", b"two"])
    pair.rank.begin(2)
    pair.carry()

    assert pair.nanny.running() == (4, 2)
    assert pair.nanny.read() == [Progress(4, 3, (Finished(0, b"one"), Finished(0, b"two")))]
    assert pair.mirror.is_busy


def test_only_what_is_new_is_carried(pair: Pair) -> None:
    """Results that are there already are not carried again; nothing is when nothing has changed."""
    run(pair.rank, 0, [bytes(1000)])
    pair.carry()
    pair.rank.begin(1)
    pair.rank.finish(0, b"second")
    news = pair.mirror.news()

    assert pair.mirror.news() == []
    assert sum(len(write.content) for write in news) < 100
    assert not pair.mirror.is_busy


def test_the_copy_never_counts_what_it_lacks(pair: Pair) -> None:
    """However little of the news has come before the host was lost."""
    run(pair.rank, 0, [b"first"])
    pair.carry()
    before = pair.nanny.read()
    run(pair.rank, 2, [b"another", b"one"])
    pair.carry(at_most=1)

    assert [part.chunk for part in pair.nanny.read()] == [0]
    assert [len(part.finished) for part in pair.nanny.read()] == [len(before[0].finished)]


def test_chunks_that_come_and_go_between_two_looks_leave_the_last_ones(pair: Pair) -> None:
    """Each half of the journal is used again, with more or fewer entries than before."""
    run(pair.rank, 0, [b"a"] * 5)
    pair.carry()
    for chunk in range(1, 5):
        run(pair.rank, chunk, [b"%d-%d" % (chunk, index) for index in range(6 - chunk)])
    pair.carry()

    assert pair.nanny.read() == pair.rank.read()
    assert [part.chunk for part in pair.nanny.read()] == [3, 4]


def test_results_too_large_to_keep_are_told_as_such(pair: Pair) -> None:
    """They were sent at once."""
    pair.rank.open_chunk(0)
    pair.rank.begin(0)
    pair.rank.finish(0, bytes(1 << 20))
    pair.rank.begin(1)
    pair.rank.finish(0, b"small")
    pair.carry()

    assert pair.nanny.read() == [Progress(0, 2, (Finished(0, None), Finished(0, b"small")))]


def test_wishes_reach_the_rank_and_what_it_did_about_them_the_nanny(pair: Pair) -> None:
    """Also when there are more of them than fit at a time."""
    pair.rank.open_chunk(0)
    pair.rank.begin(0)
    for index in range(700):
        pair.nanny.interrupts.add(0, index, Why.CANCEL if index % 2 else Why.INTERRUPT)
        pair.carry_back()
        taken = pair.rank.interrupts.take()
        pair.carry()
        assert taken == {(0, index): Why.CANCEL if index % 2 else Why.INTERRUPT}
    pair.rank.interrupts.note(0, 699)
    pair.carry()

    assert pair.nanny.interrupts.noted(0, 699)
    assert not pair.nanny.interrupts.noted(0, 698)
    assert pair.carry_back() == 0


def test_that_a_task_was_interrupted_is_known_before_its_end(pair: Pair) -> None:
    """Else it would be taken for one that ended by itself."""
    pair.rank.open_chunk(0)
    pair.rank.begin(0)
    pair.nanny.interrupts.add(0, 0, Why.INTERRUPT)
    pair.carry_back()
    pair.carry()
    pair.rank.interrupts.note(0, 0)
    pair.rank.finish(1, b"KeyboardInterrupt")
    pair.carry(at_most=1)

    assert pair.nanny.interrupts.noted(0, 0)
    assert pair.nanny.running() == (0, 0)


def test_nonsense_in_the_memory_of_a_rank_harms_nobody_else(pair: Pair) -> None:
    """User code may have written over it; what lies outside is none of it."""
    pair.mirror.news()
    with Path("/dev/urandom").open("rb") as noise:
        for _ in range(20):
            carry_out(pair._there, [(0, noise.read(5000)), (256 * 1024, noise.read(5000))])  # type: ignore[list-item]
            pair.carry()
    carry_out(pair._here, [(1 << 30, b"far")])  # type: ignore[list-item]

    assert len(pair.nanny.read()) <= 2
