"""Which task goes to which engine, and what becomes of it when the engine dies."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from ipcluster_core.scheduling import (
    CHUNK_SECONDS,
    LEAST_SECONDS,
    LOOKED_AT,
    MOST_TASKS,
    SHORT_SECONDS,
    Assignment,
    Backlog,
    Load,
    Lost,
    Scheduler,
    Work,
)

QUICK = CHUNK_SECONDS / 1000
SLOW = 2 * SHORT_SECONDS


def make(*engines: int, means: Mapping[str, float] | None = None) -> Scheduler:
    """Return a scheduler with idle engines and functions of known duration."""
    scheduler = Scheduler()
    for function, seconds in (means or {}).items():
        scheduler.engine_up(99)
        scheduler.submit(Work("warm-up", 0, 1, function))
        finish(scheduler, scheduler.assign(), seconds)
        scheduler.engine_lost(99, {})
    for engine in engines:
        scheduler.engine_up(engine)
    return scheduler


def finish(scheduler: Scheduler, assignments: list[Assignment], seconds: float = 0.0) -> list[int]:
    """Finish all tasks of some chunks, in `seconds` each; return their numbers."""
    for made in assignments:
        count = made.slice.stop - made.slice.start
        scheduler.done(made.engine, made.chunk, count, seconds * count)
    return numbers(assignments)


def drain(scheduler: Scheduler) -> list[int]:
    """Have the engines do all they can; return the numbers of the tasks in the order in which they were handed out."""
    found = []
    while assignments := scheduler.assign():
        found += finish(scheduler, assignments)
    return found


def numbers(assignments: list[Assignment]) -> list[int]:
    """Return the numbers of the tasks in some chunks."""
    return [made.slice.work.base + i for made in assignments for i in range(made.slice.start, made.slice.stop)]


def spread(assignments: list[Assignment]) -> list[tuple[int, int, int]]:
    """Return engine, first task and count of some chunks."""
    return [(made.engine, made.slice.start, made.slice.stop - made.slice.start) for made in assignments]


def test_function_that_was_never_measured_goes_one_task_at_a_time() -> None:
    """A task of unknown length must not sit behind another one."""
    scheduler = make(0, 1)
    scheduler.submit(Work("client", 0, 10, "unknown"))

    assert spread(scheduler.assign()) == [(0, 0, 1), (1, 1, 1)]
    assert scheduler.assign() == []


def test_quick_tasks_travel_together() -> None:
    """A chunk is as large as ten milliseconds of work, and an engine gets a second one behind it."""
    scheduler = make(0, means={"quick": CHUNK_SECONDS / 100})
    scheduler.submit(Work("client", 0, 1000, "quick"))

    assert spread(scheduler.assign()) == [(0, 0, 100), (0, 100, 100)]


def test_chunk_has_a_largest_size() -> None:
    """Tasks that take no time at all come in chunks of bounded size."""
    scheduler = make(0, means={"quick": 0.0})
    scheduler.submit(Work("client", 0, 10_000, "quick"))

    assert spread(scheduler.assign()) == [(0, 0, MOST_TASKS), (0, MOST_TASKS, MOST_TASKS)]


def test_few_tasks_are_shared_among_all_engines() -> None:
    """A chunk takes no more than an engine's half of a fair share: what is left evens out who was slow."""
    scheduler = make(0, 1, 2, 3, means={"quick": LEAST_SECONDS})
    scheduler.submit(Work("client", 0, 16, "quick"))

    assert spread(scheduler.assign())[:4] == [(0, 0, 2), (1, 2, 1), (2, 3, 1), (3, 4, 1)]
    assert scheduler.engines == {0: 3, 1: 2, 2: 2, 3: 2}


def test_work_that_is_less_than_a_message_is_worth_is_not_split() -> None:
    """Sixteen tasks of microseconds go to one engine in one chunk."""
    scheduler = make(0, 1, 2, 3, means={"tiny": LEAST_SECONDS / 16})
    scheduler.submit(Work("client", 0, 16, "tiny"))

    assert spread(scheduler.assign()) == [(0, 0, 16)]


def test_nothing_waits_behind_a_slow_task() -> None:
    """An engine with a task that is not short gets no second chunk."""
    scheduler = make(0, means={"slow": SLOW, "quick": QUICK})
    scheduler.submit(Work("client", 0, 1, "slow"))
    scheduler.submit(Work("client", 1, 1, "quick"))

    assert numbers(scheduler.assign()) == [0]
    assert scheduler.load == Load(queued=1, running=1, settled=2)


def test_mean_follows_the_newest_measurements() -> None:
    """A function that became slow goes in small chunks again."""
    scheduler = make(0, means={"changing": QUICK})
    scheduler.submit(Work("client", 0, 10_000, "changing"))
    for _ in range(20):
        finish(scheduler, scheduler.assign(), CHUNK_SECONDS)

    assert [count for _, _, count in spread(scheduler.assign())] == [1, 1]


def test_time_that_was_not_measured_does_not_count() -> None:
    """Results saved from a dead engine's journal say nothing about how long its tasks took."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 10, "unknown"))
    (first,) = scheduler.assign()
    scheduler.done(0, first.chunk, 1, -1e-9)

    assert spread(scheduler.assign()) == [(0, 1, 1)]


def test_works_are_served_in_the_order_of_their_arrival() -> None:
    """Whoever came first is first, whatever the engines that may take it."""
    scheduler = make(0, means={"slow": SLOW})
    for base, engines in enumerate([None, frozenset({0}), None, frozenset({0, 7})]):
        scheduler.submit(Work("client", base, 1, "slow", engines))

    assert [finish(scheduler, scheduler.assign(), SLOW) for _ in range(4)] == [[0], [1], [2], [3]]


def test_work_for_some_engines_goes_to_no_other() -> None:
    """A targeted work waits for its engine while others are idle."""
    scheduler = make(0, 1)
    scheduler.submit(Work("client", 0, 3, "f", frozenset({1})))

    assert spread(scheduler.assign()) == [(1, 0, 1)]
    assert scheduler.assign() == []


def test_done_settles_the_next_tasks_of_the_chunk() -> None:
    """An engine may tell of a chunk in parts; each part says which tasks it settles."""
    scheduler = make(0, means={"quick": CHUNK_SECONDS / 4})
    scheduler.submit(Work("client", 0, 8, "quick"))
    first = scheduler.assign()[0]
    parts = [scheduler.done(0, first.chunk, count, 0.0) for count in (1, 3)]

    assert [(part.start, part.stop) for part in parts if part] == [(0, 1), (1, 4)]
    assert scheduler.settled(0, first.chunk) is None
    assert scheduler.load == Load(queued=2, running=2, settled=5)


def test_settled_tells_how_far_a_chunk_has_come() -> None:
    """Whoever recovers a dead engine's results knows which of them were told before."""
    scheduler = make(0, means={"quick": CHUNK_SECONDS / 4})
    scheduler.submit(Work("client", 0, 8, "quick"))
    first = scheduler.assign()[0]
    scheduler.done(0, first.chunk, 2, 0.0)

    assert scheduler.settled(0, first.chunk) == 2
    assert scheduler.settled(5, 0) is None


def test_done_of_an_unknown_chunk_is_ignored() -> None:
    """What comes from an engine that was given up settles nothing."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 1, "f"))
    (made,) = scheduler.assign()
    scheduler.engine_lost(0, {})

    assert scheduler.done(0, made.chunk, 1, 0.0) is None
    assert scheduler.load == Load(queued=1, running=0, settled=0)


def test_done_never_settles_more_than_the_chunk_holds() -> None:
    """An engine that counts wrongly cannot settle the tasks of another."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 5, "f"))
    (made,) = scheduler.assign()
    part = scheduler.done(0, made.chunk, 4, 0.0)

    assert part is not None
    assert (part.start, part.stop) == (0, 1)


def test_lost_engine_loses_the_task_that_had_begun_and_no_other() -> None:
    """At most once: what may have run is not run again; what had not begun moves to another engine."""
    scheduler = make(0, means={"quick": CHUNK_SECONDS / 4})
    work = Work("client", 0, 8, "quick")
    scheduler.submit(work)
    first, second = scheduler.assign()
    scheduler.done(0, first.chunk, 1, 0.0)
    lost = scheduler.engine_lost(0, {first.chunk: 2, second.chunk: 0})
    scheduler.engine_up(1)

    assert lost == [Lost(work, 1, 0)]
    assert drain(scheduler) == [2, 3, 4, 5, 6, 7]


def test_chunk_that_the_engine_never_opened_is_queued_again() -> None:
    """A journal that does not know the chunk means that none of its tasks had begun."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 1, "f"))
    scheduler.assign()

    assert scheduler.engine_lost(0, {}) == []
    assert scheduler.load == Load(queued=1, running=0, settled=0)


def test_journal_that_counts_too_far_loses_only_the_chunk() -> None:
    """A damaged journal must not take tasks of other engines with it."""
    scheduler = make(0, 1)
    work = Work("client", 0, 3, "f")
    scheduler.submit(work)
    first, _ = scheduler.assign()

    assert scheduler.engine_lost(0, {first.chunk: 1000}) == [Lost(work, 0, 0)]
    assert scheduler.load == Load(queued=1, running=1, settled=1)


def test_lost_tasks_come_back_in_their_old_order() -> None:
    """The order in which engines die does not become the order of the tasks."""
    scheduler = make(0, 1, 2)
    scheduler.submit(Work("client", 0, 6, "f"))
    scheduler.assign()
    for engine in (0, 2, 1):
        scheduler.engine_lost(engine, {})
    for engine in (3, 4, 5, 6):
        scheduler.engine_up(engine)

    assert numbers(scheduler.assign()) == [0, 1, 2, 3]


def test_task_is_tried_again_as_often_as_asked() -> None:
    """A task with two retries is lost with the third engine that dies of it."""
    scheduler = make()
    work = Work("client", 0, 1, "f", retries=2)
    scheduler.submit(work)
    lost = []
    for engine in range(3):
        scheduler.engine_up(engine)
        (made,) = scheduler.assign()
        lost.append(scheduler.engine_lost(engine, {made.chunk: 1}))

    assert lost == [[], [], [Lost(work, 0, 2)]]
    assert scheduler.load == Load(queued=0, running=0, settled=1)


def test_losing_an_engine_that_is_not_there_does_nothing() -> None:
    """The end of an engine may be told twice, or before it had registered."""
    scheduler = make(0)

    assert scheduler.engine_lost(5, {0: 1}) == []
    assert scheduler.engines == {0: 0}


def test_queued_task_is_cancelled() -> None:
    """A cancelled task is settled, and no engine ever gets it."""
    scheduler = make(means={"quick": QUICK})
    scheduler.submit(Work("client", 100, 8, "quick"))

    assert scheduler.cancel("client", 103)
    assert not scheduler.cancel("client", 103)
    scheduler.engine_up(0)
    assert drain(scheduler) == [100, 101, 102, 104, 105, 106, 107]


def test_task_that_an_engine_has_is_not_cancelled() -> None:
    """Cancel comes too late for a task that was handed out."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 2, "f"))
    scheduler.assign()

    assert not scheduler.cancel("client", 0)
    assert scheduler.cancel("client", 1)


@pytest.mark.parametrize(("client", "number"), [("client", 7), ("client", -1), ("client", 2), ("stranger", 0)])
def test_unknown_task_is_not_cancelled(client: str, number: int) -> None:
    """A number that was never submitted, or is another client's, cancels nothing."""
    scheduler = make()
    scheduler.submit(Work("client", 0, 2, "f"))
    scheduler.submit(Work("client", 4, 2, "f"))

    assert not scheduler.cancel(client, number)
    assert scheduler.load.queued == 4


def test_task_that_came_back_from_a_dead_engine_can_be_cancelled() -> None:
    """It is queued again, so it is like any other that is."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 1, "f"))
    scheduler.assign()
    scheduler.engine_lost(0, {})

    assert scheduler.cancel("client", 0)
    assert scheduler.load == Load(queued=0, running=0, settled=1)


def test_work_that_is_over_can_be_submitted_again_under_its_number() -> None:
    """A number is taken only while its task is not settled."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 1, "f"))
    with pytest.raises(ValueError, match="task 0 of this client is there already"):
        scheduler.submit(Work("client", 0, 1, "f"))
    finish(scheduler, scheduler.assign())
    scheduler.submit(Work("client", 0, 1, "f"))

    assert scheduler.load == Load(queued=1, running=0, settled=1)


def test_task_whose_engines_are_gone_for_good_is_given_up() -> None:
    """Nobody waits for a task that no engine can ever take."""
    scheduler = make(0, 1)
    work = Work("client", 0, 2, "f", frozenset({1}))
    scheduler.submit(work)
    scheduler.submit(Work("client", 2, 1, "f", frozenset({0, 1})))
    scheduler.engine_lost(1, {})

    assert scheduler.engine_gone(1, [0]) == [Lost(work, 0, None), Lost(work, 1, None)]
    assert scheduler.load == Load(queued=1, running=0, settled=2)


def test_task_waits_for_an_engine_that_is_to_come_back() -> None:
    """An engine that is started again keeps its tasks."""
    scheduler = make(0, 1)
    scheduler.submit(Work("client", 0, 1, "f", frozenset({1})))
    scheduler.engine_lost(1, {})

    assert scheduler.engine_gone(0, [1]) == []
    scheduler.engine_lost(0, {})
    assert scheduler.engine_gone(0, [1]) == []
    assert scheduler.load.queued == 1


def test_engine_that_is_gone_before_its_loss_is_told_leaves_no_task_waiting() -> None:
    """The two messages come over different links: in either order, nothing is left queued for it."""
    scheduler = make(0, 1)
    work = Work("client", 0, 3, "f", frozenset({1}))
    scheduler.submit(work)
    (made,) = scheduler.assign()

    assert scheduler.engine_gone(1, [0]) == []
    assert scheduler.engine_lost(1, {made.chunk: 1}) == [Lost(work, 0, 1), Lost(work, 1, None), Lost(work, 2, None)]


def test_idle_engines_retire_first() -> None:
    """Then those with the fewest tasks; among equals the highest id."""
    scheduler = make(0, 1, 2, 3, means={"quick": CHUNK_SECONDS / 4})
    scheduler.submit(Work("client", 0, 8, "quick", frozenset({1})))
    scheduler.submit(Work("client", 8, 1, "quick", frozenset({2})))
    scheduler.assign()

    assert scheduler.retire([0, 1, 2, 3, 77], 3) == [3, 0, 2]
    assert scheduler.retire([0, 1, 2, 3], 9) == [1]


def test_engine_that_alone_may_take_a_queued_task_retires_last() -> None:
    """It is not idle, though it holds nothing yet."""
    scheduler = make(0, 1)
    scheduler.submit(Work("client", 0, 1, "f", frozenset({1})))

    assert scheduler.retire([0, 1], 1) == [0]


def test_retiring_engine_gets_nothing_new() -> None:
    """It finishes what it has, and may then be stopped."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 2, "f"))
    (made,) = scheduler.assign()
    scheduler.retire([0], 1)
    busy = scheduler.is_idle(0)
    finish(scheduler, [made])

    assert not busy
    assert scheduler.is_idle(0)
    assert scheduler.assign() == []


def test_retiring_engine_still_does_what_only_it_may_do() -> None:
    """Scale-down loses nothing: tasks for that engine alone are done before it may be stopped."""
    scheduler = make(0, 1, means={"slow": SLOW})
    scheduler.submit(Work("client", 0, 2, "slow", frozenset({1})))
    scheduler.submit(Work("client", 2, 2, "slow", frozenset({0, 1})))
    scheduler.retire([1], 1)
    told = [(scheduler.is_idle(1), [n for n in finish(scheduler, scheduler.assign()) if n < 2]) for _ in range(3)]

    assert told == [(False, [0]), (False, [1]), (True, [])]
    assert scheduler.engine_lost(1, {}) == []


def test_engine_is_idle_when_all_that_waits_for_it_was_cancelled() -> None:
    """Cancelled tasks do not hold up a scale-down."""
    scheduler = make(0)
    scheduler.submit(Work("client", 0, 2, "f", frozenset({0})))
    scheduler.cancel("client", 0)
    scheduler.cancel("client", 1)

    assert scheduler.is_idle(0)
    assert scheduler.is_idle(5)


def test_engines_tell_how_many_tasks_each_holds() -> None:
    """Settled tasks of a chunk are not held any more."""
    scheduler = make(0, 1, means={"quick": CHUNK_SECONDS / 4})
    scheduler.submit(Work("client", 0, 8, "quick", frozenset({0})))
    first = scheduler.assign()[0]
    scheduler.done(0, first.chunk, 1, 0.0)

    assert scheduler.engines == {0: 1 + 1, 1: 0}


def test_many_small_works_take_time_in_proportion_to_their_number() -> None:
    """20,000 works of one task each pass, and as many are cancelled, well within what a quadratic step would take."""
    start = time.process_time()
    scheduler = make(0, 1, means={"quick": QUICK})
    for base in range(20_000):
        scheduler.submit(Work("client", base, 1, "quick"))
    while assignments := scheduler.assign():
        finish(scheduler, assignments, QUICK)
    for base in range(20_000):
        scheduler.submit(Work("client", base, 1, "quick"))
    cancelled = sum(scheduler.cancel("client", number) is not None for number in reversed(range(20_000)))

    assert cancelled == 20_000
    assert scheduler.load == Load(queued=0, running=0, settled=40_001)
    assert time.process_time() - start < 10.0


def test_a_million_queued_tasks_are_cheap() -> None:
    """Time goes with the number of chunks, not with the number of tasks."""
    start = time.process_time()
    scheduler = make(0, 1, 2, 3, means={"quick": 0.0})
    for base in range(0, 1_000_000, 1000):
        scheduler.submit(Work("client", base, 1000, "quick"))
    chunks = 0
    while assignments := scheduler.assign():
        chunks += len(assignments)
        finish(scheduler, assignments)

    assert scheduler.load == Load(queued=0, running=0, settled=1_000_001)
    assert chunks < 10_000
    assert time.process_time() - start < 10.0


def test_one_large_work_is_as_cheap_as_many() -> None:
    """Cutting a chunk does not look through what is left of the work."""
    start = time.process_time()
    scheduler = make(0, means={"slow": SLOW})
    scheduler.submit(Work("client", 0, 1_000_000, "slow"))
    for _ in range(10_000):
        finish(scheduler, scheduler.assign(), SLOW)

    assert scheduler.load == Load(queued=990_000, running=0, settled=10_001)
    assert time.process_time() - start < 10.0


def test_many_engines_dying_at_once_are_cheap() -> None:
    """1,000 engines with all their tasks come back in order."""
    start = time.process_time()
    scheduler = make(*range(1000))
    scheduler.submit(Work("client", 0, 1000, "f", retries=1))
    scheduler.assign()
    for engine in range(1000):
        scheduler.engine_lost(engine, {0: 1})
    scheduler.engine_up(0)

    assert numbers(scheduler.assign()) == [0]
    assert scheduler.load == Load(queued=999, running=1, settled=0)
    assert time.process_time() - start < 10.0


def test_suspended_engine_gets_nothing_and_its_own_tasks_wait_for_its_successor() -> None:
    """It is about to be replaced: whatever it were given now would be lost."""
    scheduler = make(0, 1)
    scheduler.suspend(0)
    scheduler.submit(Work("client", 0, 1, "unknown", frozenset({0})))
    scheduler.submit(Work("client", 1, 1, "unknown"))

    assert spread(scheduler.assign()) == [(1, 0, 1)]
    scheduler.engine_lost(0, {})
    scheduler.engine_up(0)
    assert numbers(scheduler.assign()) == [0]


# limits on engines, and none left


def test_engine_is_given_no_more_tasks_than_it_may_run() -> None:
    """However quick they are; the others wait until it is seated anew."""
    scheduler = Scheduler(max_tasks=5)
    scheduler.engine_up(0)
    scheduler.submit(Work("warm-up", 0, 1, "f"))
    finish(scheduler, scheduler.assign(), QUICK)
    scheduler.submit(Work("client", 0, 100, "f"))
    first = scheduler.assign()
    finish(scheduler, first, QUICK)
    nothing = scheduler.assign()
    scheduler.engine_lost(0, {})
    scheduler.engine_up(0)

    assert numbers(first) == [0, 1, 2, 3]
    assert nothing == []
    assert numbers(scheduler.assign()) == [4, 5, 6, 7, 8]


def test_tasks_that_any_engine_might_take_are_given_up_together() -> None:
    """Those that name an engine, and those that an engine has, are not; nor is a cancelled one."""
    scheduler = make(0)
    held, waiting, named = (
        Work("client", 0, 1, "f"),
        Work("client", 1, 3, "f"),
        Work("client", 4, 1, "f", frozenset([7])),
    )
    for work in (held, waiting, named):
        scheduler.submit(work)
    scheduler.assign()
    scheduler.cancel("client", 2)

    assert scheduler.give_up_waiting() == [Lost(waiting, 0, None), Lost(waiting, 2, None)]
    assert scheduler.give_up_waiting() == []
    assert scheduler.load == Load(queued=1, running=1, settled=3)
    assert held.unsettled == named.unsettled == 1


def test_only_idle_engines_retire_if_that_is_asked_for() -> None:
    """Fewer than asked for; one that a waiting task names is not idle."""
    scheduler = make(0, 1, 2, 3)
    scheduler.submit(Work("client", 0, 1, "f", frozenset([1])))
    scheduler.assign()
    scheduler.submit(Work("client", 1, 1, "f", frozenset([1])))

    assert scheduler.retire([0, 1, 2], 3, only_idle=True) == [2, 0]
    scheduler.submit(Work("client", 2, 1, "f", frozenset([2, 3])))
    assert scheduler.retire([1, 2, 3], 3, only_idle=True) == []
    assert scheduler.retire([1, 3], 1) == [3]


def test_backlog_estimates_what_waits_for_any_engine() -> None:
    """By the means of the functions; what names an engine does not count."""
    scheduler = make(means={"slow": 2.0})
    scheduler.submit(Work("client", 0, 10, "slow"))
    scheduler.submit(Work("client", 10, 4, "new"))
    scheduler.submit(Work("client", 14, 1, "slow", frozenset([7])))
    scheduler.cancel("client", 3)

    assert scheduler.backlog() == Backlog(tasks=13, unmeasured=4, seconds=18.0)
    assert Scheduler().backlog() == Backlog(0, 0, 0.0)


def test_backlog_of_very_many_works_is_scaled_up_from_the_oldest() -> None:
    """A look must not hold up the tasks."""
    scheduler = make(means={"slow": 2.0})
    for number in range(2 * LOOKED_AT):
        scheduler.submit(Work("client", number, 1, "slow"))

    assert scheduler.backlog() == Backlog(2 * LOOKED_AT, 0, 4.0 * LOOKED_AT)


# ranks of MPI sets


def test_a_rank_takes_what_names_it_and_nothing_else() -> None:
    """However long the others' tasks wait; a limit on tasks is not for it."""
    scheduler = Scheduler(max_tasks=1)
    scheduler.engine_up(1, named_only=True)
    scheduler.submit(Work("c", 0, 5, "f"))
    scheduler.submit(Work("c", 10, 1, "f", engines=frozenset({1, 2})))
    scheduler.submit(Work("c", 20, 1, "f", engines=frozenset({1})))
    first = scheduler.assign()
    scheduler.done(1, 0, 1, 1.0)
    second = scheduler.assign()

    assert [given.slice.work.base for given in (*first, *second)] == [10, 20]
    assert scheduler.load.queued == 5


def test_what_a_lost_rank_had_not_begun_is_lost_too() -> None:
    """Its part would wait for the others' parts that had; and so is what waits for the set only."""
    scheduler = Scheduler()
    for engine in (1, 2):
        scheduler.engine_up(engine, named_only=True)
    for base, engines in ((0, {1}), (10, {2}), (20, {1}), (30, {1, 2}), (40, {1, 9})):
        scheduler.submit(Work("c", base, 1, "f", engines=frozenset(engines)))
    scheduler.assign()

    assert sorted(lost.work.base for lost in scheduler.give_up_on([1, 2])) == [20, 30]
    assert [lost.work.base for lost in scheduler.engine_lost(1, {}, all_begun=True)] == [0]
    assert [lost.work.base for lost in scheduler.engine_lost(2, {}, all_begun=True)] == [10]
    assert scheduler.load.queued == 1


def test_a_task_is_known_by_its_place_in_a_chunk_while_an_engine_has_it() -> None:
    """Not when there is no such place, or the chunk is over."""
    scheduler = make(0)
    scheduler.submit(Work("client", 7, 1, "f"))
    (made,) = scheduler.assign()
    known = [scheduler.task_at(*place) for place in [(0, made.chunk, 0), (0, made.chunk, 1), (0, 99, 0), (9, 0, 0)]]
    finish(scheduler, [made])

    assert known == [("client", 7), None, None, None]
    assert scheduler.task_at(0, made.chunk, 0) is None
