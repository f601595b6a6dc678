"""When an engine leaves, is killed, is started again, or is given up."""

from __future__ import annotations

import pytest

from ipcluster_core import ClusterSpec
from ipcluster_core.policy import PAUSES, START_TRIES, EnginePolicy, pause_after, policy_of

MEGABYTE = 10**6


def test_policy_is_read_from_a_spec() -> None:
    """What is absent has its default, which is that of the spec."""
    assert policy_of({"max_tasks": 3, "max_memory_bytes": None}) == EnginePolicy(max_tasks=3)
    assert policy_of(ClusterSpec().model_dump(mode="json")) == EnginePolicy() == policy_of({})


@pytest.mark.parametrize(("tasks", "leaves"), [(0, False), (2, False), (3, True), (4, True)])
def test_engine_leaves_after_so_many_tasks(tasks: int, leaves: bool) -> None:
    """The reason names the limit."""
    why = EnginePolicy(max_tasks=3).farewell(tasks, 10**12)

    assert why == (f"it has run {tasks} tasks (max_tasks is 3)" if leaves else "")


@pytest.mark.parametrize(("resident", "leaves"), [(0, False), (500, False), (501, True)])
def test_engine_leaves_when_it_holds_too_much(resident: int, leaves: bool) -> None:
    """However few tasks it has run."""
    why = EnginePolicy(max_memory_bytes=500 * MEGABYTE).farewell(1, resident * MEGABYTE)

    assert why == ("it holds 501 MB of memory (max_memory_bytes is 500 MB)" if leaves else "")


@pytest.mark.parametrize(("resident", "dies"), [(501, False), (1000, False), (1001, True)])
def test_engine_above_twice_its_limit_is_killed(resident: int, dies: bool) -> None:
    """Below that, its task may come to its end."""
    why = EnginePolicy(max_memory_bytes=500 * MEGABYTE).death_sentence(resident * MEGABYTE)

    assert why == ("memory limit: it held 1001 MB, more than twice max_memory_bytes=500 MB" if dies else "")


def test_engine_without_limits_stays() -> None:
    """Whatever it does."""
    assert EnginePolicy().farewell(10**9, 10**12) == EnginePolicy().death_sentence(10**12) == ""


@pytest.mark.parametrize("failed", range(1, START_TRIES + 1))
def test_engine_that_never_comes_up_has_its_tries(failed: int) -> None:
    """Three; fewer where fewer restarts are allowed."""
    given_up = EnginePolicy().gives_up(quick_deaths=failed, failed_starts=failed)
    strict = EnginePolicy(max_restarts=1).gives_up(quick_deaths=failed, failed_starts=failed)

    assert given_up == ("could not be started" if failed == START_TRIES else "")
    assert strict == ("could not be started" if failed >= 2 else "")


@pytest.mark.parametrize(("deaths", "given_up"), [(1, False), (4, False), (5, True)])
def test_engine_that_dies_soon_again_and_again_is_given_up(deaths: int, given_up: bool) -> None:
    """Once it has been started again as often as is allowed."""
    why = EnginePolicy(max_restarts=4).gives_up(quick_deaths=deaths, failed_starts=0)

    assert why == ("died 5 times in a row soon after its start, and is not started again" if given_up else "")


@pytest.mark.parametrize("deaths", [0, 1])
def test_engine_is_never_replaced_when_that_is_asked_for(deaths: int) -> None:
    """Also one that was up for long."""
    policy = EnginePolicy(max_restarts=0)

    assert policy.gives_up(quick_deaths=deaths, failed_starts=0) == "ended and is not replaced, as max_restarts is 0"
    assert policy.gives_up(quick_deaths=1, failed_starts=1) == "could not be started"


def test_pauses_grow_up_to_the_last_one() -> None:
    """None after a death that was not sudden."""
    assert [pause_after(n) for n in range(len(PAUSES) + 3)] == [0.0, *PAUSES, PAUSES[-1], PAUSES[-1]]
