"""How much memory processes hold."""

from __future__ import annotations

import os

from ipcluster_core.memory import LOOK_SECONDS, MemoryWatch, resident_bytes
from ipcluster_core.policy import EnginePolicy

#: More than the highest pid that there can be (proc(5), pid_max).
NOBODY = 2**22 + 1


def test_what_a_process_holds_is_told() -> None:
    """It grows with what the process writes; one that is gone holds nothing."""
    before = resident_bytes("self")
    held = b"x" * (50 * 10**6)

    assert before > 10**6
    assert resident_bytes(os.getpid()) - before > 0.8 * len(held)
    assert resident_bytes(NOBODY) == 0


def test_processes_above_twice_the_limit_are_named_with_the_reason() -> None:
    """The others are not."""
    me = os.getpid()
    small = MemoryWatch(EnginePolicy(max_memory_bytes=10**6)).condemned([me, NOBODY], 0.0)
    large = MemoryWatch(EnginePolicy(max_memory_bytes=10**12)).condemned([me], 0.0)

    assert list(small) == [me]
    assert small[me].startswith("memory limit: it held")
    assert large == {}


def test_processes_are_looked_at_now_and_then() -> None:
    """Not more often than that, however often it is asked, and not when there is none."""
    watch = MemoryWatch(EnginePolicy(max_memory_bytes=10**6))
    first, early = watch.condemned([os.getpid()], 10.0), watch.condemned([os.getpid()], 10.0 + LOOK_SECONDS / 2)

    assert first
    assert early == {}
    assert watch.deadline([1]) == 10.0 + LOOK_SECONDS
    assert watch.deadline([]) is None
    assert watch.condemned([os.getpid()], 10.0 + LOOK_SECONDS)


def test_without_a_limit_nothing_is_looked_at() -> None:
    """There is not even something to wake up for."""
    watch = MemoryWatch(EnginePolicy())

    assert watch.deadline([os.getpid()]) is None
    assert watch.condemned([os.getpid()], 1e9) == {}
