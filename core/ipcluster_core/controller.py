"""The lifecycle brain of one cluster: performs what `lifecycle` decides, and answers questions.

It sizes the engine sets through the nanny, knows from the broker who is up and how busy, enforces the limits, and
owns the record while it lives. It never sees user data. When the nanny goes, it ends what is left.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import errors, process
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
from .adaptive import Adaptive
from .events import EventKind, EventLog, kind_of_death
from .hub import Hub
from .incarnation import CONTROL, forget, log_path, note, secret_of, tail_of, update
from .lifecycle import ClusterLife, limits_of
from .link import Link
from .load import demand_of
from .policy import policy_of
from .record import ClusterState, Ended, Record, title_of, utc_now
from .roster import SERVING, EngineState
from .store import open_store
from .targets import choose, launchers_of, log_parts
from .waits import Wait
from .wanted import kinds_of
from .wire import same_secret

__all__ = ["Controller", "run"]

logger = logging.getLogger("ipcluster.controller")

#: Longest time to wait, in seconds: epoll_wait(2) takes an int of ms. When it is over, the loop goes round again.
_LONGEST_WAIT = 1e6

#: Engines that a set may have: a slip of the finger must not have the controller count to a thousand millions.
_MOST_ENGINES = 10_000

#: Seconds for those who asked to take the last answers.
_LINGER = 0.2


class Controller:
    """Runs until the cluster is over."""

    def __init__(self, boot: Mapping[str, Any], nanny: Link, broker: Link) -> None:
        spec = boot["spec"]
        self._boot = boot
        self._tag = str(boot["tag"])
        self._title = title_of(self._tag)
        self._folder = str(boot["folder"])
        self._nanny, self._broker = nanny, broker
        self._store = open_store(str(boot["store"]))
        sets = {str(name): int(n) for name, n in boot["sets"].items()}
        adapting = {str(name): Adaptive(*bounds) for name, bounds in boot["adapting"].items()}
        kinds = kinds_of(spec)
        units = frozenset(name for name, kind in kinds.items() if kind == "mpi")
        self._life = ClusterLife(sets, int(boot["at_least"]), limits_of(spec), policy_of(spec), adapting, units)
        self._life.start_by = time.monotonic() + float(boot["start_seconds"])
        nothing = dict.fromkeys(("queued", "running", "settled", "clients"), 0)
        self._load: Mapping[str, Any] = {**nothing, "engines": {}, "silent": {}}
        self._asking_status: list[int] = []
        self._asking_end: list[tuple[int, float, End]] = []
        self._waits: list[Wait] = []
        self._events = EventLog()
        self._secret = b""
        self._over = False
        self._verbs: dict[str, Callable[[int, Mapping[str, Any]], None]] = {
            "status": self._on_status,
            "wait": self._on_wait,
            "scale": self._on_scale,
            "adapt": self._on_adapt,
            "restart": self._on_restart,
            "signal": self._on_signal,
            "interrupt": self._on_interrupt,
            "logs": self._on_logs,
            "events": self._on_events,
            "own": self._on_own,
            "end": self._on_end,
        }

    def run(self) -> None:
        """Serve until the end was carried out by the nanny, or the nanny is gone."""
        self._secret = secret_of(self._store, self._tag).encode()
        self._hub = Hub(self._folder, CONTROL)
        for link in (self._nanny, self._broker):
            self._hub.watch(link.fileno())
        while not self._over:
            watched, asking = self._hub.wait(self._wait_seconds())
            if self._nanny.fileno() in watched:
                self._from(self._nanny, self._on_nanny, self._on_nanny_gone)
            if self._broker.fileno() in watched and not self._over:
                # The nanny reaps the broker and decides; here its silence only has to be borne.
                self._from(self._broker, self._on_broker, lambda: self._hub.unwatch(self._broker.fileno()))
            for client in asking:
                self._on_requests(client)
            self._perform(self._life.tick(time.monotonic()))
            self._answer_waits(time.monotonic())
        self._hub.close(_LINGER)

    # from nanny and broker

    @staticmethod
    def _from(link: Link, handle: Callable[[Mapping[str, Any]], None], gone: Callable[[], object]) -> None:
        try:
            for message, _ in link.receive():
                handle(message)
        except EOFError:
            gone()

    def _on_nanny(self, message: Mapping[str, Any]) -> None:
        now = time.monotonic()
        match message.get("event"):
            case "started":
                self._life.engine_started(int(message["engine"]), int(message["pid"]), int(message["incarnation"]))
            case "died":
                self._on_death(message, now)
            case "answer":
                self._reply(int(message["request"]), message["content"])
            case "owner_gone":
                self._perform(self._life.end("the process whose with-block owned it is gone", "owner"))
            case _:
                # The only command: the end. Whoever still waits is told why.
                self._refuse_waits(f"ended: {message['reason']}", str(message["tail"]))
                self._over = True

    def _on_death(self, message: Mapping[str, Any], now: float) -> None:
        engine, incarnation = int(message["engine"]), int(message["incarnation"])
        cause, tail, farewell = str(message["cause"]), str(message["tail"]), str(message["farewell"])
        logger.info("engine %d of %s ended: %s", engine, self._title, farewell or cause)
        recycled, found = bool(farewell), self._life.engines.get(engine)
        kind = kind_of_death(found.state, recycled=recycled) if found is not None else None
        if kind is not None:
            self._note(kind, farewell or cause, engine)
        self._perform(self._life.engine_died(engine, cause, tail, now, incarnation=incarnation, recycled=recycled))

    def _on_broker(self, message: Mapping[str, Any]) -> None:
        now = time.monotonic()
        match message["event"]:
            case "bound":
                # Both sockets are there: whoever connects from now on need not try again.
                self._nanny.send({"do": "ready"})
                self._broker.send({"do": "adapts", "on": bool(self._life.adapting)})
                self._note(EventKind.CREATED, f"{sum(self._life.sets.values())} engines are wanted")
                self._perform(self._life.begin(now))
            case "up":
                engine, incarnation = int(message["engine"]), int(message["incarnation"])
                self._note(EventKind.UP, f"incarnation {incarnation}", engine)
                self._perform(self._life.engine_up(engine, incarnation, now, str(message["host"])))
            case "leaves":
                self._life.engine_leaves(int(message["engine"]), int(message["incarnation"]), now)
            case "retired":
                asked, engines = int(message["asked"]), [int(engine) for engine in message["engines"]]
                self._perform(self._life.engines_retired(str(message["set"]), asked, engines, now))
            case "stuck":
                self._perform(self._life.restart([int(message["engine"])], now))
            case "idle":
                self._perform(self._life.engine_idle(int(message["engine"]), now))
            case "load":
                self._load = message
                self._perform(self._life.load(message["idle_since"], message["alone_since"], now, demand_of(message)))
                for client in self._asking_status:
                    self._reply(client, self._status())
                self._asking_status.clear()
                self._end_if_idle(now)
            case other:
                logger.error("unknown event %r from the broker", other)

    def _on_nanny_gone(self) -> None:
        """End what the nanny cannot end any more: every process that carries the tag."""
        self._over = True
        logger.error("the nanny of %s died", self._title)
        ended = Ended("its nanny died (killed from outside, or a crash)", utc_now(), "controller")
        self._broker.send({"do": "end", "reason": ended.reason, "by": ended.by, "tail": ""})
        self._refuse_waits(ended.reason, "")
        # Clients look the reason up the moment the broker is gone.
        note(self._store, self._tag, lambda record: record.with_state(ClusterState.ENDED, ended=ended))
        process.end_all(lambda: process.tagged(self._tag), grace=0.5, timeout=10.0)
        forget(self._store, self._tag, self._folder)

    # actions

    def _note(self, kind: EventKind, text: str, engine: int | None = None) -> None:
        self._events.add(time.time(), kind, text, engine)

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Ready():
                    self._become_running()
                case End(reason, by, tail):
                    self._become_ending(reason, by, tail)
                case AskLoad():
                    self._broker.send({"do": "load"})
                case StartEngine() | StopEngine() | RestartEngine():
                    self._perform_on_process(action)
                case _:
                    self._perform_on_tasks(action)

    def _perform_on_process(self, action: StartEngine | StopEngine | RestartEngine) -> None:
        match action:
            case StartEngine(engine, incarnation, name, ranks):
                self._note(EventKind.STARTED, f"incarnation {incarnation}", engine)
                start = {"do": "start", "engine": engine, "incarnation": incarnation, "set": name, "ranks": ranks}
                self._nanny.send(start)
            case StopEngine(engine, late):
                if late:
                    logger.warning("engine %d of %s had not drained in time and is ended", engine, self._title)
                self._nanny.send({"do": "stop", "engine": engine})
            case RestartEngine(engine, ranks):
                logger.info("engine %d of %s is restarted on request", engine, self._title)
                self._note(EventKind.RESTARTED, "on request", engine)
                incarnation = self._life.engines[engine].incarnation
                for number in range(engine, engine + ranks):
                    self._broker.send({"do": "restart", "engine": number, "incarnation": incarnation})
                self._nanny.send({"do": "stop", "engine": engine})

    def _perform_on_tasks(self, action: RetireEngines | DropEngine | RefuseTasks | AcceptTasks | Adapted) -> None:
        match action:
            case Adapted(name, before, after, why):
                logger.info("%s: set %s adapts from %d to %d: %s", self._title, name, before, after, why)
                self._note(EventKind.ADAPTED, f"set {name!r} adapts from {before} to {after} engines: {why}")
                self._note_sizes()
            case RetireEngines(name, engines, count, only_idle):
                order = {"do": "retire", "set": name, "engines": engines, "count": count, "only_idle": only_idle}
                self._broker.send(order)
            case DropEngine(engine, expected, why):
                if why:
                    logger.warning("%s: %s", self._title, why)
                    self._note(EventKind.FAILED, why, engine)
                self._broker.send({"do": "drop", "engine": engine, "expected": expected, "why": why})
            case RefuseTasks(why):
                logger.warning("%s has no engine left, tasks are refused", self._title)
                self._note(EventKind.REFUSING, "no engine is left, and none will come")
                self._broker.send({"do": "refuse", "why": f"no engine of {self._title} is left: {why}"})
            case AcceptTasks():
                self._note(EventKind.ACCEPTING, "engines are given another chance")
                self._broker.send({"do": "accept"})

    def _become_running(self) -> None:
        def change(record: Record) -> Record | None:
            return record.with_state(ClusterState.RUNNING) if record.state is ClusterState.CREATING else None

        if update(self._store, self._tag, change) is None:
            self._perform(self._life.end("its record was taken over or torn down before it was ready", "controller"))
        logger.info("%s is running", self._title)
        self._note(EventKind.RUNNING, f"{self._life.count(EngineState.UP)} engines are up")

    def _become_ending(self, reason: str, by: str, tail: str) -> None:
        logger.info("%s is ending: %s", self._title, reason)
        self._note(EventKind.ENDING, f"{reason} (by {by})")
        note(self._store, self._tag, lambda record: record.with_state(ClusterState.ENDING))
        self._nanny.send({"do": "end", "reason": reason, "by": by, "tail": tail})
        if self._life.ready_at is None:
            # The nanny may be importing, and read that only when it is done.
            os.kill(os.getppid(), signal.SIGTERM)

    # questions

    def _on_requests(self, client: int) -> None:
        try:
            for frames in self._hub.receive(client):
                self._on_request(client, bytes(frames[0]))
        except EOFError:
            self._hub.drop(client)
        except ValueError as error:
            logger.warning("whoever asks is cut off: %s", error)
            self._hub.drop(client)

    def _on_request(self, client: int, body: bytes) -> None:
        try:
            request = json.loads(body)
            if not same_secret(str(request["secret"]).encode(), self._secret):
                raise errors.NotAuthorized(f"wrong secret for {self._title}")
            self._verbs[request["verb"]](client, request)
        except errors.ClusterError as error:
            self._refuse(client, error)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            self._refuse(client, errors.ClusterError(f"request not understood: {error!r}"))

    def _reply(self, client: int, content: Mapping[str, Any]) -> None:
        self._hub.send(client, [json.dumps({"ok": True, **content}).encode()])

    def _refuse(self, client: int, error: errors.ClusterError) -> None:
        answer = {"ok": False, "error": type(error).__name__, "message": str(error)}
        self._hub.send(client, [json.dumps(answer).encode()])

    def _on_status(self, client: int, _: Mapping[str, Any]) -> None:
        self._asking_status.append(client)
        self._broker.send({"do": "load"})

    def _status(self) -> dict[str, Any]:
        now, life = time.monotonic(), self._life
        engines = [
            {
                "id": number,
                "set": engine.set,
                "state": str(engine.state),
                "incarnation": engine.incarnation,
                "pid": engine.pids.get(number),
                "host": engine.hosts.get(number, ""),
                "tasks": int(self._load["engines"].get(str(number), 0)),
                "seconds": round(now - engine.since, 3),
                "silent_seconds": self._load["silent"].get(str(number)),
            }
            for number, engine in sorted(life.engines.items())
        ]
        return {
            "state": str(self._state()),
            "sets": life.sets,
            "adapting": life.bounds(),
            "engines": engines,
            "tasks": {key: self._load[key] for key in ("queued", "running", "settled")},
            "clients": self._load["clients"],
            "reasons": life.reasons(),
            "ends_in": self._ends_in(now),
            "idle_seconds": life.idle_seconds(now),
        }

    def _state(self) -> ClusterState:
        if self._life.over:
            return ClusterState.ENDING
        return ClusterState.CREATING if self._life.ready_at is None else ClusterState.RUNNING

    def _ends_in(self, now: float) -> dict[str, float]:
        """Return the seconds until each limit that is running would end the cluster."""
        life, limits = self._life, self._life.limits
        found = {}
        if life.ready_at is not None and limits.lifetime is not None:
            found["lifetime"] = life.ready_at + limits.lifetime - now
        if life.ready_at is not None and limits.idle_timeout is not None and life.idle_since is not None:
            found["idle_timeout"] = max(life.idle_since, life.ready_at) + limits.idle_timeout - now
        return {name: round(seconds, 1) for name, seconds in found.items()}

    def _on_wait(self, client: int, request: Mapping[str, Any]) -> None:
        n = request["n"]
        wanted = sum(self._life.sets.values()) if n is None else int(n)
        self._waits.append(Wait(client, _until(request), n=wanted))

    def _answer_waits(self, now: float) -> None:
        self._waits = [wait for wait in self._waits if not self._answer(wait, now)]

    def _answer(self, wait: Wait, now: float) -> bool:
        """Answer a client that waits, if there is an answer; return whether there was."""
        match wait.answer(self._life, self._title, now):
            case None:
                return False
            case errors.ClusterError() as error:
                self._refuse(wait.client, error)
            case answer:
                self._reply(wait.client, answer)
        return True

    def _refuse_waits(self, reason: str, tail: str) -> None:
        text = f"{self._title}: {reason}\n{tail}".rstrip()
        failed = errors.LaunchError if self._life.ready_at is None else errors.ClusterEnded
        enders = [client for client, _, _ in self._asking_end]
        for client in [*(wait.client for wait in self._waits), *self._asking_status, *enders]:
            self._refuse(client, failed(text))
        for asking in (self._waits, self._asking_status, self._asking_end):
            asking.clear()

    def _on_scale(self, client: int, request: Mapping[str, Any]) -> None:
        name, n = self._set_of(request), int(request["n"])
        if not 0 <= n <= _MOST_ENGINES:
            raise errors.ClusterError(f"the number of engines is from 0 to {_MOST_ENGINES}, not {n}")
        logger.info("%s: set %s scales from %d to %d", self._title, name, self._life.sets[name], n)
        self._note(EventKind.SCALED, f"set {name!r} scales from {self._life.sets[name]} to {n} engines")
        self._perform(self._life.scale(name, n, time.monotonic(), float(request["drain"])))
        self._note_sizes()
        self._reply(client, {"n": n})

    def _on_adapt(self, client: int, request: Mapping[str, Any]) -> None:
        name, minimum, maximum = self._set_of(request), int(request["minimum"]), int(request["maximum"])
        if not 0 <= minimum <= maximum:
            raise errors.ClusterError(f"a set cannot have between {minimum} and {maximum} engines")
        if name in self._life.units:
            raise errors.ClusterError(f"{self._title}: set {name!r} is an MPI set, which cannot adapt to the load")
        logger.info("%s: set %s adapts to its load, from %d to %d engines", self._title, name, minimum, maximum)
        self._note(EventKind.ADAPTED, f"set {name!r} adapts to its load, from {minimum} to {maximum} engines")
        patience = float(request["patience"])
        self._perform(self._life.adapt(name, minimum, maximum, time.monotonic(), patience=patience))
        self._note_sizes()
        self._reply(client, {"n": self._life.sets[name]})

    def _set_of(self, request: Mapping[str, Any]) -> str:
        name = str(request["set"])
        if name not in self._life.sets:
            known = ", ".join(sorted(self._life.sets))
            raise errors.ClusterError(f"{self._title} has no engine set {name!r}; it has: {known}")
        return name

    def _note_sizes(self) -> None:
        """Tell broker and record what sizes the sets have, and whether the load decides on them."""
        sets, bounds = dict(self._life.sets), self._life.bounds()
        self._broker.send({"do": "adapts", "on": bool(bounds)})
        update(self._store, self._tag, lambda record: record._replace(sets=sets, adapting=bounds))

    def _on_restart(self, client: int, request: Mapping[str, Any]) -> None:
        wanted, until = choose(self._life, request["engines"], self._title), _until(request)
        was = {engine: self._life.engines[engine].incarnation for engine in wanted}
        self._perform(self._life.restart(wanted, time.monotonic()))
        self._waits.append(Wait(client, until, was=was))

    def _on_signal(self, client: int, request: Mapping[str, Any]) -> None:
        engines, signum = choose(self._life, request["engines"], self._title), int(request["signum"])
        # One that is not up yet has no handlers: most signals would end it.
        up = [engine for engine in engines if self._life.engines[engine].state in SERVING]
        launchers: list[str] = []
        if request["target"] == "launcher":
            launchers, up = launchers_of(self._life, engines, self._title), []
        logger.info("%s: signal %d to %s %s", self._title, signum, request["target"], up or launchers)
        order = {"do": "signal", "request": client, "signum": signum, "engines": up, "launchers": launchers}
        self._nanny.send(order)

    def _on_interrupt(self, client: int, request: Mapping[str, Any]) -> None:
        engines = choose(self._life, request["engines"], self._title)
        self._nanny.send({"do": "interrupt_running", "request": client, "engines": engines})

    def _on_own(self, client: int, request: Mapping[str, Any]) -> None:
        self._nanny.send({"do": "own", "request": client, "owner": request["owner"]})

    def _on_logs(self, client: int, request: Mapping[str, Any]) -> None:
        lines, parts = int(request["tail"]), log_parts(self._life, request["engines"], self._title)
        logs = {part: tail_of(log_path(self._folder, part), lines=lines) for part in parts}
        self._reply(client, {"logs": logs})

    def _on_events(self, client: int, request: Mapping[str, Any]) -> None:
        self._reply(client, {"events": self._events.tail(int(request["tail"]))})

    def _on_end(self, client: int, request: Mapping[str, Any]) -> None:
        end = End(str(request["reason"]), str(request["by"]))
        if request.get("idle_for") is not None:
            # What is known may be out of date; the broker's answer decides.
            self._asking_end.append((client, float(request["idle_for"]), end))
            self._broker.send({"do": "load"})
            return
        self._perform(self._life.end(end.reason, end.by))
        self._reply(client, {})

    def _end_if_idle(self, now: float) -> None:
        """End the cluster for those who want that if it was idle for so long."""
        asking, self._asking_end = self._asking_end, []
        for client, wanted, end in asking:
            idle = self._life.idle_seconds(now)
            if self._life.over is None and (idle is None or idle < wanted):
                self._refuse(client, errors.ClusterInUse(f"{self._title} was not idle for {wanted:g} s"))
                continue
            self._perform(self._life.end(end.reason, end.by))
            self._reply(client, {})

    def _wait_seconds(self) -> float | None:
        times = [wait.until for wait in self._waits]
        deadline = self._life.deadline()
        if deadline is not None:
            times.append(deadline)
        # A little later than due: waking a moment too early would mean waking twice.
        return min(max(0.0, min(times) - time.monotonic()) + 0.001, _LONGEST_WAIT) if times else None


def _until(request: Mapping[str, Any]) -> float:
    """Return when a question's limit is over; ValueError if it is not a number."""
    limit = float(request["limit"])
    if math.isnan(limit):
        raise ValueError("a limit that is not a number")
    return time.monotonic() + limit


def run(boot: Mapping[str, Any], nanny: Link, broker: Link) -> None:
    """Be the controller in a fork of the nanny."""
    # The nanny says when it is over; a signal to the group is for the engines.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    Controller(boot, nanny, broker).run()
