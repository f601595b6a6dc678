"""Outcomes that are kept for whoever asks later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core import archive
from ipcluster_core.archive import Archive

KEPT = 100.0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Archive[str]:
    """One with room for few entries."""
    monkeypatch.setattr(archive, "_DELIVERED_BYTES", 3000)
    monkeypatch.setattr(archive, "_MOST_BYTES", 6000)
    return Archive(KEPT)


def keep(kept: Archive[str], base: int, *, size: int = 500, delivered: bool = False, now: float = 0.0) -> list[int]:
    """Keep one outcome of client "c"; return the numbers of those that went for it."""
    return [e.base for e in kept.keep("c", base, 1, f"#{base}", size=size, delivered=delivered, now=now)]


def test_outcomes_are_found_by_client_and_number() -> None:
    """Those that were settled together are one entry."""
    kept: Archive[str] = Archive(KEPT)
    kept.keep("a", 10, 5, "ten", size=1, delivered=False, now=0.0)
    kept.keep("a", 3, 1, "three", size=1, delivered=True, now=0.0)
    kept.keep("b", 10, 1, "other", size=1, delivered=False, now=0.0)
    found = {number: entry.content for number in range(20) if (entry := kept.find("a", number))}

    assert found == {3: "three", **dict.fromkeys(range(10, 15), "ten")}
    assert kept.find("c", 3) is None


def test_an_outcome_under_a_number_that_is_taken_replaces_the_earlier_one() -> None:
    """A client that lies about its numbers has one outcome each, and nothing is left of the other."""
    kept: Archive[str] = Archive(KEPT)
    kept.keep("a", 1, 1, "first", size=10, delivered=True, now=0.0)
    gone = kept.keep("a", 1, 2, "second", size=20, delivered=False, now=1.0)
    found = kept.find("a", 1)

    assert [entry.content for entry in gone] == ["first"]
    assert found is not None
    assert found.content == "second"
    assert [entry.content for entry in kept.expire(KEPT + 1.0)] == ["second"]
    assert (kept.size, kept.deadline()) == (0, None)


def test_an_outcome_goes_when_its_time_is_over_and_not_before() -> None:
    """And the next one's time is known."""
    kept: Archive[str] = Archive(KEPT)
    assert kept.deadline() is None
    keep(kept, 1, now=0.0)
    keep(kept, 2, delivered=True, now=10.0)

    assert kept.deadline() == 100.0
    assert kept.expire(99.9) == []
    assert [entry.base for entry in kept.expire(100.0)] == [1]
    assert kept.find("c", 1) is None
    assert kept.find("c", 2) is not None
    assert kept.deadline() == 110.0
    assert [entry.base for entry in kept.expire(200.0)] == [2]
    assert (kept.size, kept.deadline()) == (0, None)


def test_what_its_client_has_got_goes_first_when_there_is_no_room(small: Archive[str]) -> None:
    """Each kind has its own room, so a flood of delivered ones costs no one that nobody has got."""
    assert [keep(small, n, delivered=False) for n in range(3)] == [[], [], []]
    assert [keep(small, n, delivered=True) for n in range(10, 14)] == [[], [], [], [10]]
    assert [keep(small, n, delivered=False) for n in range(3, 7)] == [[], [], [], [0]]
    assert small.size <= 9000


def test_one_that_is_too_large_for_all_room_is_not_kept(small: Archive[str]) -> None:
    """It would be alone, and still too much."""
    assert keep(small, 1, size=10_000) == [1]
    assert small.size == 0


def test_an_entry_can_be_removed_once() -> None:
    """When it was read and is of no more use."""
    kept: Archive[str] = Archive(KEPT)
    keep(kept, 1)
    entry = kept.find("c", 1)
    assert entry is not None
    kept.remove(entry)

    assert kept.find("c", 1) is None
    assert (kept.size, kept.deadline()) == (0, None)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 400), st.booleans(), st.floats(0.0, 60.0)), max_size=60
    )
)
def test_whatever_comes_the_newest_are_kept_within_bounds(steps: list[tuple[str, int, bool, float]]) -> None:
    """Nothing is found that is over, everything else is, as far as there is room."""
    kept: Archive[int] = Archive(KEPT)
    now, alive, number = 0.0, {}, 0
    for client, size, delivered, passed in steps:
        now += passed
        number += 2
        alive[client, number] = now + KEPT
        for entry in kept.keep(client, number, 2, number, size=size, delivered=delivered, now=now):
            assert entry.until <= now
            del alive[entry.client, entry.base]

    for (client, base), until in alive.items():
        assert until > now
        for one in (base, base + 1):
            entry = kept.find(client, one)
            assert entry is not None
            assert entry.content == base
    assert len(kept.expire(now + KEPT)) == len(alive)
    assert kept.size == 0
