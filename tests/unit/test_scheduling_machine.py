"""The scheduler under any order of events: hypothesis plays broker, engines and clients, and keeps its own books."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from ipcluster_core.scheduling import MOST_TASKS, SHORT_SECONDS, Assignment, Load, Scheduler, Work

CLIENTS = st.sampled_from(["anna", "berta"])
ENGINES = st.integers(0, 3)
#: Seconds that a task of each function takes.
FUNCTIONS = {"instant": 0.0, "quick": 0.002, "slow": 0.5}
TARGETS = st.none() | st.frozensets(ENGINES, min_size=1, max_size=3)


@dataclass(eq=False)
class Task:
    """A task in the test's own books."""

    work: Work
    index: int
    state: str = "queued"  # held, done, cancelled, lost, given up
    begun: int = 0

    @property
    def age(self) -> tuple[int, int]:
        """Sorts as the tasks came."""
        return self.work.arrival, self.index

    def may_go_to(self, engine: int) -> bool:
        """Whether its client allows that engine."""
        return self.work.engines is None or engine in self.work.engines


@dataclass
class Chunk:
    """A chunk as its engine sees it."""

    number: int
    tasks: list[Task]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.tasks)


class Routing(RuleBasedStateMachine):
    """Every rule tells the scheduler of an event, and checks its answer against the books."""

    engines = Bundle("engines")

    def __init__(self) -> None:
        super().__init__()
        self.max_tasks: int | None = None
        self.scheduler = Scheduler()
        self.tasks: list[Task] = []
        self.by_work: dict[int, list[Task]] = {}
        self.chunks: dict[int, list[Chunk]] = {}  # by engine that is up
        self.retiring: set[int] = set()
        self.left: dict[int, int] = {}  # tasks that each engine may still be given, if there is a limit
        self.measured: set[str] = set()
        self.next_number = {"anna": 0, "berta": 0}

    # events

    @initialize(max_tasks=st.none() | st.integers(1, 5))
    def begin(self, max_tasks: int | None) -> None:
        """Engines may have to leave after so many tasks."""
        self.max_tasks = max_tasks
        self.scheduler = Scheduler(max_tasks)

    @rule(client=CLIENTS, count=st.integers(1, 12), function=st.sampled_from(sorted(FUNCTIONS)), engines=TARGETS)
    def submit(self, client: str, count: int, function: str, engines: frozenset[int] | None) -> None:
        """A client sends a run of tasks."""
        work = Work(client, self.next_number[client], count, function, engines, retries=count % 3)
        self.next_number[client] += count
        self.scheduler.submit(work)
        tasks = [Task(work, index) for index in range(count)]
        self.by_work[id(work)] = tasks
        self.tasks += tasks

    @rule(target=engines, engine=ENGINES)
    def engine_up(self, engine: int) -> int:
        """An engine registers, for the first time or again."""
        if engine not in self.chunks:
            self.scheduler.engine_up(engine)
            self.chunks[engine] = []
            self.left[engine] = 1000 if self.max_tasks is None else self.max_tasks
        return engine

    @rule()
    def assign(self) -> None:
        """The broker sends what can be sent."""
        for made in self.scheduler.assign():
            self.check_and_note(made)
        for engine, chunks in self.chunks.items():
            assert chunks or not self.left[engine] or not self.open_to(engine), (
                f"engine {engine} idles while tasks wait for it"
            )

    @rule(engine=engines, share=st.floats(0.0, 1.0))
    def some_done(self, engine: int, share: float) -> None:
        """An engine tells of the next tasks of its first chunk."""
        if not self.chunks.get(engine):
            return
        chunk = self.chunks[engine][0]
        self.finish(engine, chunk, max(1, round(share * len(chunk.tasks))))

    @rule(engine=consumes(engines), finished=st.integers(0, 3), begun=st.integers(0, 2))
    def engine_lost(self, engine: int, finished: int, begun: int) -> None:
        """An engine dies. What it had finished and not told is told first, from its journal."""
        chunks = self.chunks.get(engine, [])
        if chunks and finished:
            self.finish(engine, chunks[0], min(finished, len(chunks[0].tasks)))
        chunks = self.chunks.pop(engine, [])
        self.retiring.discard(engine)
        progress = {}
        expected = []
        for position, chunk in enumerate(chunks):
            started = chunk.tasks[:begun] if position == 0 else []
            progress[chunk.number] = chunk.count - len(chunk.tasks) + len(started)
            for task in chunk.tasks:
                task.state = "queued"
            for task in started:
                task.begun += 1
                if task.begun > task.work.retries:
                    task.state = "lost"
                    expected.append((id(task.work), task.index, engine))

        lost = [(id(one.work), one.index, one.engine) for one in self.scheduler.engine_lost(engine, progress)]

        assert sorted(lost) == sorted(expected)

    @rule(engine=ENGINES, expected=st.frozensets(ENGINES))
    def engine_gone(self, engine: int, expected: frozenset[int]) -> None:
        """An engine that is not up will not come back; the controller says which others are there or will come."""
        if engine in self.chunks:
            return
        possible = (expected | self.chunks.keys()) - ({engine} - expected)
        hopeless = [t for t in self.queued() if t.work.engines is not None and not t.work.engines & possible]
        for task in hopeless:
            task.state = "given up"

        lost = self.scheduler.engine_gone(engine, expected)

        assert {(id(one.work), one.index) for one in lost} == {(id(t.work), t.index) for t in hopeless}
        assert len(lost) == len(hopeless)
        assert all(one.engine is None for one in lost)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A client cancels any task that it has ever sent."""
        task = data.draw(st.sampled_from(self.tasks))
        was_queued = task.state == "queued"

        assert bool(self.scheduler.cancel(task.work.client, task.work.base + task.index)) == was_queued
        if was_queued:
            task.state = "cancelled"

    @rule()
    def no_engine_will_come(self) -> None:
        """All that any engine might take is given up."""
        hopeless = [task for task in self.queued() if task.work.engines is None]
        for task in hopeless:
            task.state = "given up"

        lost = self.scheduler.give_up_waiting()

        assert [(id(one.work), one.index) for one in lost] == [
            (id(t.work), t.index) for t in sorted(hopeless, key=lambda t: t.age)
        ]

    @rule(count=st.integers(1, 3), only_idle=st.booleans())
    def retire(self, count: int, only_idle: bool) -> None:
        """The cluster is scaled down."""
        able = [engine for engine in self.chunks if engine not in self.retiring]
        if only_idle:
            named = {engine for task in self.queued() for engine in task.work.engines or ()}
            able = [engine for engine in able if not self.chunks[engine] and engine not in named]
        idle = [engine for engine in able if self.scheduler.is_idle(engine)]

        chosen = self.scheduler.retire(list(self.chunks), count, only_idle=only_idle)

        assert len(set(chosen)) == len(chosen) == min(count, len(able))
        assert set(chosen) <= set(able)
        assert set(chosen) <= set(idle) or set(idle) <= set(chosen), "idle ones go first"
        self.retiring.update(chosen)

    # the books

    def queued(self) -> list[Task]:
        """Return the queued tasks."""
        return [task for task in self.tasks if task.state == "queued"]

    def open_to(self, engine: int) -> list[Task]:
        """Return the queued tasks that an engine may be given."""
        if engine in self.retiring:
            return [task for task in self.queued() if task.work.engines == frozenset({engine})]
        return [task for task in self.queued() if task.may_go_to(engine)]

    def check_and_note(self, made: Assignment) -> None:
        """Check one assignment at the moment at which it was made."""
        work, piece = made.slice.work, made.slice
        tasks = self.by_work[id(work)][piece.start : piece.stop]
        before = self.chunks[made.engine]
        oldest = min(self.open_to(made.engine), key=lambda task: task.age)

        assert tasks, "an empty chunk"
        assert all(task.state == "queued" for task in tasks), "handed out twice, or although cancelled"
        assert tasks[0] is oldest, "out of turn"
        assert len(tasks) <= self.left[made.engine], "more than it may run"
        self.left[made.engine] -= len(tasks)
        assert len(tasks) <= (MOST_TASKS if work.function in self.measured else 1)
        for chunk in before:
            function = str(chunk.tasks[0].work.function)
            assert function in self.measured
            assert FUNCTIONS[function] * chunk.count < SHORT_SECONDS, "behind a long chunk"
        for task in tasks:
            task.state = "held"
        before.append(Chunk(made.chunk, list(tasks)))

    def finish(self, engine: int, chunk: Chunk, count: int) -> None:
        """Tell that the next tasks of a chunk are done."""
        seconds = FUNCTIONS[str(chunk.tasks[0].work.function)] * count
        piece = self.scheduler.done(engine, chunk.number, count, seconds)
        self.measured.add(str(chunk.tasks[0].work.function))
        finished, chunk.tasks = chunk.tasks[:count], chunk.tasks[count:]
        if not chunk.tasks:
            self.chunks[engine].remove(chunk)
        for task in finished:
            task.state = "done"

        assert piece is not None
        assert piece.work is finished[0].work
        assert (piece.start, piece.stop) == (finished[0].index, finished[-1].index + 1)

    # what always holds

    @invariant()
    def load_adds_up(self) -> None:
        """Each task is queued, held or settled, and counted once."""
        queued, held = len(self.queued()), sum(task.state == "held" for task in self.tasks)

        assert self.scheduler.load == Load(queued, held, len(self.tasks) - queued - held)

    @invariant()
    def engines_hold_what_they_were_given(self) -> None:
        """At most two chunks, and no task in two places."""
        held = {engine: sum(len(chunk.tasks) for chunk in chunks) for engine, chunks in self.chunks.items()}

        assert self.scheduler.engines == held
        assert all(len(chunks) <= 2 for chunks in self.chunks.values())

    @invariant()
    def works_know_how_many_of_their_tasks_are_left(self) -> None:
        """The broker keeps the bytes of a work until its last task is settled."""
        for tasks in self.by_work.values():
            assert tasks[0].work.unsettled == sum(task.state in ("queued", "held") for task in tasks)

    @invariant()
    def engines_are_idle_when_nothing_is_left_for_them(self) -> None:
        """An idle retiring engine may be stopped without any loss."""
        for engine, chunks in self.chunks.items():
            own = [task for task in self.queued() if task.work.engines == frozenset({engine})]

            assert self.scheduler.is_idle(engine) == (not chunks and not own)

    def teardown(self) -> None:
        """In the end every task is settled: nothing is forgotten in a queue."""
        for engine in range(4):
            if engine in self.retiring:
                self.engine_lost(engine, 0, 0)
            self.engine_up(engine)
        while any(task.state in ("queued", "held") for task in self.tasks):
            before = self.scheduler.load
            self.assign()
            for engine, chunks in self.chunks.items():
                for chunk in list(chunks):
                    self.finish(engine, chunk, len(chunk.tasks))
            for engine in [engine for engine, left in self.left.items() if not left]:
                self.engine_lost(engine, 0, 0)
                self.engine_up(engine)
            assert self.scheduler.load != before, "tasks that no engine gets"
        self.load_adds_up()
        super().teardown()


@pytest.mark.filterwarnings("error")
class TestRouting(Routing.TestCase):  # type: ignore[misc, valid-type]  # hypothesis makes the class
    """Each task is settled exactly once, and none runs where or when it must not."""

    settings = settings(
        max_examples=100,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
