"""Routes tasks from clients to engines and results back: performs what `scheduling` decides, opens no pickle.

One plain loop over its partners' sockets and two links (to the nanny: which engines died and how far they had come; to
the controller: who is up, how busy). A partner must show the cluster's secret before anything else is heard.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import wire
from .admission import Admission
from .clients import Clients
from .delivery import Delivery, lost_results
from .errors import ClusterError, NotAuthorized
from .gangs import Gangs
from .hub import Hub
from .incarnation import TASK, secret_of
from .interrupts import Why
from .inventory import Inventory, work_of
from .link import Link
from .load import LoadReport
from .process import end_all, tagged
from .record import Ended, title_of, utc_now
from .recovery import recovered
from .scheduling import Assignment, Lost, Scheduler, Work
from .seats import NAME_THE_RANKS, Seats
from .segments import Copies, Reader, folder_of, remove
from .store import open_store
from .timeouts import Timeouts
from .wanted import kinds_of
from .wire import Buffer, CancelOutcome, Kind, Notice, Status

__all__ = ["Broker", "run"]

logger = logging.getLogger("ipcluster.broker")

#: Seconds for clients to take the last message.
_LINGER = 0.3

#: Bytes of tasks that are kept; who submits more has to wait until some are settled.
_MOST_KEPT_BYTES = 1 << 30


class Broker:
    """Runs until the controller or the nanny says that it is over, or is gone."""

    def __init__(self, boot: Mapping[str, Any], nanny: Link, controller: Link) -> None:
        self._tag = str(boot["tag"])
        self._title = title_of(self._tag)
        self._folder = str(boot["folder"])
        self._nanny, self._controller = nanny, controller
        self._store = open_store(str(boot["store"]))
        self._keep_seconds = float(boot["spec"]["keep_results"])
        self._packages = tuple(map(str, boot["spec"].get("packages", ())))
        self._scheduler = Scheduler(boot["spec"]["max_tasks"])
        kinds = kinds_of(boot["spec"])
        self._segments = folder_of(self._tag.rpartition("/")[2])
        self._copies = Copies(Reader(self._segments))
        self._seats = Seats(self._title, kinds, self._copies)
        self._gangs = Gangs()
        self._known: set[int] = set()  # engines that are seated, or will be again
        # Why none is left, and none will come, for tasks that any might take.
        self._no_engine = "" if "process" in kinds.values() else f"{self._title} has MPI sets only: {NAME_THE_RANKS}"
        self._told_idle: set[int] = set()
        self._leaving: dict[int, str] = {}  # engines that get nothing new, and why they are about to go
        self._timeouts = Timeouts()
        self._inventory = Inventory()
        self._halted: set[int] = set()  # clients that have to wait until less is kept
        self._report = LoadReport(time.monotonic(), time.monotonic())
        self._relatives = {"nanny", "controller"}
        self._over = ""

    # the loop

    def run(self) -> None:
        """Serve until it is over."""
        self._admission = Admission(self._title, secret_of(self._store, self._tag), self._packages)
        self._hub = Hub(self._folder, TASK)
        self._clients = Clients(self._hub, self._segments)
        self._delivery = Delivery(self._hub.send, Reader(self._segments), self._keep_seconds, self._hub.is_behind)
        self._controller.send({"event": "bound"})
        for link in (self._nanny, self._controller):
            self._hub.watch(link.fileno())
        while not self._over:
            watched, speaking = self._hub.wait(self._wait_seconds())
            # The controller first: it tells of a restart before the nanny tells of the death that comes of it.
            if self._controller.fileno() in watched:
                self._from(self._controller, self._on_controller, "controller")
            if self._nanny.fileno() in watched:
                self._from(self._nanny, self._on_nanny, "nanny")
            for partner in speaking:
                self._hear(partner)
            for partner in self._clients.ended(watched):
                self._hear_out(partner)
            self._end_overdue(time.monotonic())
            self._dispatch()
            self._note_idle()
            self._note_load()
        for client in self._clients:
            self._hub.send(client, Notice(Kind.END, {"reason": self._over}).encode())
        self._hub.close(_LINGER)

    def _wait_seconds(self) -> float | None:
        deadlines = [time for time in (self._timeouts.deadline(), self._delivery.deadline()) if time is not None]
        return max(0.0, min(deadlines) - time.monotonic()) + 0.001 if deadlines else None

    def _from(self, link: Link, handle: Callable[[Mapping[str, Any], bytes], None], name: str) -> None:
        try:
            for message, blob in link.receive():
                handle(message, blob)
        except EOFError:
            self._hub.unwatch(link.fileno())
            self._on_relative_gone(name)

    def _on_relative_gone(self, name: str) -> None:
        """Go on until the other one, who saw it too, says why it is over; alone, clean up."""
        self._relatives.discard(name)
        if not self._relatives:
            self._over = self._over or f"{self._title} is broken: its nanny and its controller died"
            end_all(lambda: tagged(self._tag), grace=0.0, timeout=10.0)

    def _on_end(self, message: Mapping[str, Any]) -> None:
        ended = Ended(str(message["reason"]), utc_now(), str(message["by"]), str(message["tail"]))
        self._over = ended.message(self._title)

    # from the relatives

    def _on_nanny(self, message: Mapping[str, Any], blob: bytes) -> None:
        if message.get("do") == "end":
            self._on_end(message)
            return
        engine = int(message["engine"])
        cause, tail = str(message["cause"]), str(message["tail"])
        unit = [int(rank) for rank in message.get("unit", ())]
        for lost in self._scheduler.give_up_on(unit):
            self._settle_lost(lost, f"{message['whole']} was lost ({cause}) before this task began", cause=cause)
        seat = self._seats.get(engine)
        if seat is None or seat.incarnation != message["incarnation"]:
            return  # it had never registered
        self._hear_out(seat.partner)  # what it had sent before its end comes first
        for done in recovered(engine, message["chunks"], blob, self._scheduler.settled):
            self._on_done(engine, done)
        begun = {int(part["chunk"]): int(part["begun"]) for part in message["chunks"]}
        self._seats.leave(engine)
        timeout = self._timeouts.lost(engine)
        self._told_idle.discard(engine)
        if engine in self._leaving:
            cause = f"{self._leaving.pop(engine)}, {cause}"
        # What one rank had not begun would wait for others that had.
        for lost in self._scheduler.engine_lost(engine, begun, all_begun=bool(unit)):
            if timeout is not None:
                text = (
                    f"the task ran for more than {timeout:g} s, could not be interrupted, and was ended with its engine"
                )
                self._settle_lost(lost, text, error="TaskTimeout")
                continue
            died = f"was lost with {message['whole']}" if unit else "died"
            text = f"engine {engine} on {seat.host} {died} ({cause}) while it ran this task"
            text = f"{text}; its last output:\n{tail}" if tail else text
            self._settle_lost(lost, text, engine=engine, cause=cause, output=tail)
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Fail what waits for any engine, when none is left."""
        if self._no_engine:
            for lost in self._scheduler.give_up_waiting():
                self._settle_lost(lost, self._no_engine)

    def _on_controller(self, message: Mapping[str, Any], _: bytes) -> None:
        match message["do"]:
            case "load":
                self._report.note(self._scheduler, len(self._clients), time.monotonic())
                self._tell_load()
            case "adapts":
                self._report.adapts = bool(message["on"])
            case "retire":
                able, only_idle = map(int, message["engines"]), bool(message["only_idle"])
                chosen = self._scheduler.retire(able, int(message["count"]), only_idle=only_idle)
                self._leaving.update(dict.fromkeys(chosen, "it was scaled down and had not finished in time"))
                reply = {"event": "retired", "set": message["set"], "asked": message["count"], "engines": chosen}
                self._controller.send(reply)
            case "restart":
                self._on_restart(int(message["engine"]), int(message["incarnation"]))
            case "drop":
                engine, why = int(message["engine"]), str(message["why"])
                self._known.discard(engine)
                remove(self._segments, f"e{engine}", free_only=True)
                for lost in self._scheduler.engine_gone(engine, map(int, message["expected"])):
                    self._settle_lost(lost, why or f"engine {engine} left before it could take this task")
            case "refuse":
                self._no_engine = str(message["why"])
                self._refuse_waiting()
            case "accept":
                self._no_engine = ""
            case "end":
                self._on_end(message)
            case other:
                logger.error("unknown command %r from the controller", other)

    def _on_restart(self, engine: int, incarnation: int) -> None:
        """Give an engine nothing more, unless it is gone, or its next incarnation is here already."""
        if engine in self._seats and self._seats[engine].incarnation == incarnation:
            self._scheduler.suspend(engine)
            self._leaving[engine] = "it was restarted on request"

    # from clients and engines

    def _hear(self, partner: int) -> bool:
        """Take what a partner has sent; return whether there was anything."""
        try:
            messages = self._hub.receive(partner)
        except (EOFError, ValueError) as error:
            if isinstance(error, ValueError):
                logger.warning("a partner is cut off: %s", error)
            self._partner_gone(partner)
            return False
        if not messages and partner in self._clients:  # a part of one has come
            self._report.touch(time.monotonic())
        for frames in messages:
            try:
                self._on_message(partner, frames)
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                logger.warning("message of %d frames not understood and dropped: %r", len(frames), error)
        return bool(messages)

    def _hear_out(self, partner: int) -> None:
        """Take the last that a partner has sent whose process is gone."""
        while self._hear(partner):
            pass
        self._partner_gone(partner)

    def _partner_gone(self, partner: int) -> None:
        """Close a connection. What became of an engine is for the nanny to tell."""
        if partner in self._clients:
            self._client_gone(partner)
        self._hub.drop(partner)

    def _on_message(self, partner: int, frames: Sequence[Buffer]) -> None:
        kind = wire.kind_of(frames)
        engine = self._seats.engine_of(partner)
        if kind is Kind.HELLO:
            self._on_hello(partner, Notice.decode(frames).data)
        elif engine is not None:
            if kind is Kind.DONE:
                self._on_done(engine, wire.Done.decode(frames))
            elif kind is Kind.NOTE:
                chunk, place, body = wire.Note.decode(frames)
                self._delivery.pass_on(self._scheduler.task_at(engine, chunk, place), body)
            elif kind is Kind.BYE:
                self._scheduler.suspend(engine)
                self._leaving.setdefault(engine, "it made room for the next one")
                self._hub.send(partner, Notice(Kind.BYE, {}).encode())
                incarnation = self._seats[engine].incarnation
                self._controller.send({"event": "leaves", "engine": engine, "incarnation": incarnation})
        elif partner in self._clients:
            self._on_client(partner, kind, frames)
        elif kind is not Kind.BYE:
            error = NotAuthorized(f"say hello with the secret of {self._title} first")
            self._refuse_partner(partner, "stranger", error)

    def _refuse_partner(self, partner: int, role: str, error: ClusterError) -> None:
        """Say why, and hang up."""
        told = self._admission.refusal(role, error, time.monotonic())
        self._hub.send(partner, Notice(Kind.REFUSED, told).encode())
        self._partner_gone(partner)

    def _on_hello(self, partner: int, hello: Mapping[str, Any]) -> None:
        engine = int(hello["engine"]) if hello.get("role") == "engine" else None
        try:
            welcome = {"warning": self._admission.check(hello)}
            taken = engine in self._seats if engine is not None else self._delivery.has(str(hello["client"]))
            if taken or partner in self._clients or self._seats.engine_of(partner) is not None:
                raise NotAuthorized(f"{self._title} has a partner of that name already")
        except ClusterError as error:
            self._refuse_partner(partner, str(hello.get("role")), error)
            return
        self._hub.trust(partner)
        self._hub.send(partner, Notice(Kind.WELCOME, welcome).encode())
        if engine is not None:
            engine, seat = self._seats.join(partner, hello)
            self._known.add(engine)
            self._scheduler.engine_up(engine, named_only=seat.ranks is not None)
            up = {"event": "up", "engine": engine, "incarnation": seat.incarnation, "host": seat.host}
            self._controller.send(up)
        else:
            self._delivery.join(self._clients.join(partner, hello), partner)

    def _client_gone(self, partner: int) -> None:
        """Forget a client; its tasks go on, and their results are kept."""
        name = self._clients.leave(partner)
        if name is None:
            return
        self._delivery.leave(name)
        for work in self._gangs.leave(partner):
            self._refuse(work, "its client left before the tasks beside it came")
        self._free(self._inventory.forget_client(name))
        self._forget_client(name)

    def _forget_client(self, name: str) -> None:
        if self._delivery.partner_of(name) is None and not self._scheduler.has_work(name):
            self._clients.clean(name)

    def _on_client(self, partner: int, kind: Kind, frames: Sequence[Buffer]) -> None:
        match kind:
            case Kind.SUBMIT:
                self._on_submit(partner, wire.Submit.decode(frames))
            case Kind.FUNCTION:
                self._inventory.add_function(self._clients.name(partner), wire.Function.decode(frames))
            case Kind.VALUE:
                self._inventory.add_value(self._clients.name(partner), wire.Value.decode(frames))
            case Kind.DROP:
                self._free(self._inventory.drop_values([wire.Drop.decode(frames).key]))
            case Kind.CANCEL:
                number, running = wire.Cancel.decode(frames)
                outcome = self._cancel(self._clients.name(partner), number, running=running)
                self._hub.send(partner, wire.Cancelled(number, outcome).encode())
            case Kind.ASK:
                self._on_question(partner, Notice.decode(frames).data)
            case Kind.BYE:
                self._client_gone(partner)
            case _:
                raise ValueError(f"{kind!r} is not for a client to send")

    def _cancel(self, client: str, number: int, *, running: bool) -> CancelOutcome:
        work = self._scheduler.cancel(client, number)
        if work is not None:
            # Others may wait for it too, or ask later.
            self._delivery.deliver(
                client, wire.Results(number, 1, wire.lengths([b""]), bytes((Status.CANCELLED,)), b"")
            )
            self._release(work)
            return CancelOutcome.DONE
        holder = self._scheduler.holder(client, number) if running else None
        if holder is None:
            return CancelOutcome.TOO_LATE
        self._interrupt(*holder)
        return CancelOutcome.ASKED

    def _interrupt(self, engine: int, chunk: int, index: int) -> None:
        target = {"engine": engine, "incarnation": self._seats[engine].incarnation, "chunk": chunk, "index": index}
        self._nanny.send({"do": "interrupt", **target, "why": Why.CANCEL})

    def _on_question(self, partner: int, question: Mapping[str, Any]) -> None:
        match question["about"]:
            case "engines":
                away = self._leaving.keys() | (self._seats.keys() - self._known)
                answer = {"id": question["id"], **self._seats.answer(question.get("set"), away)}
                self._hub.send(partner, Notice(Kind.ANSWER, answer).encode())
            case "result":
                request, (client, number) = wire.number_of(question["id"]), wire.parts_of(str(question["task"]))
                unsettled = self._scheduler.is_unsettled(client, number)
                self._delivery.fetch(partner, request, client, number, unsettled=unsettled)
            case "cancel":
                outcomes = [self._cancel(*wire.parts_of(str(task)), running=True) for task in question["tasks"]]
                self._hub.send(partner, Notice(Kind.ANSWER, {"id": question["id"], "outcomes": outcomes}).encode())
            case other:
                raise ValueError(f"a question about {other!r}")

    def _on_submit(self, partner: int, message: wire.Submit) -> None:
        work = work_of(self._clients.name(partner), message)
        gang = (message.options or {}).get("gang")
        if gang is not None and self._seats.have_ranks(work.engines or ()):
            work.retries = 0  # tried again alone, a part of a call would wait for others that are through
        refusal = ""
        if work.engines is not None and not work.engines & self._known:
            refusal = f"no such engine: {sorted(work.engines)}; up are: {sorted(self._seats)}"
        elif work.engines is None:
            refusal = self._no_engine
        refusal = refusal or self._inventory.add_tasks(work, message)
        for member, reason in self._gangs.join(partner, gang, work, refusal):
            if reason:
                self._refuse(member, reason)
            else:
                self._submit(member)
        if self._inventory.task_bytes > _MOST_KEPT_BYTES:
            self._halted.add(partner)
            self._hub.pause(partner, on=True)

    def _submit(self, work: Work) -> None:
        try:
            self._scheduler.submit(work)
        except ValueError:
            self._free(self._inventory.settle(work))
            raise

    def _refuse(self, work: Work, text: str) -> None:
        for index in range(work.count):
            self._settle_lost(Lost(work, index, None), text)

    def _free(self, values: Iterable[tuple[bytes, str]]) -> None:
        """Have everybody forget values that nobody needs any more."""
        for key, client in values:
            gone = wire.Drop(key).encode()
            for seat in self._seats.values():
                if key in seat.shelf.values:
                    seat.shelf.values.discard(key)
                    self._hub.send(seat.partner, gone)
            owner = self._delivery.partner_of(client)
            if owner is not None:
                self._hub.send(owner, gone)

    def _on_done(self, engine: int, message: wire.Done) -> None:
        piece = self._scheduler.done(engine, message.chunk, message.tasks, message.busy / 1e9)
        if engine in self._seats:
            self._seats[engine].silent_since = None if self._scheduler.is_idle(engine) else time.monotonic()
        if piece is None:
            return
        count = piece.stop - piece.start
        if count != message.tasks:
            logger.error("engine %d told of %d tasks where %d were expected", engine, message.tasks, count)
            return
        results = wire.Results(
            piece.work.base + piece.start, count, message.sizes, message.statuses, message.body, message.buffers
        )
        timeout = self._timeouts.stop(engine, message.chunk) if piece.work.timeout is not None else None
        if timeout is not None and message.statuses[0] == Status.CANCELLED:
            text = f"the task ran for more than {timeout:g} s and was interrupted"
            results = lost_results(results.base, piece.work.told(text), error="TaskTimeout")
        self._delivery.deliver(str(piece.work.client), results)
        self._release(piece.work)

    def _note_idle(self) -> None:
        """Tell the controller, once, of each engine that is to leave and has nothing left to do."""
        for engine in self._leaving.keys() - self._told_idle:
            if self._scheduler.is_idle(engine):
                self._told_idle.add(engine)
                self._controller.send({"event": "idle", "engine": engine})

    def _end_overdue(self, now: float) -> None:
        self._delivery.expire(now)
        for task in self._timeouts.due(now):
            if task.stuck:
                self._controller.send({"event": "stuck", "engine": task.engine})
            else:
                self._interrupt(task.engine, task.chunk, 0)

    # to engines and clients

    def _dispatch(self) -> None:
        for assignment in self._scheduler.assign():
            self._send_chunk(assignment)
        self._copies.forget()

    def _send_chunk(self, assignment: Assignment) -> None:
        seat, work = self._seats[assignment.engine], assignment.slice.work
        if seat.silent_since is None:
            seat.silent_since = time.monotonic()
        for frames in self._inventory.messages(assignment, seat.shelf):
            self._hub.send(seat.partner, frames)
        if work.timeout is not None:
            self._timeouts.start(assignment.engine, assignment.chunk, work.timeout, time.monotonic())

    def _settle_lost(self, lost: Lost, message: str, **details: object) -> None:
        details.setdefault("engine", lost.engine)
        results = lost_results(lost.work.base + lost.index, lost.work.told(message), **details)
        self._delivery.deliver(str(lost.work.client), results)
        self._release(lost.work)

    def _release(self, work: Work) -> None:
        """Forget a work once its last task is settled."""
        if work.unsettled:
            return
        self._free(self._inventory.settle(work))
        self._forget_client(str(work.client))
        if self._halted and self._inventory.task_bytes < _MOST_KEPT_BYTES // 2:
            for partner in self._halted:
                self._hub.pause(partner, on=False)
            self._halted.clear()

    # load

    def _note_load(self) -> None:
        if self._report.note(self._scheduler, len(self._clients), time.monotonic()):
            self._tell_load()

    def _tell_load(self) -> None:
        told = self._report.tell(self._scheduler, len(self._clients))
        self._controller.send({"event": "load", **told, "silent": self._seats.silent(time.monotonic())})


def run(boot: Mapping[str, Any], nanny: Link, controller: Link) -> None:
    """Be the broker in a fork of the nanny."""
    # Nanny or controller say when it is over; a signal to the group is for the engines.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    Broker(boot, nanny, controller).run()
