"""A cluster's life under any order of events: hypothesis plays nanny, broker and user, with messages under way."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from ipcluster_core.adaptive import Demand
from ipcluster_core.lifecycle import DRAIN_SECONDS, ClusterLife, Limits
from ipcluster_core.policy import EnginePolicy
from ipcluster_core.roster import EngineState

SETS = st.sampled_from(["one", "two"])
SIZES = st.integers(0, 4)


class Living(RuleBasedStateMachine):
    """Messages travel in order on each link, and take as long as they like.

    ::

        nanny --deaths--> broker            nanny --started, died--> controller
        controller --start, stop--> nanny   controller --retire, drop, load, refuse, accept--> broker
        broker --up, leaves, retired, idle, load--> controller
    """

    life: ClusterLife

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.to_nanny: deque[Action] = deque()
        self.to_broker: deque[Action] = deque()
        self.deaths: deque[tuple[int, int]] = deque()  # engine and incarnation, from the nanny to the broker
        self.from_nanny: deque[tuple[Any, ...]] = deque()  # kind, engine, incarnation, and whether it was recycled
        self.from_broker: deque[tuple[Any, ...]] = deque()
        self.processes: dict[int, int] = {}  # incarnation of each engine that runs
        self.silent: set[int] = set()  # those that have not registered
        self.seats: dict[int, int] = {}  # incarnation of each engine that the broker knows
        self.retiring: set[int] = set()
        self.busy: set[int] = set()
        self.waiting = 0  # tasks that wait for any engine
        self.refused = False
        self.started: Counter[int] = Counter()
        self.readies = 0
        self.ends = 0

    @initialize(
        one=SIZES,
        two=SIZES,
        needed=SIZES,
        idle_timeout=st.none() | st.just(50.0),
        max_restarts=st.sampled_from([10, 2, 0]),
    )
    def begin(self, one: int, two: int, needed: int, idle_timeout: float | None, max_restarts: int) -> None:
        """Begin a cluster of two sets."""
        limits, policy = Limits(idle_timeout=idle_timeout), EnginePolicy(max_restarts=max_restarts)
        self.life = ClusterLife({"one": one, "two": two}, min(needed, one + two), limits, policy)
        self.perform(self.life.begin(self.now))

    def perform(self, actions: Iterable[Action]) -> None:
        """Send the actions on their way, and check what they must never be."""
        for action in actions:
            assert self.ends == 0, f"{action} after the end"
            match action:
                case StartEngine(engine, incarnation):
                    assert incarnation == self.started[engine], "incarnations of an id are counted up"
                    self.started[engine] += 1
                    self.to_nanny.append(action)
                case StopEngine() | RestartEngine():
                    self.to_nanny.append(action)
                case RetireEngines(name, engines, count):
                    assert 0 < count <= len(engines) - self.asked_to_retire(name), "more than are up"
                    assert all(self.life.engines[engine].state is EngineState.UP for engine in engines)
                    assert all(self.life.engines[engine].set == name for engine in engines)
                    self.to_broker.append(action)
                case DropEngine(engine, expected, why):
                    assert engine not in expected
                    assert set(expected) <= set(self.life.engines)
                    found = self.life.engines.get(engine)
                    assert bool(why) == (found is not None and found.state is EngineState.FAILED)
                    self.to_broker.append(action)
                case AskLoad():
                    self.to_broker.append(action)
                case Ready():
                    self.readies += 1
                case End(reason, by):
                    assert reason
                    assert by
                    self.ends += 1
                case _:
                    self.note(action)

    def note(self, action: Action) -> None:
        """Check what is told of tasks and sizes."""
        match action:
            case RefuseTasks(why):
                assert not self.refused
                assert why, "tasks are refused without a reason"
                self.refused = True
            case AcceptTasks():
                assert self.refused
                self.refused = False
            case Adapted(name, before, after):
                low, high = self.life.bounds()[name]
                assert before != after
                assert low <= after <= high

    def asked_to_retire(self, name: str) -> int:
        """Return how many engines of a set the broker was asked to retire without the controller knowing which."""
        requests = [r.count for r in self.to_broker if isinstance(r, RetireEngines) and r.set == name]
        answers = [content[1] for kind, *content in self.from_broker if kind == "retired" and content[0] == name]
        return sum([*requests, *answers], 0)

    # the nanny

    @precondition(lambda self: self.to_nanny)
    @rule()
    def nanny_acts(self) -> None:
        """It forks or ends an engine."""
        match self.to_nanny.popleft():
            case StartEngine(engine, incarnation):
                assert engine not in self.processes, "two engines of one id"
                self.processes[engine] = incarnation
                self.silent.add(engine)
                self.from_nanny.append(("started", engine, incarnation))
            case StopEngine(engine) | RestartEngine(engine):
                if engine in self.processes:
                    self.die(engine)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def engine_crashes(self, data: st.DataObject) -> None:
        """An engine dies by itself, up or not."""
        self.die(data.draw(st.sampled_from(sorted(self.processes))))

    def die(self, engine: int) -> None:
        """Tell broker and controller that an engine's process ended."""
        self.end_process(engine, recycled=False)

    def end_process(self, engine: int, *, recycled: bool) -> None:
        """Tell broker and controller how an engine's process ended."""
        incarnation = self.processes.pop(engine)
        self.silent.discard(engine)
        self.deaths.append((engine, incarnation))
        self.from_nanny.append(("died", engine, incarnation, recycled))

    @precondition(lambda self: self.processes.keys() & self.seats.keys())
    @rule(data=st.data())
    def engine_is_recycled(self, data: st.DataObject) -> None:
        """An engine says goodbye to the broker, which gives it nothing more, and ends."""
        engine = data.draw(st.sampled_from(sorted(self.processes.keys() & self.seats.keys())))
        if self.seats[engine] == self.processes[engine]:
            self.busy.discard(engine)
            self.from_broker.append(("leaves", engine, self.processes[engine]))
            self.end_process(engine, recycled=True)

    # the broker

    @precondition(lambda self: self.silent)
    @rule(data=st.data(), busy=st.booleans())
    def engine_registers(self, data: st.DataObject, busy: bool) -> None:
        """An engine says hello to the broker, which has heard of its predecessor's death before."""
        engine = data.draw(st.sampled_from(sorted(self.silent)))
        while self.deaths:
            self.broker_learns_of_a_death()
        self.register(engine)
        if busy:
            self.busy.add(engine)

    def register(self, engine: int) -> None:
        """Give an engine its seat."""
        self.silent.remove(engine)
        self.seats[engine] = self.processes[engine]
        self.from_broker.append(("up", engine, self.processes[engine]))

    @precondition(lambda self: self.deaths)
    @rule()
    def broker_learns_of_a_death(self) -> None:
        """It frees the seat."""
        engine, incarnation = self.deaths.popleft()
        if self.seats.get(engine) == incarnation:
            del self.seats[engine]
            self.retiring.discard(engine)
            self.busy.discard(engine)

    @precondition(lambda self: self.to_broker)
    @rule(data=st.data())
    def broker_acts(self, data: st.DataObject) -> None:
        """It chooses engines to retire, or tells how busy it is."""
        match self.to_broker.popleft():
            case RetireEngines(name, engines, count, only_idle):
                able = [engine for engine in engines if engine in self.seats.keys() - self.retiring]
                able = [engine for engine in able if not (only_idle and engine in self.busy)]
                chosen = data.draw(st.permutations(able))[:count]
                self.from_broker.append(("retired", name, count, chosen))
                self.retiring.update(chosen)
                self.from_broker.extend(("idle", engine) for engine in chosen if engine not in self.busy)
            case AskLoad():
                since = None if self.busy or self.waiting else data.draw(st.just(self.now) | st.just(0.0))
                self.from_broker.append(("load", since, self.demand()))

    def demand(self) -> Demand | None:
        """Return what the broker tells of its load, for sets that adapt."""
        waits = Demand(tasks=self.waiting, unmeasured=self.waiting, busy=frozenset(self.busy))
        return waits if self.life.adapting else None

    @rule(tasks=st.integers(0, 6))
    def tasks_come_or_go(self, tasks: int) -> None:
        """The broker tells when tasks begin to wait."""
        before, self.waiting = self.waiting, tasks
        if tasks and not before and self.life.adapting:
            self.from_broker.append(("load", None, self.demand()))

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def engine_finishes(self, data: st.DataObject) -> None:
        """An engine has nothing left to do."""
        engine = data.draw(st.sampled_from(sorted(self.busy)))
        self.busy.remove(engine)
        if engine in self.retiring:
            self.from_broker.append(("idle", engine))

    # the controller

    @precondition(lambda self: self.from_nanny)
    @rule()
    def controller_hears_the_nanny(self) -> None:
        """An engine was started, or died."""
        kind, engine, incarnation, *recycled = self.from_nanny.popleft()
        if kind == "started":
            self.life.engine_started(engine, 1000 + engine, incarnation)
        else:
            death = {"incarnation": incarnation, "recycled": recycled[0]}
            self.perform(self.life.engine_died(engine, "exit code 1", "", self.now, **death))

    @precondition(lambda self: self.from_broker)
    @rule()
    def controller_hears_the_broker(self) -> None:
        """An engine is up or idle, or a question was answered."""
        kind, *content = self.from_broker.popleft()
        match kind:
            case "up":
                self.perform(self.life.engine_up(content[0], content[1], self.now))
            case "retired":
                name, asked, engines = content
                self.perform(self.life.engines_retired(name, asked, engines, self.now))
            case "idle":
                self.perform(self.life.engine_idle(content[0], self.now))
            case "leaves":
                self.life.engine_leaves(content[0], content[1], self.now)
            case "load":
                self.perform(self.life.load(content[0], None, self.now, content[1]))

    @rule(name=SETS, n=SIZES)
    def scale(self, name: str, n: int) -> None:
        """Somebody wants another number of engines."""
        self.perform(self.life.scale(name, n, self.now))

    @rule(name=SETS, minimum=SIZES, room=SIZES)
    def adapt(self, name: str, minimum: int, room: int) -> None:
        """Somebody wants a set to follow its load."""
        self.perform(self.life.adapt(name, minimum, minimum + room, self.now))

    @rule(engines=st.sets(st.integers(0, 5)))
    def restart(self, engines: set[int]) -> None:
        """Somebody wants engines anew, of which some may be there."""
        self.perform(self.life.restart(sorted(engines), self.now))

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 6.0, 60.0, DRAIN_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        """After a tick, nothing is due: whoever sleeps until the deadline does not spin."""
        self.now += seconds
        self.perform(self.life.tick(self.now))
        deadline = self.life.deadline()

        assert deadline is None or deadline > self.now

    @rule(data=st.data(), died=st.booleans())
    def old_news_has_no_effect(self, data: st.DataObject, died: bool) -> None:
        """What is said of an earlier incarnation changes nothing."""
        engine = data.draw(st.integers(0, 5))
        found = self.life.engines.get(engine)
        old = -1 if found is None else found.incarnation - 1
        before = copy.deepcopy(self.life)

        self.life.engine_started(engine, 1, old)
        if died:
            self.perform(self.life.engine_died(engine, "old", "old", self.now, incarnation=old))
        else:
            self.perform(self.life.engine_up(engine, old, self.now))

        assert self.life == before

    @precondition(lambda self: self.now > 1000)
    @rule()
    def end(self) -> None:
        """Somebody ends it."""
        self.perform(self.life.end("torn down", "somebody"))

    # what always holds

    @invariant()
    def ready_and_end_come_once(self) -> None:
        """However often their reasons occur."""
        assert self.readies <= 1
        assert self.ends <= 1
        assert (self.life.over is not None) == (self.ends == 1)

    @invariant()
    def sizes_are_within_their_bounds(self) -> None:
        """Also while they change."""
        if hasattr(self, "life"):
            for name, (low, high) in self.life.bounds().items():
                assert low <= self.life.sets[name] <= high

    @invariant()
    def tasks_are_refused_only_when_no_engine_is_left_and_none_will_come(self) -> None:
        """With the reason in the status."""
        if self.refused and self.ends == 0:
            assert self.life.reachable() == 0
            assert any(line.startswith("engine ") for line in self.life.reasons())

    def teardown(self) -> None:
        """Once all is answered, each set has the size that is wanted, or a reason why not."""
        if hasattr(self, "life") and self.life.over is None:
            self.life.limits = Limits()
            self.waiting = 0
            self.busy.clear()
            for _ in range(1000):
                if not self.deliver_all():
                    break
            else:
                raise AssertionError("the parts never stop talking")
            if self.life.over is None:
                self.check_sizes()
        super().teardown()

    def deliver_all(self) -> bool:
        """Deliver what is under way, have engines register and finish, let time pass; return whether anything was."""
        moved = False
        while self.to_nanny or self.deaths or self.from_nanny or self.to_broker or self.from_broker or self.silent:
            moved = True
            if self.to_nanny:
                self.nanny_acts()
            if self.deaths:
                self.broker_learns_of_a_death()
            for engine in sorted(self.silent):
                self.register(engine)
            if self.to_broker:
                self.choose_first()
            if self.from_nanny:
                self.controller_hears_the_nanny()
            if self.from_broker:
                self.controller_hears_the_broker()
        self.time_passes(DRAIN_SECONDS)
        return moved or bool(self.to_nanny or self.to_broker)

    def choose_first(self) -> None:
        """Answer for the broker, without a choice."""
        match self.to_broker.popleft():
            case RetireEngines(name, engines, count, _):
                chosen = [engine for engine in engines if engine in self.seats.keys() - self.retiring][:count]
                self.from_broker.append(("retired", name, count, chosen))
                self.retiring.update(chosen)
                self.from_broker.extend(("idle", engine) for engine in chosen if engine not in self.busy)
            case AskLoad():
                self.from_broker.append(("load", None, self.demand()))

    def check_sizes(self) -> None:
        """Compare what is there with what is wanted."""
        for name, wanted in self.life.sets.items():
            up, failed = (self.life.count(state, of=name) for state in (EngineState.UP, EngineState.FAILED))
            assert up + failed == wanted
            assert wanted == self.life.bounds().get(name, (wanted, 0))[0], "without work, a set has its least"
        assert self.life.count(EngineState.UP, EngineState.FAILED) == len(self.life.engines)
        explained = [line for line in self.life.reasons() if line.startswith("engine ")]
        assert len(explained) == self.life.count(EngineState.FAILED)
        hopeless = bool(explained) and not self.life.reachable() and not self.life.adapting
        assert self.refused == (hopeless and self.life.ready_at is not None)
        up_now = {e.id: e.incarnation for e in self.life.engines.values() if e.state is EngineState.UP}
        assert up_now == self.seats == self.processes


class TestLiving(Living.TestCase):  # type: ignore[misc, valid-type]  # hypothesis makes the class
    """Sizes are reached, ends come once, and no message is too late or too early."""

    settings = settings(
        max_examples=100,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
