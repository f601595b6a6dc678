"""Which tasks an engine shall leave."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipcluster_core import interrupts
from ipcluster_core.interrupts import Interrupts, Why


@pytest.fixture
def page() -> Iterator[tuple[Interrupts, Interrupts]]:
    """Two views of the same memory, behind something else."""
    with mmap.mmap(-1, 100 + interrupts.BYTES) as memory:
        yield Interrupts(memory, 100), Interrupts(memory, 100)


def test_what_one_side_adds_the_other_takes_once(page: tuple[Interrupts, Interrupts]) -> None:
    """With the reason."""
    nanny, engine = page
    assert engine.take() == {}
    assert nanny.add(3, 1, Why.CANCEL)
    assert nanny.add(4, 0, Why.INTERRUPT)

    assert engine.take() == {(3, 1): Why.CANCEL, (4, 0): Why.INTERRUPT}
    assert engine.take() == {}


def test_an_engine_that_never_reads_is_asked_no_more(page: tuple[Interrupts, Interrupts]) -> None:
    """The memory goes round, and nothing is overwritten unread."""
    nanny, engine = page
    for turn in range(3):
        added = 0
        while nanny.add(turn, added, Why.CANCEL):
            added += 1
        assert added == 512
        assert engine.take() == {(turn, index): Why.CANCEL for index in range(512)}


def test_a_fork_shares_it(page: tuple[Interrupts, Interrupts]) -> None:
    """As a nanny and its engines do."""
    nanny, engine = page
    pid = os.fork()
    if pid == 0:
        nanny.add(9, 9, Why.CANCEL)
        os._exit(0)
    os.waitpid(pid, 0)

    assert engine.take() == {(9, 9): Why.CANCEL}


@settings(max_examples=200, derandomize=True, database=None)
@given(garbage=st.binary(min_size=8, max_size=40), at=st.integers(0, 60))
def test_memory_that_user_code_wrote_over_harms_neither_side(garbage: bytes, at: int) -> None:
    """An engine that reads it in a signal handler comes back at once; a nanny may find that there is no room."""
    with mmap.mmap(-1, interrupts.BYTES) as memory:
        page = Interrupts(memory, 0)
        page.add(1, 1, Why.CANCEL)
        memory[at : at + len(garbage)] = garbage

        assert len(page.take()) <= 512
        page.add(2, 2, Why.CANCEL)
        page.take()


def test_what_was_interrupted_is_noted_for_the_nanny(page: tuple[Interrupts, Interrupts]) -> None:
    """For the task that it was, and no other."""
    nanny, engine = page
    nanny.add(3, 1, Why.INTERRUPT)
    nanny.add(3, 2, Why.INTERRUPT)
    engine.take()
    engine.note(3, 2)

    assert nanny.noted(3, 2)
    assert not nanny.noted(3, 1)
    assert not nanny.noted(4, 2)
