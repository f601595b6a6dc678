"""What happens to a cluster and its engines: a race is a list of events, and time is a number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from ipcluster_core.actions import (
    AcceptTasks,
    Action,
    Adapted,
    AskLoad,
    DropEngine,
    End,
    Ready,
    RefuseTasks,
    RestartEngine,
    RetireEngines,
    StartEngine,
    StopEngine,
)
from ipcluster_core.adaptive import PATIENCE, REFUSING_ROUNDS, RETRY_PAUSES, Demand
from ipcluster_core.lifecycle import DRAIN_SECONDS, ClusterLife, Limits, limits_of
from ipcluster_core.policy import PAUSES, START_TRIES, STEADY_SECONDS, EnginePolicy
from ipcluster_core.roster import EngineState

UP, STARTING, WAITING = EngineState.UP, EngineState.STARTING, EngineState.WAITING


def begin(n: int, *, up: int | None = None, at_least: int | None = None, limits: Limits | None = None) -> ClusterLife:
    """Return a cluster of `n` engines that began at 0 s, `up` (default: all) of which came up at once."""
    life = ClusterLife({"default": n}, n if at_least is None else at_least, limits or Limits())
    list(life.begin(0.0))
    for engine in range(n if up is None else up):
        list(life.engine_up(engine, 0, 0.0))
    return life


def states(life: ClusterLife) -> dict[int, str]:
    """Return the state of each engine."""
    return {engine.id: str(engine.state) for engine in sorted(life.engines.values(), key=lambda e: e.id)}


def ask(life: ClusterLife, now: float) -> list[Action]:
    """Move on to a time; the broker answers what it is asked, with what is known already."""
    actions = list(life.tick(now))
    if AskLoad() in actions:
        actions += life.load(life.idle_since, life.alone_since, now)
    return actions


def fail_start(life: ClusterLife, engine: int, times: int, now: float = 100.0) -> list[Action]:
    """Have an engine die before it is up, so many times in a row; return what followed from the last one."""
    actions: list[Action] = []
    for _ in range(times):
        actions = list(life.engine_died(engine, "exit code 1", "ImportError: no lizard", now))
        now += PAUSES[-1]
        actions += life.tick(now)
    return actions


# starting


def test_cluster_starts_the_engines_asked_for() -> None:
    """Ids are counted from 0 through all sets."""
    life = ClusterLife({"default": 2, "large": 1}, 3)

    assert list(life.begin(0.0)) == [
        StartEngine(0, 0, "default"),
        StartEngine(1, 0, "default"),
        StartEngine(2, 0, "large"),
    ]


def test_cluster_is_ready_once_enough_engines_are_up() -> None:
    """Ready comes once, with the engine that makes the number full."""
    life = begin(3, up=0, at_least=2)
    followed = [list(life.engine_up(engine, 0, float(engine))) for engine in range(3)]

    assert followed == [[], [Ready()], []]
    assert life.ready_at == 1.0


def test_cluster_that_needs_no_engine_is_ready_at_once() -> None:
    """A cluster of none can be scaled up later."""
    life = ClusterLife({"default": 0}, 0)

    assert list(life.begin(5.0)) == [Ready()]


def test_up_of_an_old_incarnation_has_no_effect() -> None:
    """What an engine said before it died is not taken for its successor."""
    life = begin(1, up=0)
    list(life.engine_died(0, "signal SIGKILL", "", 0.0))

    assert list(life.engine_up(0, 0, 0.1)) == []
    assert states(life) == {0: "starting"}
    assert list(life.engine_up(0, 1, 0.1)) == [Ready()]


def test_id_that_is_used_again_goes_on_counting_incarnations() -> None:
    """Also when an id passes to another engine, the old one's words are not taken for the new one's."""
    life = begin(1)
    list(life.scale("default", 0, 1.0))
    list(life.engines_retired("default", 1, [0], 1.0))
    list(life.engine_idle(0, 1.0))
    list(life.engine_died(0, "exit code 0", "", 1.0))

    assert list(life.scale("default", 1, 2.0)) == [StartEngine(0, 1, "default")]
    assert list(life.engine_up(0, 0, 2.0)) == []


def test_start_and_death_of_an_old_incarnation_have_no_effect() -> None:
    """News that comes late over another link changes nothing."""
    life = begin(1)
    list(life.engine_died(0, "exit code 1", "", 0.0))
    life.engine_started(0, 100, 1)
    life.engine_started(0, 77, 0)

    assert list(life.engine_died(0, "exit code 1", "", 0.0, incarnation=0)) == []
    assert life.engines[0].pids == {0: 100}
    assert states(life) == {0: "starting"}


def test_news_of_unknown_engines_has_no_effect() -> None:
    """An engine that was removed meanwhile is not brought back by what is still said of it."""
    life = begin(1)
    life.engine_started(7, 1234)

    assert [*life.engine_up(7, 0, 1.0), *life.engine_died(7, "", "", 1.0), *life.engine_idle(7, 1.0)] == []
    assert states(life) == {0: "up"}


# dying


def test_engine_that_died_is_started_again_at_once() -> None:
    """The first death costs no pause: same id, next incarnation."""
    life = begin(1)
    life.engine_started(0, 1234)

    assert list(life.engine_died(0, "signal SIGSEGV", "", 1.0)) == [StartEngine(0, 1, "default")]
    assert life.engines[0].pids == {}


def test_engine_that_dies_again_and_again_waits_longer_each_time() -> None:
    """The pauses grow up to the last one."""
    life, now, pauses = begin(1), 0.0, []
    for incarnation in range(1, 9):
        started = list(life.engine_died(0, "exit code 1", "", now))
        if not started:
            deadline = life.deadline()
            assert deadline is not None
            assert list(life.tick(deadline - 0.001)) == []
            pauses.append(round(deadline - now, 6))
            now = deadline
            started = list(life.tick(now))
        else:
            pauses.append(0.0)
        assert started == [StartEngine(0, incarnation, "default")]
        list(life.engine_up(0, incarnation, now))

    assert pauses == [*PAUSES, PAUSES[-1], PAUSES[-1]]


def test_engine_that_was_up_for_long_starts_again_without_a_pause() -> None:
    """A death after ten steady seconds is not counted together with earlier ones."""
    life = begin(1)
    for incarnation in (1, 2):
        list(life.engine_died(0, "exit code 1", "", 0.0))
        list(life.tick(1.0))
        list(life.engine_up(0, incarnation, 1.0))

    assert list(life.engine_died(0, "", "", 1.0 + STEADY_SECONDS)) == [StartEngine(0, 3, "default")]


def test_engine_that_cannot_be_started_is_given_up() -> None:
    """After three tries in a row; the broker drops what waited for it, the reason is kept with the last output."""
    life = begin(2, up=1, at_least=1)
    followed = fail_start(life, 1, START_TRIES)

    why = "engine 1 could not be started (exit code 1):\nImportError: no lizard"
    assert followed == [DropEngine(1, (0,), why)]
    assert states(life) == {0: "up", 1: "failed"}
    assert life.reasons() == [why]


def test_deaths_of_an_engine_that_was_up_do_not_count_as_failed_starts() -> None:
    """An engine that tasks kill is not given up because of one start that fails."""
    life, now = begin(1), 0.0
    for incarnation in (1, 2, 3):
        list(life.engine_died(0, "signal SIGKILL", "", now))
        now += PAUSES[-1]
        list(life.tick(now))
        if incarnation < 3:
            list(life.engine_up(0, incarnation, now))
    list(life.engine_died(0, "exit code 1", "", now))

    assert states(life) == {0: "waiting"}
    assert life.reasons() == ["engine 0 ended (exit code 1) and will be started again"]


def test_engine_that_came_up_in_the_end_has_all_its_tries_again() -> None:
    """Only failures in a row count."""
    life = begin(1, up=0, at_least=0)
    fail_start(life, 0, START_TRIES - 1)
    list(life.engine_up(0, START_TRIES - 1, 200.0))
    fail_start(life, 0, START_TRIES, now=300.0)  # the first of these deaths is of an engine that was up

    assert states(life) == {0: "starting"}


def test_cluster_ends_when_it_cannot_become_ready() -> None:
    """As soon as too few engines can come up any more, with the reason and the last output."""
    life = begin(3, up=1, at_least=2)
    first = fail_start(life, 1, START_TRIES)
    second = fail_start(life, 2, START_TRIES)

    why = "engine {} could not be started (exit code 1):\nImportError: no lizard"
    assert first == [DropEngine(1, (0, 2), why.format(1))]
    assert second[0] == DropEngine(2, (0,), why.format(2))
    assert isinstance(second[1], End)
    assert second[1].reason == "only 1 of the 2 engines needed could be started"
    assert "engine 2 could not be started (exit code 1):\nImportError: no lizard" in second[1].tail


def test_ready_cluster_lives_on_without_an_engine() -> None:
    """But for its tasks there is no hope: they are refused, with the reason."""
    life = begin(1)
    list(life.engine_died(0, "exit code 1", "", 0.0))
    why = "engine 0 could not be started (exit code 1):\nImportError: no lizard"

    assert fail_start(life, 0, START_TRIES) == [DropEngine(0, (), why), RefuseTasks(why)]
    assert life.over is None
    assert life.reachable() == 0


# recycled, and given up for good


def test_engine_that_is_recycled_is_started_again_at_once() -> None:
    """However often; it is no death, also if what it said before is heard later."""
    life = begin(1)
    for incarnation in range(1, 30):
        assert list(life.engine_died(0, "exit code 0", "", 1.0, recycled=True)) == [
            StartEngine(0, incarnation, "default")
        ]
    assert states(life) == {0: "starting"}
    assert list(life.engine_up(0, 29, 2.0)) == []
    assert life.engines[0].quick_deaths == 0


def test_engine_that_leaves_is_shown_as_restarting() -> None:
    """It gets no more tasks, so it is not counted as up."""
    life = begin(1)
    life.engine_leaves(0, 7, 1.0)
    life.engine_leaves(5, 0, 1.0)
    unchanged = states(life)
    life.engine_leaves(0, 0, 1.0)

    assert unchanged == {0: "up"}
    assert states(life) == {0: "restarting"}
    assert list(life.engine_died(0, "exit code 0", "", 2.0, recycled=True)) == [StartEngine(0, 1, "default")]


def test_engine_that_leaves_to_be_recycled_while_it_retires_is_not_started_again() -> None:
    """Nor while it is one too many."""
    life = begin(2)
    list(life.scale("default", 1, 1.0))
    list(life.engines_retired("default", 1, [1], 1.0))

    assert list(life.engine_died(1, "exit code 0", "", 2.0, recycled=True)) == [DropEngine(1, (0,))]
    assert states(life) == {0: "up"}


def test_cluster_whose_engine_is_recycled_is_not_idle() -> None:
    """As with any engine on its way up."""
    life = begin(1, limits=Limits(idle_timeout=60.0))
    list(life.engine_died(0, "exit code 0", "", 59.0, recycled=True))
    meanwhile = life.deadline()
    list(life.engine_up(0, 1, 70.0))

    assert meanwhile is None
    assert life.deadline() == 130.0


def test_engine_that_tasks_kill_again_and_again_is_given_up() -> None:
    """Once it was started again as often as is allowed; tasks are refused with the last one."""
    life = begin(2)
    life.policy = EnginePolicy(max_restarts=2)
    for incarnation in (1, 2):
        list(life.engine_died(0, "exit code 3", "last words", 0.0))
        list(life.tick(10.0))
        list(life.engine_up(0, incarnation, 10.0))
    followed = list(life.engine_died(0, "exit code 3", "last words", 10.0))
    why = "engine 0 died 3 times in a row soon after its start, and is not started again (exit code 3):\nlast words"

    assert followed == [DropEngine(0, (1,), why)]
    assert states(life) == {0: "failed", 1: "up"}
    assert life.reasons() == [why]


def test_engine_that_is_not_to_be_replaced_is_not() -> None:
    """Also one that was up for long; the others go on, with the last one hope is lost."""
    life = begin(2)
    life.policy = EnginePolicy(max_restarts=0)
    first = list(life.engine_died(0, "signal SIGKILL", "", 1e6))
    second = list(life.engine_died(1, "signal SIGKILL", "", 1e6))
    why = "engine {} ended and is not replaced, as max_restarts is 0 (signal SIGKILL)"

    assert first == [DropEngine(0, (1,), why.format(0))]
    assert second == [DropEngine(1, (), why.format(1)), RefuseTasks(f"{why.format(0)}\n{why.format(1)}")]


CHANCES: list[Callable[[ClusterLife], Iterable[Action]]] = [
    lambda life: life.restart([0], 5.0),
    lambda life: life.scale("default", 1, 5.0),
    lambda life: life.scale("default", 0, 5.0),
    lambda life: life.adapt("default", 0, 1, 5.0),
]


@pytest.mark.parametrize("chance", CHANCES, ids=["restart", "scale", "scale to none", "adapt"])
def test_tasks_are_accepted_again_when_engines_get_another_chance(
    chance: Callable[[ClusterLife], Iterable[Action]],
) -> None:
    """By a restart, by scaling, by the load; also by scaling to none, which is meant."""
    life = begin(1)
    life.policy = EnginePolicy(max_restarts=0)
    refused = list(life.engine_died(0, "exit code 1", "", 1.0))[-1]

    assert isinstance(refused, RefuseTasks)
    assert list(life.tick(2.0)) == []
    assert AcceptTasks() in list(chance(life))
    assert not life.refusing


def test_a_retiring_engine_is_no_hope_and_a_set_scaled_to_none_none_either() -> None:
    """What it has it finishes, and nothing new."""
    life = ClusterLife({"small": 1, "large": 1}, 0, policy=EnginePolicy(max_restarts=0))
    list(life.begin(0.0))
    for engine in range(2):
        list(life.engine_up(engine, 0, 0.0))
    list(life.scale("large", 0, 1.0))
    list(life.engines_retired("large", 1, [1], 1.0))

    assert isinstance(list(life.engine_died(0, "exit code 1", "", 1.0))[-1], RefuseTasks)


# scaling


def test_scale_up_starts_what_is_missing() -> None:
    """The lowest free ids are used."""
    life = begin(2)

    assert list(life.scale("default", 4, 1.0)) == [StartEngine(2, 0, "default"), StartEngine(3, 0, "default")]


def test_scale_down_has_the_broker_choose() -> None:
    """It knows who is idle. The chosen drain, and are stopped when they are idle."""
    life = begin(4)
    asked = list(life.scale("default", 2, 1.0))
    list(life.engines_retired("default", 2, [3, 1], 1.0))

    assert asked == [RetireEngines("default", (0, 1, 2, 3), 2)]
    assert states(life) == {0: "up", 1: "retiring", 2: "up", 3: "retiring"}
    assert list(life.engine_idle(3, 2.0)) == [StopEngine(3)]
    assert list(life.engine_died(3, "exit code 0", "", 2.0)) == [DropEngine(3, (0, 2))]


def test_scale_to_the_same_number_does_nothing() -> None:
    """It is safe to repeat, also while the broker has not answered."""
    life = begin(4)
    list(life.scale("default", 2, 1.0))

    assert list(life.scale("default", 2, 1.0)) == []


def test_scale_down_further_asks_for_the_rest_only() -> None:
    """Two requests under way never ask for more engines than there are."""
    life = begin(4)

    assert list(life.scale("default", 3, 1.0)) == [RetireEngines("default", (0, 1, 2, 3), 1)]
    assert list(life.scale("default", 0, 1.0)) == [RetireEngines("default", (0, 1, 2, 3), 3)]


def test_scale_up_while_a_scale_down_is_under_way_starts_new_engines() -> None:
    """Those that the broker is about to choose are not counted on."""
    life = begin(4)
    list(life.scale("default", 2, 1.0))

    assert list(life.scale("default", 3, 1.0)) == [StartEngine(4, 0, "default")]
    assert list(life.engines_retired("default", 2, [3, 2], 1.0)) == []
    assert life.count(UP, STARTING) == 3


def test_scale_down_waits_for_engines_that_are_starting() -> None:
    """One that starts might get a task the moment it is up, so the choice is made then."""
    life = begin(3, up=1, at_least=1)
    asked = list(life.scale("default", 1, 1.0))
    first = list(life.engine_up(1, 0, 2.0))
    second = list(life.engine_up(2, 0, 2.0))

    assert (asked, first) == ([], [RetireEngines("default", (0, 1), 1)])
    assert second == [RetireEngines("default", (0, 1, 2), 1)]


def test_scale_down_takes_engines_that_do_no_work_first() -> None:
    """One that waits for its next start is not needed any more."""
    life = begin(2)
    for _ in range(2):
        list(life.engine_died(1, "exit code 1", "", 0.0))

    assert states(life) == {0: "up", 1: "waiting"}
    assert list(life.scale("default", 1, 0.0)) == [DropEngine(1, (0,))]
    assert list(life.tick(100.0)) == []


def test_engine_that_dies_while_it_is_one_too_many_is_not_started_again() -> None:
    """A scale-down that waits for a starting engine is over when that one dies."""
    life = begin(2, up=1, at_least=1)
    list(life.scale("default", 1, 0.0))

    assert list(life.engine_died(1, "exit code 1", "", 0.0)) == [DropEngine(1, (0,))]
    assert states(life) == {0: "up"}


def test_engine_that_is_given_up_while_it_is_one_too_many_is_forgotten() -> None:
    """There is nothing to explain about an engine that nobody wants."""
    life = begin(2, up=1, at_least=1)
    fail_start(life, 1, START_TRIES - 1, now=0.0)
    list(life.scale("default", 1, 100.0))
    list(life.engine_died(1, "exit code 1", "", 100.0))

    assert states(life) == {0: "up"}
    assert life.reasons() == []


def test_chosen_engine_that_died_before_the_choice_was_known_is_counted_once() -> None:
    """It is started again when it dies, and retired when it is up, because the number is then still too large."""
    life = begin(2)
    list(life.scale("default", 1, 0.0))
    died = list(life.engine_died(1, "signal SIGKILL", "", 0.0))
    answered = list(life.engines_retired("default", 1, [1], 0.0))
    again = list(life.engine_up(1, 1, 1.0))

    assert died == [StartEngine(1, 1, "default")]
    assert (answered, again) == ([], [RetireEngines("default", (0, 1), 1)])


def test_choice_that_is_too_short_is_asked_for_again() -> None:
    """The broker may know of a death that is not known here yet."""
    life = begin(3)
    list(life.scale("default", 1, 0.0))

    assert list(life.engines_retired("default", 2, [2], 0.0)) == [RetireEngines("default", (0, 1), 1)]


def test_scale_gives_engines_that_were_given_up_another_chance() -> None:
    """Whoever asks for a number again wants it tried again."""
    life = begin(2, up=1, at_least=1)
    fail_start(life, 1, START_TRIES)

    assert list(life.scale("default", 2, 0.0)) == [StartEngine(1, 3, "default")]


def test_scale_below_what_was_needed_makes_a_cluster_ready() -> None:
    """Nobody waits for engines that are not wanted any more."""
    life = begin(4, up=2)

    assert list(life.scale("default", 2, 1.0)) == [Ready()]


def test_sets_are_scaled_each_for_itself() -> None:
    """Retiring one set's engines leaves the other's alone."""
    life = ClusterLife({"small": 1, "large": 2}, 0)
    list(life.begin(0.0))
    for engine in range(3):
        list(life.engine_up(engine, 0, 0.0))

    assert list(life.scale("large", 0, 1.0)) == [RetireEngines("large", (1, 2), 2)]
    assert life.reachable(of="small") == 1


def test_engine_that_does_not_drain_in_time_is_stopped() -> None:
    """Scale-down loses nothing within its limit, and is over after it."""
    life = begin(1)
    list(life.scale("default", 0, 1.0))
    list(life.engines_retired("default", 1, [0], 1.0))

    assert life.deadline() == 1.0 + DRAIN_SECONDS
    assert list(life.tick(DRAIN_SECONDS)) == []
    assert list(life.tick(1.0 + DRAIN_SECONDS)) == [StopEngine(0, late=True)]
    assert list(life.engine_idle(0, 400.0)) == []


def test_a_later_call_may_shorten_the_time_to_drain() -> None:
    """Also for an engine that was asked to leave before it."""
    life = begin(1)
    list(life.scale("default", 0, 1.0))
    list(life.engines_retired("default", 1, [0], 1.0))
    list(life.scale("default", 0, 5.0, 4.5))

    assert life.deadline() == 1.0 + 4.5
    assert list(life.tick(5.5)) == [StopEngine(0, late=True)]


def test_retiring_engine_that_dies_is_not_started_again() -> None:
    """It was to go anyway."""
    life = begin(2)
    list(life.scale("default", 1, 1.0))
    list(life.engines_retired("default", 1, [1], 1.0))

    assert list(life.engine_died(1, "signal SIGKILL", "", 2.0)) == [DropEngine(1, (0,))]


# adapting to the load


def adapting(minimum: int = 0, maximum: int = 4, *, up: int = 0, limits: Limits | None = None) -> ClusterLife:
    """Return a cluster that adapts, with idle engines that are up."""
    life = begin(up, limits=limits)
    list(life.adapt("default", minimum, maximum, 0.0))
    return life


def hear(life: ClusterLife, now: float, *, waiting: int = 0, busy: Iterable[int] = ()) -> list[Action]:
    """Tell of the load; return what follows."""
    demand = Demand(tasks=waiting, unmeasured=waiting, busy=frozenset(busy))
    return list(life.load(None if waiting or demand.busy else now, None, now, demand))


def test_set_that_adapts_starts_engines_for_the_tasks_that_wait() -> None:
    """As many as may be, those on their way counted."""
    life = adapting()
    first = hear(life, 1.0, waiting=2)
    second = hear(life, 1.1, waiting=2)
    third = hear(life, 1.2, waiting=9)

    assert first == [
        Adapted("default", 0, 2, "2 tasks wait, 0 engines are busy: more engines are needed"),
        StartEngine(0, 0, "default"),
        StartEngine(1, 0, "default"),
    ]
    assert second == []
    assert third[1:] == [StartEngine(2, 0, "default"), StartEngine(3, 0, "default")]
    assert life.bounds() == {"default": (0, 4)}


def test_set_that_adapts_gives_idle_engines_back_after_some_time() -> None:
    """The broker chooses; those that turn out to be busy stay, and are not asked for again at once."""
    life = adapting(up=4)
    early = hear(life, 1.0)
    asked = hear(life, 1.0 + PATIENCE)
    answered = list(life.engines_retired("default", 4, [3, 1], 32.0))

    assert early == []
    assert asked == [
        Adapted("default", 4, 0, "0 tasks wait, 0 engines are busy: no more than 0 were needed for 30 s"),
        RetireEngines("default", (0, 1, 2, 3), 4, only_idle=True),
    ]
    assert answered == [Adapted("default", 0, 2, "some have work again")]
    assert life.sets == {"default": 2}
    assert states(life) == {0: "up", 1: "retiring", 2: "up", 3: "retiring"}
    assert hear(life, 33.0, busy=[0, 2]) == []


def test_set_that_adapts_looks_at_the_load_while_there_is_something_to_decide() -> None:
    """Once a second; a set that is as small as may be waits for the broker's word."""
    life = adapting()
    at_first = list(life.tick(0.0))
    hear(life, 0.0)
    quiet = life.deadline()
    hear(life, 5.0, waiting=1)
    busy = life.deadline()

    assert (at_first, quiet, busy) == ([AskLoad()], None, 6.0)
    assert list(life.tick(6.0)) == [AskLoad()]
    assert list(life.tick(7.0)) == []


def test_bounds_can_be_changed_at_any_time() -> None:
    """Engines above a new maximum go, busy or not, when they have done what they have; below a minimum some come."""
    life = adapting(up=4)
    fewer = list(life.adapt("default", 0, 1, 1.0))
    list(life.engines_retired("default", 3, [1, 2, 3], 1.0))
    more = list(life.adapt("default", 2, 8, 2.0))

    assert fewer == [RetireEngines("default", (0, 1, 2, 3), 3, only_idle=False)]
    assert more == [StartEngine(4, 0, "default")]


def test_scaling_ends_adapting() -> None:
    """The number asked for stays, whatever the load."""
    life = adapting()
    list(life.scale("default", 1, 1.0))

    assert hear(life, 2.0, waiting=9) == []
    assert (life.sets, life.bounds()) == ({"default": 1}, {})


def test_adapting_cluster_with_nothing_to_do_ends_by_its_idle_limit() -> None:
    """With no engine, too; one with tasks that wait does not."""
    life = adapting(limits=Limits(idle_timeout=60.0))
    hear(life, 0.0)
    list(life.tick(60.0))
    ended = list(life.load(0.0, None, 60.0, Demand()))
    waiting = adapting(limits=Limits(idle_timeout=60.0))
    hear(waiting, 1.0, waiting=1)

    assert ended == [End("idle limit of 60 s reached", "idle_timeout")]
    assert list(waiting.tick(1000.0)) == [AskLoad()]


def test_two_sets_that_adapt_share_what_waits() -> None:
    """Any engine may take it: not every set starts one for each task."""
    life = ClusterLife({"small": 0, "large": 0}, 0)
    list(life.begin(0.0))
    list(life.adapt("small", 0, 2, 0.0))
    list(life.adapt("large", 0, 8, 0.0))
    hear(life, 1.0, waiting=3)

    assert life.sets == {"small": 2, "large": 1}


def test_engines_that_cannot_be_started_under_load_are_tried_again_later() -> None:
    """With the reasons in the status; tasks wait for the first tries, and are refused when they bring nothing."""
    life, now, refused, started = adapting(), 0.0, [], []
    hear(life, now, waiting=2)
    for _ in range(200):
        for engine in [e for e in life.engines.values() if e.state is EngineState.STARTING]:
            if engine.incarnation % START_TRIES == 0:
                started.append(now)
            refused += [now for action in life.engine_died(engine.id, "exit code 1", "no lizard", now) if is_no(action)]
        now += 0.5
        refused += [now for action in life.tick(now) if is_no(action)]
        if not refused:
            refused += [now for action in hear(life, now, waiting=2) if is_no(action)]
        else:
            hear(life, now)

    rounds = sorted(set(started))
    assert len(rounds) == REFUSING_ROUNDS
    assert [round(b - a) // 5 for a, b in itertools.pairwise(rounds)] == [1, 3]
    assert len(refused) == 1
    assert 20 < refused[0] < 40


def is_no(action: Action) -> bool:
    """Tell whether an action refuses tasks."""
    return isinstance(action, RefuseTasks)


def test_minimum_is_kept_also_when_engines_fail_while_nothing_is_to_do() -> None:
    """They are tried again after the pause, though no task waits."""
    life = adapting(1, 4, up=1)
    life.policy = EnginePolicy(max_restarts=0)
    hear(life, 0.0)
    died = list(life.engine_died(0, "exit code 1", "", 5.0))
    hear(life, 5.0)
    early, late = hear(life, 6.0), hear(life, 5.0 + RETRY_PAUSES[0])

    assert isinstance(died[0], DropEngine)
    assert died[1:] == [AskLoad()]
    assert early == []
    assert late == [StartEngine(0, 1, "default")]


# the end


def test_end_comes_once() -> None:
    """The first reason stays, and nothing is started or stopped after it."""
    life = begin(3)
    list(life.scale("default", 2, 0.0))
    list(life.engines_retired("default", 1, [2], 0.0))
    first = list(life.end("torn down", "someone"))
    later: Iterable[Action] = [
        *life.end("again", "another"),
        *life.engine_idle(2, 1.0),
        *life.engine_died(0, "signal SIGTERM", "", 1.0),
        *life.scale("default", 5, 1.0),
        *life.load(0.0, 0.0, 1e9),
        *life.tick(1e9),
    ]

    assert first == [End("torn down", "someone")]
    assert later == []
    assert life.over == End("torn down", "someone")
    assert life.deadline() is None


def test_idle_cluster_ends() -> None:
    """After its limit, and after the broker has confirmed that it is idle."""
    life = begin(1, limits=Limits(idle_timeout=60.0))

    assert list(life.tick(59.9)) == []
    assert list(life.tick(60.0)) == [AskLoad()]
    assert list(life.load(0.0, None, 60.1)) == [End("idle limit of 60 s reached", "idle_timeout")]


def test_load_is_asked_for_once() -> None:
    """While the answer is under way there is nothing to do."""
    life = begin(1, limits=Limits(idle_timeout=60.0))
    list(life.tick(60.0))

    assert list(life.tick(61.0)) == []
    assert life.deadline() is None


def test_busy_cluster_does_not_end() -> None:
    """Work that came since is in the broker's answer; then the limit begins anew when it is done."""
    life = begin(1, limits=Limits(idle_timeout=60.0))
    list(life.tick(60.0))
    list(life.load(None, None, 60.1))
    quiet = list(life.tick(1000.0))
    list(life.load(1000.0, None, 1000.0))

    assert quiet == []
    assert life.deadline() == 1060.0


def test_idle_limit_is_armed_when_the_cluster_is_ready() -> None:
    """A slow start does not count as idleness."""
    life = begin(1, up=0, limits=Limits(idle_timeout=60.0, lifetime=60.0, no_client_timeout=60.0))

    assert list(life.tick(1000.0)) == []
    list(life.engine_up(0, 0, 1000.0))
    assert life.deadline() == 1060.0


def test_cluster_with_engines_on_their_way_is_not_idle() -> None:
    """Whoever scales up gets the whole limit from when the engines are there."""
    life = begin(1, limits=Limits(idle_timeout=60.0))
    list(life.scale("default", 2, 59.0))

    assert life.deadline() is None
    list(life.engine_up(1, 0, 100.0))
    assert life.deadline() == 160.0


def test_a_cluster_that_is_not_ready_in_time_ends() -> None:
    """Whoever was creating it would have ended it by then; one that is ready goes on."""
    late, ready = begin(2, up=1), begin(2)
    late.start_by = ready.start_by = 70.0

    assert (late.deadline(), ready.deadline()) == (70.0, None)
    assert list(late.tick(69.9)) == list(ready.tick(70.0)) == []
    assert list(late.tick(70.0)) == [End("it was not ready in time, and who was creating it is gone", "start limit")]
    assert late.deadline() is None


def test_lifetime_ends_a_busy_cluster() -> None:
    """Counted from when it was ready."""
    life = begin(1, limits=Limits(lifetime=3600.0))
    list(life.load(None, None, 10.0))

    assert list(life.tick(3599.9)) == []
    assert list(life.tick(3600.0)) == [End("lifetime of 3600 s is over", "lifetime")]


def test_cluster_without_clients_ends() -> None:
    """Though it is busy: nobody is there to take the results."""
    life = begin(1, limits=Limits(no_client_timeout=30.0))
    list(life.load(None, 100.0, 100.0))

    assert ask(life, 129.9) == []
    assert ask(life, 130.0) == [AskLoad(), End("no client was connected for 30 s", "no_client_timeout")]


def test_cluster_without_limits_never_ends_by_itself() -> None:
    """There is not even something to wake up for."""
    life = begin(1)

    assert life.deadline() is None
    assert ask(life, 1e9) == []


def test_limits_are_read_from_a_spec() -> None:
    """What is absent or None is no limit."""
    assert limits_of({"idle_timeout": 60, "lifetime": None, "n": 4}) == Limits(idle_timeout=60.0)


def test_reasons_are_in_the_order_of_the_engines() -> None:
    """One line each for what is missing, and why."""
    life = begin(3, up=2, at_least=2)
    fail_start(life, 2, START_TRIES, now=0.0)
    for _ in range(3):
        list(life.engine_died(0, "signal SIGKILL", "", 100.0))

    assert life.reasons() == [
        "engine 0 ended (signal SIGKILL) and will be started again",
        "engine 2 could not be started (exit code 1):\nImportError: no lizard",
    ]
    assert life.count(UP) == 1
    assert life.reachable() == 2


# restarting on request


def test_restart_keeps_the_id_and_starts_the_next_when_the_old_one_is_gone() -> None:
    """What the old process holds must be free before."""
    life = begin(2)

    assert list(life.restart([1], 5.0)) == [RestartEngine(1)]
    assert states(life) == {0: "up", 1: "restarting"}
    assert list(life.engine_died(1, "signal SIGTERM", "", 6.0)) == [StartEngine(1, 1, "default")]
    assert list(life.engine_up(1, 1, 7.0)) == []
    assert states(life) == {0: "up", 1: "up"}


def test_restart_gives_an_engine_that_was_given_up_another_chance() -> None:
    """At once, and with all its tries."""
    life = begin(2, up=1, at_least=1)
    fail_start(life, 1, START_TRIES)

    assert list(life.restart([1], 500.0)) == [StartEngine(1, START_TRIES, "default")]
    assert fail_start(life, 1, START_TRIES - 1)[-1] == StartEngine(1, 2 * START_TRIES - 1, "default")


def test_restart_leaves_alone_what_is_going_or_unknown() -> None:
    """An engine that is scaled away goes."""
    life = begin(2)
    list(life.scale("default", 1, 1.0))
    list(life.engines_retired("default", 1, [1], 1.0))

    assert list(life.restart([1, 7], 2.0)) == []
    assert states(life) == {0: "up", 1: "retiring"}


def test_scaling_down_waits_for_an_engine_that_restarts() -> None:
    """It is one too many when it comes up, and not before."""
    life = begin(1)
    list(life.restart([0], 1.0))

    assert list(life.scale("default", 0, 1.0)) == []
    list(life.engine_died(0, "signal SIGTERM", "", 1.0))
    assert list(life.engine_up(0, 1, 2.0)) == [RetireEngines("default", (0,), 1)]
