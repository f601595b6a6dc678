"""What happens to a cluster and its engines: pure state, events in, actions out, the clock passed in.

A cluster: ``creating -> running -> ending -> ended``. An engine: see `roster`.

A set is sized by whoever scales it, or by its load while it adapts. When every engine has failed for good, tasks are
refused until something gives engines another chance. An MPI set is one unit: its ranks are started, lost and restarted
together, and it changes its size by a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .actions import (
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
from .adaptive import PATIENCE, Adaptive, Demand
from .policy import STEADY_SECONDS, EnginePolicy, pause_after
from .roster import COMING, COUNTED, HOPED_FOR, Engine, EngineState

__all__ = ["ClusterLife", "Limits", "limits_of"]


#: Seconds that an engine to be scaled away may go on with the tasks it has, unless whoever scales says otherwise.
DRAIN_SECONDS = 300.0

#: Seconds between two looks at the load while a set adapts to it.
LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a cluster by itself, in seconds; None means never."""

    idle_timeout: float | None = None
    lifetime: float | None = None
    no_client_timeout: float | None = None


@dataclass(slots=True)
class ClusterLife:
    """Sizes of engine sets, what became of each engine, and when it all ends.

    `sets` is the number of engines wanted by set; `at_least` the number that makes the cluster ready; `units` the sets
    that are MPI sets. In `engines` one of those stands under the id of each of its ranks.
    """

    sets: dict[str, int]
    at_least: int
    limits: Limits = field(default_factory=Limits)
    policy: EnginePolicy = field(default_factory=EnginePolicy)
    adapting: dict[str, Adaptive] = field(default_factory=dict)
    units: frozenset[str] = frozenset()
    engines: dict[int, Engine] = field(default_factory=dict)
    start_by: float | None = None
    ready_at: float | None = None
    over: End | None = None
    idle_since: float | None = None
    alone_since: float | None = None
    refusing: bool = False
    _awaiting_load: bool = False
    _look_at: float | None = None
    _asked_to_retire: Counter[str] = field(default_factory=Counter)
    _drains: dict[str, float] = field(default_factory=dict)  # seconds, by set
    _starts: Counter[int] = field(default_factory=Counter)

    # events

    def begin(self, now: float) -> Iterator[Action]:
        """Start what was asked for."""
        self._look_at = now
        for name in self.sets:
            yield from self._fit(name, now)
        yield from self._maybe_ready(now)

    def engine_started(self, engine: int, pid: int, incarnation: int | None = None) -> None:
        """Note the process of an engine (of that incarnation, if one is named)."""
        found = self.engines.get(engine)
        if found is not None and incarnation in (None, found.incarnation):
            found.pids[engine] = pid

    def engine_up(self, engine: int, incarnation: int, now: float, host: str = "") -> Iterator[Action]:
        """Note that an engine has registered with the broker; an MPI set is up with the last of its ranks."""
        found = self.engines.get(engine)
        if found is None or found.incarnation != incarnation or found.state is not EngineState.STARTING:
            return
        found.registered |= {engine}
        found.hosts[engine] = host
        if len(found.registered) == found.ranks:
            found.state, found.since, found.failed_starts = EngineState.UP, now, 0
            yield from self._maybe_ready(now)
            yield from self._fit(found.set, now)

    def engine_leaves(self, engine: int, incarnation: int, now: float) -> None:
        """Note that an engine makes room for the next one, as its policy wants it, and gets no more tasks."""
        found = self.engines.get(engine)
        if found is not None and found.incarnation == incarnation and found.state is EngineState.UP:
            found.state, found.since = EngineState.RESTARTING, now

    def engine_died(
        self,
        engine: int,
        cause: str,
        tail: str,
        now: float,
        *,
        incarnation: int | None = None,
        recycled: bool = False,
    ) -> Iterator[Action]:
        """Decide what follows from the end of an engine's process; `recycled` when it had left as its policy wants."""
        # Of an MPI set it is told once, for any rank, when nothing of the set is left.
        found = self.engines.get(engine)
        if found is None or self.over or incarnation not in (None, found.incarnation):
            return
        found.ends(cause, tail)
        if found.state in (EngineState.STOPPING, EngineState.RETIRING):
            yield from self._remove(found)
            yield from self._fit(found.set, now) if found.set in self.units else self._note_hope(now)
            return
        if recycled:
            found.quick_deaths = found.failed_starts = 0
        if found.state is EngineState.RESTARTING:
            yield self._start(found, now)
            return
        if not recycled:
            was_up = found.state is EngineState.UP
            steady = was_up and now - found.since >= STEADY_SECONDS
            found.quick_deaths = 0 if steady else found.quick_deaths + 1
            found.failed_starts += not was_up
            found.verdict = self.policy.gives_up(quick_deaths=found.quick_deaths, failed_starts=found.failed_starts)
        found.state, found.since = EngineState.WAITING, now
        if found.verdict:
            found.state = EngineState.FAILED
            self._look_at = now
            why = self._reason(found)
            yield from (DropEngine(engine, self._expected(), why) for engine in found.ids)
            yield from self._maybe_hopeless()
        # It may have been one too many: then it is not started again.
        yield from self._fit(found.set, now)
        yield from self.tick(now)

    def scale(self, name: str, n: int, now: float, drain: float = DRAIN_SECONDS) -> Iterator[Action]:
        """Want `n` engines in a set from now on, whatever its load; engines given up before get another chance."""
        self.adapting.pop(name, None)
        self._drains[name] = drain  # also of those that are on their way out already
        self._forget_failed(name)
        yield from self._resize(name, n, now)

    def adapt(
        self, name: str, minimum: int, maximum: int, now: float, *, patience: float = PATIENCE
    ) -> Iterator[Action]:
        """Size a set by its load from now on, within bounds; engines given up before get another chance."""
        self.adapting[name] = Adaptive(minimum, maximum, patience)
        self._forget_failed(name)
        self._look_at = now
        yield from self._resize(name, self.adapting[name].clamp(self.sets[name]), now)

    def _forget_failed(self, name: str) -> None:
        for engine in [e for e in self._lives() if e.set == name and e.state is EngineState.FAILED]:
            for number in engine.ids:
                del self.engines[number]

    def _resize(self, name: str, n: int, now: float) -> Iterator[Action]:
        self.sets[name] = n
        # Who wants fewer before the cluster is ready does not wait for more.
        self.at_least = min(self.at_least, sum(self.sets.values()))
        yield from self._fit(name, now)
        yield from self._maybe_ready(now)

    def restart(self, engines: Iterable[int], now: float) -> Iterator[Action]:
        """Start engines anew under their ids, at once; those given up get another chance. Unknown ids are left out."""
        if self.over:
            return
        meant = {self.engines[engine].id for engine in engines if engine in self.engines}
        for engine in [engine for engine in self._lives() if engine.id in meant]:
            if engine.state in (EngineState.WAITING, EngineState.FAILED):
                yield self._start(engine, now)
            elif engine.state in (EngineState.STARTING, EngineState.UP):
                engine.state, engine.since = EngineState.RESTARTING, now
                yield RestartEngine(engine.id, engine.ranks)
            engine.quick_deaths = engine.failed_starts = 0
        yield from self._note_hope(now)

    def engines_retired(self, name: str, asked: int, engines: list[int], now: float) -> Iterator[Action]:
        """Note which engines of a set the broker chose, when `asked` of them were to retire."""
        self._asked_to_retire[name] -= asked
        for engine in engines:
            if engine in self.engines and self.engines[engine].state is EngineState.UP:
                self.engines[engine].state, self.engines[engine].since = EngineState.RETIRING, now
        if name in self.adapting and len(engines) < asked:
            # The others are busy by now: they are left alone until the load lets them go.
            before = self.sets[name]
            self.sets[name] = max(before, self.adapting[name].clamp(self._counted(name)))
            if self.sets[name] != before:
                yield Adapted(name, before, self.sets[name], "some have work again")
        yield from self._fit(name, now)

    def engine_idle(self, engine: int, now: float) -> Iterator[Action]:
        """Stop a retiring engine that has nothing left to do."""
        found = self.engines.get(engine)
        if found is not None and found.state is EngineState.RETIRING and self.over is None:
            found.state, found.since = EngineState.STOPPING, now
            yield StopEngine(engine)

    def load(
        self, idle_since: float | None, alone_since: float | None, now: float, demand: Demand | None = None
    ) -> Iterator[Action]:
        """Note since when nothing is queued or running, and since when no client is connected; None: not so."""
        self.idle_since, self.alone_since = idle_since, alone_since
        self._awaiting_load = False
        if self.ready_at is None or self.over:
            return
        if demand is not None:
            yield from self._follow(demand, now)
        if self._due(self._idle_deadline(), now):
            yield from self.end(f"idle limit of {self.limits.idle_timeout:g} s reached", "idle_timeout")
        elif self._due(self._alone_deadline(), now):
            limit = self.limits.no_client_timeout
            yield from self.end(f"no client was connected for {limit:g} s", "no_client_timeout")

    def _follow(self, demand: Demand, now: float) -> Iterator[Action]:
        """Size the adaptive sets by the load."""
        self._look_at = None
        for name, adaptive in self.adapting.items():
            mine = [e for e in self.engines.values() if e.set == name and e.state in COUNTED]
            busy = sum(e.id in demand.busy for e in mine)
            # What waits may go to any engine: those on their way in other sets will have their share.
            elsewhere = sum(self.count(*HOPED_FOR, of=other) for other in self.sets if other not in self.units | {name})
            before = self.sets[name]
            decision = adaptive.decide(
                wanted=before,
                need=busy + max(0, demand.useful - elsewhere),
                coming=self.count(*HOPED_FOR, of=name),
                failed=self.count(EngineState.FAILED, of=name),
                now=now,
            )
            if decision.retry:
                self._forget_failed(name)
            self.sets[name] = decision.wanted
            if decision.wanted != before:
                why = f"{demand.tasks} tasks wait, {busy} engines are busy: {decision.why}"
                yield Adapted(name, before, decision.wanted, why)
            yield from self._fit(name, now)
            failed = self.count(EngineState.FAILED, of=name)
            if demand.tasks or demand.busy or failed or decision.wanted > adaptive.minimum:
                # Until the broker tells that tasks wait, a set that is as small as may be needs no look.
                self._look_at = now + LOOK_SECONDS

    def end(self, reason: str, by: str, tail: str = "") -> Iterator[Action]:
        """End the cluster, once; the first reason stays."""
        if self.over is None:
            self.over = End(reason, by, tail)
            yield self.over

    def tick(self, now: float) -> Iterator[Action]:
        """Do what has become due."""
        if self.over:
            return
        for engine in self._lives():
            if engine.state is EngineState.WAITING and now >= engine.since + pause_after(engine.quick_deaths):
                yield self._start(engine, now)
            elif engine.state is EngineState.RETIRING and now >= self._drained_at(engine):
                engine.state, engine.since = EngineState.STOPPING, now
                yield StopEngine(engine.id, late=True)
        yield from self._note_hope(now)
        if self.ready_at is None:
            if self._due(self.start_by, now):
                yield from self.end("it was not ready in time, and who was creating it is gone", "start limit")
            return
        if self.limits.lifetime is not None and now >= self.ready_at + self.limits.lifetime:
            yield from self.end(f"lifetime of {self.limits.lifetime:g} s is over", "lifetime")
        elif not self._awaiting_load and any(self._due(time, now) for time in self._reasons_to_ask()):
            # What is known may be out of date; the answer to this decides.
            self._awaiting_load = True
            yield AskLoad()

    def deadline(self) -> float | None:
        """Return when `tick` has something to do, None if never."""
        if self.over:
            return None
        times: list[float | None] = []
        for engine in self.engines.values():
            if engine.state is EngineState.WAITING:
                times.append(engine.since + pause_after(engine.quick_deaths))
            elif engine.state is EngineState.RETIRING:
                times.append(self._drained_at(engine))
        if self.ready_at is None:
            times.append(self.start_by)
        else:
            if self.limits.lifetime is not None:
                times.append(self.ready_at + self.limits.lifetime)
            if not self._awaiting_load:
                times += self._reasons_to_ask()
        if self.refusing:
            times += [adaptive.retry_at for adaptive in self.adapting.values()]
        return min((time for time in times if time is not None), default=None)

    # questions

    def count(self, *states: EngineState, of: str | None = None) -> int:
        """Return how many engines are in one of the states (of one set)."""
        return sum(e.state in states and of in (None, e.set) for e in self.engines.values())

    def bounds(self) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest number of engines of each set that adapts."""
        return {name: (adaptive.minimum, adaptive.maximum) for name, adaptive in self.adapting.items()}

    def reachable(self, of: str | None = None) -> int:
        """Return how many engines are up or may still come up."""
        return self.count(EngineState.UP, *HOPED_FOR, of=of)

    def possible(self) -> int:
        """Return how many engines are up or may still come up, also by load and by further tries."""
        room = sum(max(0, adaptive.maximum - self.reachable(of=name)) for name, adaptive in self.adapting.items())
        # An MPI set that is ending comes back with another size.
        ending = {e.set for e in self._lives() if e.state is EngineState.STOPPING} & self.units
        return self.reachable() + room + sum(self.sets[name] for name in ending)

    def idle_seconds(self, now: float) -> float | None:
        """Return for how long there was nothing to do, as far as is known; None when there is, or engines start."""
        since = self._idle_from()
        return None if since is None else max(0.0, now - since)

    def reasons(self) -> list[str]:
        """Say why engines are missing: one line each, with the last output of those that failed."""
        lines = [self._reason(e) for e in sorted(self._lives(), key=lambda e: e.id)]
        lines += [f"set {name!r}: {adaptive.reason()}" for name, adaptive in self.adapting.items() if adaptive.reason()]
        return [line for line in lines if line]

    @staticmethod
    def _reason(engine: Engine) -> str:
        if engine.state is EngineState.FAILED:
            return f"{engine.title} {engine.verdict} ({engine.cause}):\n{engine.tail}".rstrip(":\n")
        if engine.state is EngineState.WAITING:
            return f"{engine.title} ended ({engine.cause}) and will be started again"
        return ""

    # decisions

    def _fit(self, name: str, now: float) -> Iterator[Action]:
        """Start or retire engines of a set until their number is the one wanted."""
        if self.over:
            return
        if name in self.units:
            yield from self._fit_unit(name, now)
            return
        mine = [e for e in self.engines.values() if e.set == name and e.state in COUNTED]
        excess = self._counted(name) - self.sets[name]
        for _ in range(-excess):
            yield self._start(self._add(name, 1), now)
        # Those that do no work go first: given up or waiting ones at once, then the broker's choice of those up.
        for engine in sorted(mine, key=lambda e: -e.id):
            if excess > 0 and engine.state in (EngineState.WAITING, EngineState.FAILED):
                excess -= 1
                yield from self._remove(engine)
        # Engines on their way might get a task the moment they are up: they are waited for and retired then.
        starting = sum(e.state in COMING for e in mine)
        up = tuple(e.id for e in mine if e.state is EngineState.UP)
        if excess > starting:
            self._asked_to_retire[name] += excess - starting
            # The load takes idle engines only; a person who wants fewer, or another maximum, means busy ones as well.
            adaptive = self.adapting.get(name)
            only_idle = adaptive is not None and self.sets[name] < adaptive.maximum
            yield RetireEngines(name, up, excess - starting, only_idle)
        yield from self._note_hope(now)

    def _fit_unit(self, name: str, now: float) -> Iterator[Action]:
        """Start an MPI set, or end it if it has another size than is wanted; it is started when that one is gone."""
        wanted = self.sets[name]
        for unit in [unit for unit in self._lives() if unit.set == name and unit.ranks != wanted]:
            if unit.state in (EngineState.WAITING, EngineState.FAILED):
                yield from self._remove(unit)
            elif unit.state is EngineState.RESTARTING:
                unit.state = EngineState.STOPPING
            elif unit.state is not EngineState.STOPPING:
                unit.state, unit.since = EngineState.STOPPING, now
                yield StopEngine(unit.id)
        if wanted and not any(unit.set == name for unit in self.engines.values()):
            yield self._start(self._add(name, wanted), now)
        yield from self._note_hope(now)

    def _lives(self) -> list[Engine]:
        """Return engines and MPI sets, each once."""
        return [engine for number, engine in self.engines.items() if number == engine.id]

    def _add(self, name: str, ranks: int) -> Engine:
        """Give the next engine of a set, or an MPI set, the lowest ids that are free, in a row."""
        first = 0
        while not self.engines.keys().isdisjoint(range(first, first + ranks)):
            first += 1
        engine = Engine(first, name, ranks)
        self.engines.update(dict.fromkeys(engine.ids, engine))
        return engine

    def _remove(self, engine: Engine) -> Iterator[Action]:
        for number in engine.ids:
            del self.engines[number]
        yield from (DropEngine(number, self._expected()) for number in engine.ids)

    def _counted(self, name: str) -> int:
        """Return how many engines of a set count towards the number wanted."""
        return self.count(*COUNTED, of=name) - self._asked_to_retire[name]

    def _start(self, engine: Engine, now: float) -> StartEngine:
        # An id that is used again goes on counting: what is still said of its former engine is not taken for this one.
        engine.incarnation = max(self._starts[number] for number in engine.ids)
        for number in engine.ids:
            self._starts[number] = engine.incarnation + 1
        engine.state, engine.since, engine.verdict = EngineState.STARTING, now, ""
        return StartEngine(engine.id, engine.incarnation, engine.set, engine.ranks)

    def _drained_at(self, engine: Engine) -> float:
        return engine.since + self._drains.get(engine.set, DRAIN_SECONDS)

    def _expected(self) -> tuple[int, ...]:
        return tuple(n for n, e in self.engines.items() if e.state in COUNTED - {EngineState.FAILED})

    def _maybe_ready(self, now: float) -> Iterator[Action]:
        if self.ready_at is None and self.over is None and self.count(EngineState.UP) >= self.at_least:
            self.ready_at = self.idle_since = self.alone_since = now
            yield Ready()

    def _maybe_hopeless(self) -> Iterator[Action]:
        if self.ready_at is None and self.reachable() < self.at_least:
            why = "\n".join(self.reasons())
            yield from self.end(
                f"only {self.reachable()} of the {self.at_least} engines needed could be started", "controller", why
            )

    def _note_hope(self, now: float) -> Iterator[Action]:
        """Have tasks refused once no engine is left for them and none will come, and kept again when one may."""
        if self.ready_at is None or self.over:
            return
        # Ranks take only what is sent to them.
        takers = {e.state for e in self.engines.values() if e.set not in self.units}
        hopeless = EngineState.FAILED in takers and takers.isdisjoint(HOPED_FOR | {EngineState.UP})
        hopeless = hopeless and all(adaptive.refuses(now) for adaptive in self.adapting.values())
        if hopeless and not self.refusing:
            self.refusing = True
            yield RefuseTasks("\n".join(self.reasons()))
        elif self.refusing and not hopeless:
            self.refusing = False
            yield AcceptTasks()

    def _reasons_to_ask(self) -> list[float | None]:
        """Return when the load is to be known, by what for."""
        return [self._idle_deadline(), self._alone_deadline(), self._look_at if self.adapting else None]

    @staticmethod
    def _due(deadline: float | None, now: float) -> bool:
        return deadline is not None and now >= deadline

    def _idle_from(self) -> float | None:
        """Return since when nothing was queued, running or starting."""
        if self.idle_since is None or self.ready_at is None or self.count(*HOPED_FOR):
            return None
        newest = max((e.since for e in self.engines.values()), default=self.ready_at)
        return max(self.idle_since, self.ready_at, newest)

    def _idle_deadline(self) -> float | None:
        since = self._idle_from()
        return None if self.limits.idle_timeout is None or since is None else since + self.limits.idle_timeout

    def _alone_deadline(self) -> float | None:
        if self.limits.no_client_timeout is None or self.alone_since is None or self.ready_at is None:
            return None
        return max(self.alone_since, self.ready_at) + self.limits.no_client_timeout


def limits_of(spec: Mapping[str, object]) -> Limits:
    """Return the limits in a spec's plain data."""
    names = ("idle_timeout", "lifetime", "no_client_timeout")
    values = {name: spec.get(name) for name in names}
    return Limits(**{name: float(value) for name, value in values.items() if isinstance(value, int | float)})
