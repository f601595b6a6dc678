"""How many engines a set should have for its load."""

from __future__ import annotations

import inspect
import itertools

from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core import Cluster
from ipcluster_core.adaptive import PATIENCE, REFUSING_ROUNDS, RETRY_PAUSES, Adaptive, Demand


class Set:
    """An adaptive set whose engines come up at once, or fail at once."""

    def __init__(self, minimum: int = 0, maximum: int = 8, *, wanted: int = 0) -> None:
        self.adaptive = Adaptive(minimum, maximum)
        self.wanted = wanted
        self.failed = 0
        self.retried = 0

    def need(self, need: int, now: float, *, fails: bool = False, coming: int = 0) -> int:
        """Tell of the need at a time; return how many engines are wanted then."""
        decision = self.adaptive.decide(wanted=self.wanted, need=need, coming=coming, failed=self.failed, now=now)
        if decision.retry:
            self.retried += 1
            self.failed = 0
        if fails:
            self.failed += decision.wanted - self.wanted if not decision.retry else decision.wanted
        self.wanted = decision.wanted
        self.failed = min(self.failed, self.wanted)
        return self.wanted


# what a load needs


def test_each_waiting_task_of_unknown_duration_is_worth_an_engine() -> None:
    """And each long one."""
    assert Demand().useful == 0
    assert Demand(tasks=3, unmeasured=3).useful == 3
    assert Demand(tasks=3, seconds=180.0).useful == 3


def test_quick_tasks_share_an_engine() -> None:
    """A thousand of a millisecond are one second of work: not worth a thousand engines."""
    assert Demand(tasks=1000, seconds=1.0).useful == 4
    assert Demand(tasks=1000, seconds=0.01).useful == 1
    assert Demand(tasks=1001, unmeasured=1, seconds=1.0).useful == 5


# up and down


def test_set_grows_at_once_also_from_none() -> None:
    """As far as it may."""
    adaptive = Set(0, 8)

    assert [adaptive.need(need, 0.0) for need in (0, 1, 5, 100)] == [0, 1, 5, 8]


def test_set_keeps_its_least() -> None:
    """Whatever the load."""
    assert Set(2, 8, wanted=2).need(0, 1e9) == 2
    assert [Adaptive(2, 8).clamp(n) for n in (0, 2, 5, 8, 9)] == [2, 2, 5, 8, 8]


def test_set_shrinks_when_fewer_have_been_enough_for_long() -> None:
    """Not a moment before."""
    adaptive = Set(wanted=8)

    assert [adaptive.need(2, now) for now in (10.0, 10.0 + PATIENCE - 0.1, 10.0 + PATIENCE)] == [8, 8, 2]


def test_set_shrinks_to_the_most_that_was_needed_meanwhile() -> None:
    """So it need not grow again at once."""
    adaptive = Set(wanted=8)
    for now, need in enumerate([1, 5, 0, 3]):
        adaptive.need(need, float(now))

    assert adaptive.need(0, PATIENCE) == 5
    assert adaptive.need(0, 2 * PATIENCE) == 0


def test_a_peak_begins_the_patience_anew() -> None:
    """Fewer must have been enough all the time."""
    adaptive = Set(wanted=4)
    adaptive.need(1, 0.0)
    adaptive.need(4, PATIENCE - 1)

    assert adaptive.need(1, PATIENCE) == 4
    assert adaptive.need(1, 2 * PATIENCE - 0.1) == 4
    assert adaptive.need(1, 2 * PATIENCE) == 1


@given(
    needs=st.lists(st.tuples(st.integers(0, 12), st.floats(0.1, 20.0)), min_size=1, max_size=60),
    low=st.integers(0, 4),
    high=st.integers(4, 10),
)
def test_set_never_flaps(needs: list[tuple[int, float]], low: int, high: int) -> None:
    """However the load jumps: it stays within its bounds, has what is needed, and shrinks once in a patience."""
    adaptive, now, shrunk = Set(low, high, wanted=low), 0.0, -PATIENCE
    for need, seconds in needs:
        now += seconds
        before, after = adaptive.wanted, adaptive.need(need, now)

        assert low <= after <= high
        assert after >= min(need, high)
        assert after <= before or after == min(need, high), "no more than are needed"
        if after < before:
            assert now - shrunk >= PATIENCE * 0.999
            shrunk = now


@given(need=st.integers(0, 12), wanted=st.integers(0, 10), seconds=st.floats(0.1, 5.0))
def test_a_constant_load_changes_the_direction_at_most_once(need: int, wanted: int, seconds: float) -> None:
    """And is settled after one patience."""
    adaptive, now = Set(0, 10, wanted=wanted), 0.0
    sizes = [wanted]
    while now < 3 * PATIENCE:
        sizes.append(adaptive.need(need, now))
        now += seconds
    changes = [after - before for before, after in itertools.pairwise(sizes) if after != before]

    assert len(changes) <= 1
    assert sizes[-1] == min(need, 10)


# engines that cannot be started


def test_starts_that_fail_are_tried_again_after_growing_pauses() -> None:
    """Once a pause; the reason names the pause."""
    adaptive, now, tries = Set(), 0.0, []
    adaptive.need(4, now, fails=True)
    while now < sum(RETRY_PAUSES) + 2 * RETRY_PAUSES[-1] + 10:
        before = adaptive.retried
        adaptive.need(4, now, fails=True)
        if adaptive.retried > before:
            tries.append(now)
        now += 1.0
    pauses = [after - before for before, after in itertools.pairwise([0.0, *tries])]

    expected = [*RETRY_PAUSES, RETRY_PAUSES[-1], RETRY_PAUSES[-1]]
    assert len(pauses) >= len(RETRY_PAUSES) + 1
    # Each round takes a look to be seen as failed.
    assert all(0 <= pause - due <= 2 for pause, due in zip(pauses, expected, strict=False))
    assert "could not be started" in adaptive.adaptive.reason()
    assert "300 s" in adaptive.adaptive.reason()


def test_set_does_not_grow_during_a_pause_and_may_shrink() -> None:
    """Whatever the load asks for."""
    adaptive = Set()
    adaptive.need(2, 0.0, fails=True)
    sizes = [adaptive.need(need, 1.0) for need in (2, 8, 100)]

    assert sizes == [2, 2, 2]
    assert adaptive.need(0, 2.0) == 2
    assert adaptive.adaptive.decide(wanted=2, need=0, coming=0, failed=2, now=2.0 + PATIENCE).wanted == 0


def test_a_start_that_succeeds_makes_good_for_those_that_failed() -> None:
    """The next pause is the shortest again, and there is nothing to explain."""
    adaptive = Set()
    adaptive.need(2, 0.0, fails=True)
    adaptive.need(2, 1.0)
    tried_again = adaptive.need(2, 1.0 + RETRY_PAUSES[0])
    adaptive.need(2, 10.0, coming=2)
    adaptive.need(2, 11.0)

    assert (tried_again, adaptive.retried, adaptive.adaptive.reason()) == (2, 1, "")
    adaptive.need(4, 12.0, fails=True)
    adaptive.need(4, 13.0)
    assert adaptive.adaptive.retry_at == 13.0 + RETRY_PAUSES[0]


def test_tasks_are_refused_after_some_rounds_until_the_next_try() -> None:
    """Before, they wait for it."""
    adaptive, now, refused = Set(), 0.0, []
    adaptive.need(1, now, fails=True)
    for _ in range(REFUSING_ROUNDS):
        adaptive.need(1, now, fails=True)
        refused.append(adaptive.adaptive.refuses(now))
        assert adaptive.adaptive.retry_at is not None
        now = adaptive.adaptive.retry_at
        if not refused[-1]:
            adaptive.need(1, now, fails=True)

    assert refused == [False] * (REFUSING_ROUNDS - 1) + [True]
    assert not adaptive.adaptive.refuses(now)


def test_the_verb_s_patience_is_the_one_of_here() -> None:
    """It is said twice, so that a step need not load this to create a cluster."""
    assert inspect.signature(Cluster.adapt).parameters["patience"].default == PATIENCE
