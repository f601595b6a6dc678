"""The broker's state under any order of events: scheduler, inventory, delivery, archive and timeouts together.

The real `Broker`, between a hub and links that only take notes. hypothesis plays clients, engines, nanny and
controller, and the clock is set by hand.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ipcluster_core import broker as module
from ipcluster_core import delivery, wire
from ipcluster_core.admission import Admission
from ipcluster_core.broker import Broker
from ipcluster_core.clients import Clients
from ipcluster_core.delivery import Delivery
from ipcluster_core.segments import Reader
from ipcluster_core.testing import FakeClock
from ipcluster_core.versions import ours
from ipcluster_core.wire import Buffer, Kind, Notice, Status

ENGINES = st.integers(0, 2)
RARELY = st.sampled_from([False, False, False, True])
FUNCTION = b"f" * 16

#: Seconds for which outcomes are kept.
KEPT = 1000.0
#: Seconds that tasks with a limit may run.
LIMIT = 5.0


class Hub:
    """Takes notes of what is sent, and hands out what partners have said and the broker has not read."""

    def __init__(self) -> None:
        self.sent: dict[int, list[list[bytes]]] = defaultdict(list)
        self.dropped: set[int] = set()

    def send(self, number: int, frames: Sequence[Buffer]) -> None:
        """See `hub.Hub`; so the others."""
        if number not in self.dropped:
            self.sent[number].append([bytes(frame) for frame in frames])

    def receive(self, number: int) -> list[list[memoryview]]:
        """Nothing waits to be read."""
        raise EOFError

    def drop(self, number: int) -> None:
        """No word goes there any more."""
        self.dropped.add(number)

    def trust(self, number: int) -> None:
        """All are trusted."""

    def pause(self, number: int, *, on: bool) -> None:
        """All may speak."""


class Link:
    """Takes notes."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> bool:
        """See `link.Link`."""
        self.sent.append(message)
        return True

    def take(self) -> list[Mapping[str, Any]]:
        """Return what came since the last call."""
        found, self.sent = self.sent, []
        return found


@dataclass
class Task:
    """A task in the test's own books."""

    client: str
    number: int
    engines: frozenset[int] | None
    retries: int
    limit: bool
    refs: list[bytes]
    begun: int = 0
    settled: bool = False

    @property
    def payload(self) -> bytes:
        """What it is called with, and returns."""
        return f"{self.client}-{self.number}".encode()


@dataclass
class Chunk:
    """A chunk as its engine has it."""

    number: int
    tasks: list[Task]
    done: int = 0
    revoked: set[int] = field(default_factory=set)


@dataclass
class Engine:
    """A process that the nanny has started."""

    id: int
    incarnation: int
    partner: int
    chunks: list[Chunk] = field(default_factory=list)
    values: set[bytes] = field(default_factory=set)


@dataclass
class Client:
    """One that is connected; `asked` are the numbers of its questions, and what they are about."""

    name: str
    partner: int
    next_number: int = 0
    outcomes: Counter[int] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    asked: dict[int, Task] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def number(self) -> int:
        """Return a number that was not used."""
        self.next_number += 1
        return self.next_number - 1


class Board(RuleBasedStateMachine):
    """Each rule is something that a partner or a relative says; afterwards everything that was sent is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(100.0)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "time", _Time(self.clock))
        self.patch.setattr(delivery, "time", _Time(self.clock))
        self.hub, self.nanny, self.controller = Hub(), Link(), Link()
        spec = {"keep_results": KEPT, "max_tasks": None, "engines": {}}
        boot = {"tag": "c/1/u", "folder": "/nowhere", "store": "memory:", "spec": spec}
        self.broker = Broker(boot, self.nanny, self.controller)  # type: ignore[arg-type]  # they only take notes
        self.broker._admission = Admission("cluster 'c' #1", "secret")
        self.broker._hub = self.hub  # type: ignore[assignment]  # as the links
        self.broker._clients = Clients(self.hub, "/nowhere/segments")  # type: ignore[arg-type]  # as the links
        self.broker._delivery = Delivery(self.hub.send, Reader("/nowhere/segments"), KEPT)
        self.partners = 0
        self.clients: dict[str, Client] = {}
        self.engines: dict[int, Engine] = {}
        self.starts: Counter[int] = Counter()
        self.tasks: dict[tuple[str, int], Task] = {}

    # clients

    @precondition(lambda self: len(self.clients) < 3)
    @rule()
    def client_comes(self) -> None:
        """Each has a name of its own, and sends its function."""
        name = uuid.uuid5(uuid.NAMESPACE_OID, str(self.partners)).hex[:6]
        nobody = {"host": "h", "boot": "b", "namespace": "n", "pid": -1, "start": 0}
        client = Client(name, self.hello(role="client", client=name, process=nobody, segments="s"))
        self.clients[name] = client
        self.say(client.partner, wire.Function(FUNCTION, b"def f").encode())

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), politely=st.booleans())
    def client_goes(self, data: st.DataObject, politely: bool) -> None:
        """With a word, or as one whose connection is lost."""
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        if politely:
            self.say(client.partner, Notice(Kind.BYE, {}).encode())
        self.broker._hear_out(client.partner)
        self.settle()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), count=st.integers(1, 8), retries=st.integers(0, 2), limit=RARELY)
    def submit(self, data: st.DataObject, count: int, retries: int, limit: bool) -> None:
        """A run of tasks, perhaps for some engines only, perhaps with values that the client has put."""
        client = self.any_client(data)
        engines = data.draw(st.none() | st.frozensets(ENGINES, min_size=1, max_size=2))
        refs = data.draw(st.lists(st.sampled_from(client.values), unique=True)) if client.values else []
        base = client.next_number
        tasks = [Task(client.name, client.number(), engines, retries, limit, refs) for _ in range(count)]
        options: dict[str, Any] = {"retries": retries, "refs": [key.hex() for key in refs]}
        options |= {"timeout": LIMIT} if limit else {}
        options |= {} if engines is None else {"engines": sorted(engines)}
        bodies = [task.payload for task in tasks]
        client.tasks += tasks
        self.tasks |= {(task.client, task.number): task for task in tasks}
        self.say(
            client.partner,
            wire.Submit(base, count, FUNCTION, wire.lengths(bodies), b"".join(bodies), options).encode(),
        )

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        """A value, which it then may use."""
        client = self.any_client(data)
        client.values.append(f"{client.name}{client.number():010}".encode())
        self.say(client.partner, wire.Value(client.values[-1], b"value").encode())

    @precondition(lambda self: any(client.values for client in self.clients.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A value that it uses no more; tasks that were sent may."""
        client = data.draw(st.sampled_from([client for client in self.clients.values() if client.values]))
        key = client.values.pop(data.draw(st.integers(0, len(client.values) - 1)))
        self.say(client.partner, wire.Drop(key).encode())

    @precondition(lambda self: self.clients and self.tasks)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        """The outcome of any task, by its id."""
        client, task = self.any_client(data), data.draw(st.sampled_from(list(self.tasks.values())))
        number = client.number()
        client.asked[number] = task
        question = {"id": number, "about": "result", "task": task.payload.decode()}
        self.say(client.partner, Notice(Kind.ASK, question).encode())

    @precondition(lambda self: self.clients and self.tasks)
    @rule(data=st.data(), running=st.booleans())
    def cancel(self, data: st.DataObject, running: bool) -> None:
        """A task of its own by number, or any by its id."""
        client, task = self.any_client(data), data.draw(st.sampled_from(list(self.tasks.values())))
        if task.client == client.name:
            self.say(client.partner, wire.Cancel(task.number, running).encode())
            return
        question = {"id": client.number(), "about": "cancel", "tasks": [task.payload.decode()]}
        self.say(client.partner, Notice(Kind.ASK, question).encode())

    # engines

    @rule(engine=ENGINES)
    def engine_comes(self, engine: int) -> None:
        """For the first time, or again."""
        if engine not in self.engines:
            incarnation = self.starts[engine]
            self.starts[engine] += 1
            partner = self.hello(role="engine", engine=engine, incarnation=incarnation, host="h")
            self.engines[engine] = Engine(engine, incarnation, partner)
            self.settle()

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), count=st.integers(1, 3))
    def engine_works(self, data: st.DataObject, count: int) -> None:
        """It tells of the next tasks of its first chunk."""
        engine = self.engines[data.draw(st.sampled_from(sorted(self.engines)))]
        if engine.chunks:
            self.work(engine, count)

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), untold=st.integers(0, 2), begun=st.integers(0, 1), for_good=RARELY)
    def engine_dies(self, data: st.DataObject, untold: int, begun: int, for_good: bool) -> None:
        """Its nanny tells how far it had come; perhaps the controller that it will not come back."""
        self.die(self.engines[data.draw(st.sampled_from(sorted(self.engines)))], untold, begun)
        if for_good:
            missing = data.draw(st.sampled_from(sorted({0, 1, 2} - self.engines.keys())))
            gone = {"do": "drop", "engine": missing, "expected": list(self.engines), "why": ""}
            self.broker._on_controller(gone, b"")
            self.settle()

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), how=st.sampled_from(["retire", "restart"]))
    def engine_is_to_go(self, data: st.DataObject, how: str) -> None:
        """It gets nothing more; its end comes later."""
        engine = data.draw(st.sampled_from(sorted(self.engines)))
        retire = {"do": "retire", "set": "default", "engines": [engine], "count": 1, "only_idle": False}
        restart = {"do": "restart", "engine": engine, "incarnation": self.engines[engine].incarnation}
        self.broker._on_controller(retire if how == "retire" else restart, b"")
        self.settle()

    @rule(seconds=st.sampled_from([0.5, LIMIT, 2.5, KEPT]))
    def time_passes(self, seconds: float) -> None:
        """Limits of tasks, and of what is kept."""
        self.clock.advance(seconds)
        self.settle()

    # performing

    def hello(self, **who: Any) -> int:
        """Let a partner say hello; return its number."""
        self.partners += 1
        more = {"protocol": wire.VERSION, "secret": "secret", "versions": dict(ours())}
        self.broker._on_message(self.partners, Notice(Kind.HELLO, {**who, **more}).encode())
        assert self.hub.sent[self.partners].pop(0)[0][0] == Kind.WELCOME
        return self.partners

    def say(self, partner: int, frames: Sequence[Buffer]) -> None:
        """Let a partner say something, and see what comes of it."""
        self.broker._on_message(partner, frames)
        self.settle()

    def any_client(self, data: st.DataObject) -> Client:
        """Draw one that is connected."""
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    def work(self, engine: Engine, count: int) -> None:
        """Finish the next tasks of an engine's first chunk."""
        chunk = engine.chunks[0]
        first, tasks = chunk.done, chunk.tasks[chunk.done : chunk.done + count]
        outcomes = [self.outcome(chunk, first + index, task) for index, task in enumerate(tasks)]
        chunk.done += len(tasks)
        if chunk.done == len(chunk.tasks):
            engine.chunks.pop(0)
        statuses, bodies = bytes(status for status, _ in outcomes), [body for _, body in outcomes]
        done = wire.Done(chunk.number, first, len(tasks), 1000, wire.lengths(bodies), statuses, b"".join(bodies))
        self.say(engine.partner, done.encode())

    @staticmethod
    def outcome(chunk: Chunk, index: int, task: Task) -> tuple[int, bytes]:
        """Return what a task comes to."""
        return (Status.CANCELLED, b"") if index in chunk.revoked else (Status.OK, task.payload)

    def die(self, engine: Engine, untold: int, begun: int) -> None:
        """End an engine that had finished some tasks and not told, and had begun the next."""
        del self.engines[engine.id]
        chunks = []
        blob = b""
        for position, chunk in enumerate(engine.chunks):
            finished = min(len(chunk.tasks), chunk.done + (0 if position else untold))
            running = 0 if position or finished == len(chunk.tasks) else begun
            for task in chunk.tasks[chunk.done + (finished - chunk.done) : finished + running]:
                task.begun += 1
                assert task.begun <= 1 + task.retries, "ran too often"
            outcomes = [self.outcome(chunk, index, chunk.tasks[index]) for index in range(finished)]
            blob += b"".join(body for _, body in outcomes)
            entries = [(status, len(body)) for status, body in outcomes]
            chunks.append({"chunk": chunk.number, "begun": finished + running, "finished": entries})
        death = {"event": "died", "engine": engine.id, "incarnation": engine.incarnation, "cause": "x", "tail": ""}
        self.broker._on_nanny({**death, "chunks": chunks}, blob)
        self.settle()

    def settle(self) -> None:
        """Do what the broker's loop does after whatever it was told, and take what was sent."""
        self.broker._end_overdue(self.clock())
        self.broker._dispatch()
        self.broker._note_idle()
        self.broker._note_load()
        for engine in self.engines.values():
            for frames in self.taken(engine.partner):
                self.engine_gets(engine, frames)
        for client in self.clients.values():
            for frames in self.taken(client.partner):
                self.client_gets(client, frames)
        for message in self.nanny.take():
            self.nanny_gets(message)
        stuck = [message["engine"] for message in self.controller.take() if message["event"] == "stuck"]
        for engine in stuck:
            if engine in self.engines:
                self.die(self.engines[engine], 0, 1)

    def taken(self, partner: int) -> list[list[bytes]]:
        """Return what was sent to a partner since the last call."""
        return self.hub.sent.pop(partner, [])

    def engine_gets(self, engine: Engine, frames: list[bytes]) -> None:
        """Keep values, and tasks that it may run and for which it has the values."""
        match wire.kind_of(frames):
            case Kind.VALUE:
                engine.values.add(wire.Value.decode(frames).key)
            case Kind.DROP:
                engine.values.remove(wire.Drop.decode(frames).key)
            case _:
                chunk = wire.Chunk.decode(frames)
                ends = wire.offsets(chunk.sizes, chunk.tasks)
                names = [bytes(chunk.body)[ends[i] : ends[i + 1]].decode() for i in range(chunk.tasks)]
                tasks = [self.tasks[name.partition("-")[0], int(name.partition("-")[2])] for name in names]
                assert all(engine.values >= set(task.refs) for task in tasks), "without its values"
                assert all(task.engines is None or engine.id in task.engines for task in tasks)
                assert not any(task.limit for task in tasks) or (len(tasks) == 1 and not engine.chunks)
                engine.chunks.append(Chunk(chunk.number, tasks))

    def client_gets(self, client: Client, frames: list[bytes]) -> None:
        """Count the outcomes of its tasks, and the answers to its questions."""
        if wire.kind_of(frames) is not Kind.RESULTS:
            return
        results = wire.Results.decode(frames)
        ends = wire.offsets(results.sizes, results.tasks)
        for index in range(results.tasks):
            number, status = results.base + index, results.statuses[index]
            body = bytes(results.body)[ends[index] : ends[index + 1]]
            task = client.asked.get(number) or self.tasks[client.name, number]
            (client.answers if number in client.asked else client.outcomes)[number] += 1
            if status == Status.OK:
                assert body == task.payload, "the outcome of another task"
            if status == Status.LOST:
                reason = json.loads(body)
                assert reason.get("error") != "TaskTimeout" or task.limit

    def nanny_gets(self, message: Mapping[str, Any]) -> None:
        """Interrupt a task, if that engine has it still."""
        assert message["do"] == "interrupt"
        engine = self.engines.get(message["engine"])
        if engine is not None and engine.incarnation == message["incarnation"]:
            for chunk in engine.chunks:
                if chunk.number == message["chunk"] and message["index"] >= chunk.done:
                    chunk.revoked.add(message["index"])

    # what always holds

    @invariant()
    def nobody_is_told_twice(self) -> None:
        """Each task has one outcome for its client, each question one answer."""
        for client in self.clients.values():
            assert all(count == 1 for count in client.outcomes.values())
            assert all(count == 1 for count in client.answers.values())

    @invariant()
    def what_is_settled_is_told_and_what_is_not_is_waited_for(self) -> None:
        """An outcome is never lost on the way."""
        unsettled = self.broker._scheduler.is_unsettled
        for client in self.clients.values():
            for task in client.tasks:
                assert unsettled(client.name, task.number) == (task.number not in client.outcomes)
            for number, task in client.asked.items():
                assert unsettled(task.client, task.number) == (number not in client.answers)

    @invariant()
    def bytes_are_kept_for_what_is_not_settled_only(self) -> None:
        """What the broker counts is what it keeps."""
        inventory, load = self.broker._inventory, self.broker._scheduler.load
        assert inventory.task_bytes == sum(payload.size for payload in inventory._payloads.values())
        assert bool(inventory._payloads) == bool(load.queued + load.running)

    def teardown(self) -> None:
        """When all is done and all are gone, nothing is left of anything."""
        for engine in list(self.engines.values()):
            self.die(engine, 0, 0)  # those that were to go get nothing more
        for number in range(3):
            self.engine_comes(number)
        for _ in range(10_000):
            busy = [engine for engine in self.engines.values() if engine.chunks]
            if not busy:
                break
            self.work(busy[0], 5)
        load = self.broker._scheduler.load
        assert (load.queued, load.running) == (0, 0), "tasks that no engine gets"
        self.nobody_is_told_twice()
        self.what_is_settled_is_told_and_what_is_not_is_waited_for()
        assert self.broker._delivery._watchers == {}
        for client in list(self.clients.values()):
            self.broker._hear_out(client.partner)
        self.clients.clear()
        self.clock.advance(2 * KEPT)
        self.settle()
        inventory = self.broker._inventory
        assert (inventory.task_bytes, inventory._payloads, inventory._functions) == (0, {}, {})
        assert (inventory._values._entries, inventory._sent) == ({}, {})
        assert self.broker._delivery._archive.size == 0
        assert (self.broker._timeouts.deadline(), self.broker._scheduler._works) == (None, {})
        assert self.broker._clients._prefixes == {}
        self.patch.undo()
        super().teardown()


class _Time:
    """Stands in for the module of that name."""

    def __init__(self, clock: FakeClock) -> None:
        self.monotonic = clock


@pytest.mark.filterwarnings("error")
class TestBoard(Board.TestCase):  # type: ignore[misc, valid-type]  # hypothesis makes the class
    """No task is lost or settled twice, each who waits is answered once, and no byte is kept for nothing."""

    settings = settings(
        max_examples=100,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
