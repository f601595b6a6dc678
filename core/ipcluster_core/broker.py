"""Routes tasks from clients to engines and results back: performs what `scheduling` decides, opens no pickle.

One plain loop over its partners' sockets and two links (to the nanny: which engines died and how far they had come; to
the controller: who is up, how busy). A partner must show the cluster's secret before anything else is heard.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import wire
from .admission import Admission
from .errors import ClusterError, NotAuthorized
from .hub import Hub
from .incarnation import TASK, secret_of
from .link import Link
from .process import Identity, end_all, liveness, tagged
from .record import Liveness, title_of
from .scheduling import Assignment, Lost, Scheduler, Work
from .segments import Reader, folder_of, remove
from .store import open_store
from .values import Values
from .wire import Buffer, Kind, Notice, Status

__all__ = ["Broker", "run"]

logger = logging.getLogger("ipcluster.broker")

#: Seconds for clients to take the last message.
_LINGER = 0.3

#: Bytes of tasks that are kept; who submits more has to wait until some are settled.
_MOST_KEPT_BYTES = 1 << 30


@dataclass(slots=True, eq=False)
class _Payload:
    """The bytes of a work, kept until its last task is settled."""

    offsets: list[int]
    sizes: Buffer
    body: Buffer
    buffers: Sequence[Buffer]
    refs: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of it all."""
        return len(self.sizes) + len(self.body) + sum(map(len, self.buffers))


@dataclass(slots=True)
class _Seat:
    """An engine's connection. `partner` is its number with the hub."""

    partner: int
    incarnation: int
    host: str
    functions: set[bytes] = field(default_factory=set)
    values: set[bytes] = field(default_factory=set)


class Broker:
    """Runs until the controller or the nanny says that it is over, or is gone."""

    def __init__(self, boot: Mapping[str, Any], nanny: Link, controller: Link) -> None:
        self._tag = str(boot["tag"])
        self._title = title_of(self._tag)
        self._folder = str(boot["folder"])
        self._nanny, self._controller = nanny, controller
        self._store = open_store(str(boot["store"]))
        self._scheduler = Scheduler()
        self._seats: dict[int, _Seat] = {}
        self._engine_of: dict[int, int] = {}  # by partner
        self._told_idle: set[int] = set()
        self._leaving: dict[int, str] = {}  # engines that get nothing new, and why they are about to go
        self._clients: dict[int, int | None] = {}  # partner -> pidfd
        self._segments = folder_of(self._tag.rpartition("/")[2])
        self._reader = Reader(self._segments)
        self._prefixes: dict[int, str] = {}  # of clients' segments, until neither they nor their tasks are there
        self._functions: dict[bytes, bytes] = {}
        self._payloads: dict[Work, _Payload] = {}
        self._kept_bytes = 0
        self._halted: set[int] = set()  # clients that have to wait until less is kept
        self._values: Values[wire.Value] = Values()
        self._idle_since: float | None = time.monotonic()
        self._alone_since: float | None = time.monotonic()
        self._told = (False, False)  # busy, attended by clients: as the controller knows it
        self._relatives = {"nanny", "controller"}
        self._over = ""

    # the loop

    def run(self) -> None:
        """Serve until it is over."""
        self._admission = Admission(self._title, secret_of(self._store, self._tag))
        self._hub = Hub(self._folder, TASK)
        self._controller.send({"event": "bound"})
        for link in (self._nanny, self._controller):
            self._hub.watch(link.fileno())
        while not self._over:
            watched, speaking = self._hub.wait()
            if self._nanny.fileno() in watched:
                self._from(self._nanny, self._on_nanny, "nanny")
            if self._controller.fileno() in watched:
                self._from(self._controller, self._on_controller, "controller")
            for partner in speaking:
                self._hear(partner)
            for partner, pidfd in list(self._clients.items()):
                if pidfd in watched:
                    self._hear_out(partner)
            self._dispatch()
            self._note_idle()
            self._note_load()
        for client in self._clients:
            self._hub.send(client, Notice(Kind.END, {"reason": self._over}).encode())
        self._hub.close(_LINGER)

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
        text = f"{self._title} ended: {message['reason']} (by {message['by']})"
        self._over = f"{text}\n{message['tail']}".rstrip()

    # from the relatives

    def _on_nanny(self, message: Mapping[str, Any], blob: bytes) -> None:
        if message.get("do") == "end":
            self._on_end(message)
            return
        engine = int(message["engine"])
        seat = self._seats.get(engine)
        if seat is None or seat.incarnation != message["incarnation"]:
            return  # it had never registered
        self._hear_out(seat.partner)  # what it had sent before its end comes first
        start = 0
        for chunk in message["chunks"]:
            start = self._recover(engine, chunk, blob, start)
        begun = {int(chunk["chunk"]): int(chunk["begun"]) for chunk in message["chunks"]}
        del self._seats[engine], self._engine_of[seat.partner]
        cause, tail = str(message["cause"]), str(message["tail"])
        self._told_idle.discard(engine)
        if engine in self._leaving:
            cause = f"{self._leaving.pop(engine)}, {cause}"
        for lost in self._scheduler.engine_lost(engine, begun):
            self._tell_lost(lost, f"engine {engine} on {seat.host} died ({cause}) while it ran this task", cause, tail)

    def _recover(self, engine: int, chunk: Mapping[str, Any], blob: bytes, start: int) -> int:
        """Settle what a dead engine had finished and not told; return where the next chunk's results begin."""
        number = int(chunk["chunk"])
        settled = self._scheduler.settled(engine, number)
        text = f"engine {engine} died right after this task had finished; its result was too large to be saved"
        unsaved = json.dumps({"message": text, "engine": engine}).encode()
        for index, (status, size) in enumerate(chunk["finished"]):
            payload = blob[start : start + size] if size >= 0 else unsaved
            start += max(0, size)
            if settled is None or index < settled:
                continue
            outcome = bytes((status if size >= 0 else Status.LOST,))
            self._on_done(engine, wire.Done(number, index, 1, -1, wire.lengths([payload]), outcome, payload))
        return start

    def _on_controller(self, message: Mapping[str, Any], _: bytes) -> None:
        match message["do"]:
            case "load":
                self._note_load()
                self._tell_load()
            case "retire":
                chosen = self._scheduler.retire(map(int, message["engines"]), int(message["count"]))
                self._leaving.update(dict.fromkeys(chosen, "it was scaled down and had not finished in time"))
                reply = {"event": "retired", "set": message["set"], "asked": message["count"], "engines": chosen}
                self._controller.send(reply)
            case "restart":
                engine = int(message["engine"])
                self._scheduler.suspend(engine)
                self._leaving[engine] = "it was restarted on request"
            case "drop":
                remove(self._segments, f"e{int(message['engine'])}", free_only=True)
                for lost in self._scheduler.engine_gone(int(message["engine"]), map(int, message["expected"])):
                    self._tell_lost(lost, f"engine {message['engine']} left before it could take this task", "", "")
            case "end":
                self._on_end(message)
            case other:
                logger.error("unknown command %r from the controller", other)

    # from clients and engines

    def _hear(self, partner: int) -> bool:
        """Take what a partner has sent; return whether there was anything."""
        try:
            messages = self._hub.receive(partner)
        except EOFError:
            self._partner_gone(partner)
            return False
        except ValueError as error:
            logger.warning("a partner is cut off: %s", error)
            self._partner_gone(partner)
            return False
        for frames in messages:
            try:
                self._on_message(partner, frames)
            except (ValueError, KeyError, TypeError) as error:
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
        engine = self._engine_of.get(partner)
        if kind is Kind.HELLO:
            self._on_hello(partner, Notice.decode(frames).data)
        elif engine is not None:
            if kind is Kind.DONE:
                self._on_done(engine, wire.Done.decode(frames))
        elif partner in self._clients:
            self._on_client(partner, kind, frames)
        elif kind is not Kind.BYE:
            error = NotAuthorized(f"say hello with the secret of {self._title} first")
            self._refuse_partner(partner, "stranger", error)

    def _refuse_partner(self, partner: int, role: str, error: ClusterError) -> None:
        """Say why, and hang up."""
        told = self._admission.refusal(role, error, time.monotonic())
        self._hub.send(partner, Notice(Kind.REFUSED, told).encode())
        self._hub.drop(partner)

    def _on_hello(self, partner: int, hello: Mapping[str, Any]) -> None:
        try:
            welcome = {"warning": self._admission.check(hello)}
        except ClusterError as error:
            self._refuse_partner(partner, str(hello.get("role")), error)
            return
        self._hub.trust(partner)
        self._hub.send(partner, Notice(Kind.WELCOME, welcome).encode())
        if hello["role"] == "engine":
            engine, incarnation = int(hello["engine"]), int(hello["incarnation"])
            self._seats[engine] = _Seat(partner, incarnation, str(hello["host"]))
            self._engine_of[partner] = engine
            self._scheduler.engine_up(engine)
            self._controller.send({"event": "up", "engine": engine, "incarnation": incarnation})
        else:
            self._clients[partner] = self._watch(hello["process"])
            self._prefixes[partner] = str(hello["segments"])
            self._alone_since = None

    def _watch(self, data: Mapping[str, Any]) -> int | None:
        """Return a pidfd of a client's process, to know at once when it is gone."""
        who = Identity.from_dict(data)
        try:
            pidfd = os.pidfd_open(who.pid)
        except OSError:
            return None
        if liveness(who) is not Liveness.ALIVE:
            os.close(pidfd)
            return None
        self._hub.watch(pidfd)
        return pidfd

    def _client_gone(self, partner: int) -> None:
        """Forget a client; its tasks go on."""
        pidfd = self._clients.pop(partner, None)
        if pidfd is not None:
            self._hub.unwatch(pidfd)
            os.close(pidfd)
        if not self._clients:
            self._alone_since = time.monotonic()
        self._free(self._values.drop(self._values.of_client(partner)))
        self._forget_client(partner)

    def _forget_client(self, partner: Any) -> None:  # noqa: ANN401 - a work's client is any hashable to the scheduler
        """Remove what a client has left in shared memory, once it is gone and its last task is settled."""
        if partner in self._prefixes and partner not in self._clients and not self._scheduler.has_work(partner):
            remove(self._segments, self._prefixes.pop(partner))

    def _on_client(self, partner: int, kind: Kind, frames: Sequence[Buffer]) -> None:
        match kind:
            case Kind.SUBMIT:
                self._on_submit(partner, wire.Submit.decode(frames))
            case Kind.FUNCTION:
                function = wire.Function.decode(frames)
                self._functions[function.key] = bytes(function.blob)
            case Kind.VALUE:
                value = wire.Value.decode(frames)
                self._values.put(value.key, partner, value)
            case Kind.DROP:
                self._free(self._values.drop([wire.Drop.decode(frames).key]))
            case Kind.CANCEL:
                number = wire.Cancel.decode(frames).number
                work = self._scheduler.cancel(partner, number)
                if work is not None:
                    self._release(work)
                self._hub.send(partner, wire.Cancelled(number, work is not None).encode())
            case Kind.ASK:
                question = Notice.decode(frames).data
                answer = {"id": question["id"], "engines": sorted(self._seats.keys() - self._leaving.keys())}
                self._hub.send(partner, Notice(Kind.ANSWER, answer).encode())
            case Kind.BYE:
                self._client_gone(partner)
            case _:
                raise ValueError(f"{kind!r} is not for a client to send")

    def _on_submit(self, client: int, message: wire.Submit) -> None:
        options = message.options or {}
        engines = options.get("engines")
        wanted = None if engines is None else frozenset(map(int, engines))
        work = Work(client, message.base, message.tasks, message.function, wanted, int(options.get("retries", 0)))
        ends = wire.offsets(message.sizes, message.tasks)
        if ends[-1] != len(message.body) or message.function not in self._functions:
            raise ValueError("a submit whose sizes do not fit, or of an unknown function")
        if wanted is not None and not wanted & self._seats.keys():
            self._refuse(work, f"no such engine: {sorted(wanted)}; up are: {sorted(self._seats)}")
            return
        refs = [bytes.fromhex(key) for key in options.get("refs", ())]
        if self._values.missing(refs):
            self._refuse(work, "a value that it refers to is not (or no longer) here; was it put by this client?")
            return
        self._values.take(refs)
        payload = self._payloads[work] = _Payload(ends, message.sizes, message.body, message.buffers, refs)
        self._scheduler.submit(work)
        self._kept_bytes += payload.size
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._halted.add(client)
            self._hub.pause(client, on=True)

    def _refuse(self, work: Work, text: str) -> None:
        for index in range(work.count):
            self._tell_lost(Lost(work, index, None), text, "", "")

    def _free(self, keys: Iterable[bytes]) -> None:
        """Have everybody forget values that nobody needs any more."""
        for key in keys:
            gone = wire.Drop(key).encode()
            for seat in self._seats.values():
                if key in seat.values:
                    seat.values.discard(key)
                    self._hub.send(seat.partner, gone)
            if self._values.owner(key) in self._clients:
                self._tell(self._values.owner(key), gone)
            self._values.remove(key)

    def _on_done(self, engine: int, message: wire.Done) -> None:
        piece = self._scheduler.done(engine, message.chunk, message.tasks, message.busy / 1e9)
        if piece is None:
            return
        count = piece.stop - piece.start
        if count != message.tasks:
            logger.error("engine %d told of %d tasks where %d were expected", engine, message.tasks, count)
            return
        results = wire.Results(
            piece.work.base + piece.start, count, message.sizes, message.statuses, message.body, message.buffers
        )
        if piece.work.client in self._clients:
            self._tell(piece.work.client, results.encode())
        else:
            self._reader.release(message.buffers)
        self._release(piece.work)

    def _note_idle(self) -> None:
        """Tell the controller, once, of each engine that is to leave and has nothing left to do."""
        for engine in self._leaving.keys() - self._told_idle:
            if self._scheduler.is_idle(engine):
                self._told_idle.add(engine)
                self._controller.send({"event": "idle", "engine": engine})

    # to engines and clients

    def _dispatch(self) -> None:
        for assignment in self._scheduler.assign():
            self._send_chunk(assignment)

    def _send_chunk(self, assignment: Assignment) -> None:
        piece, seat = assignment.slice, self._seats[assignment.engine]
        work, payload = piece.work, self._payloads[piece.work]
        ends = payload.offsets
        body = memoryview(payload.body)[ends[piece.start] : ends[piece.stop]]
        sizes = payload.sizes[8 * piece.start : 8 * piece.stop]
        for key in payload.refs:
            if key not in seat.values:
                seat.values.add(key)
                self._hub.send(seat.partner, self._values.content(key).encode())
        function = bytes(work.function)  # type: ignore[call-overload]
        blob: Buffer = b""
        if function not in seat.functions:
            seat.functions.add(function)
            blob = self._functions[function]
        chunk = wire.Chunk(
            assignment.chunk,
            work.base + piece.start,
            piece.stop - piece.start,
            function,
            sizes,
            body,
            blob,
            payload.buffers,
        )
        self._hub.send(seat.partner, chunk.encode())

    def _tell(self, client: Any, frames: Sequence[Buffer]) -> None:  # noqa: ANN401 - any hashable to the scheduler
        self._hub.send(client, frames)

    def _tell_lost(self, lost: Lost, message: str, cause: str, tail: str) -> None:
        if tail:
            message = f"{message}; its last output:\n{tail}"
        content = {"message": f"{message}", "engine": lost.engine, "cause": cause, "output": tail}
        payload = json.dumps(content).encode()
        number = lost.work.base + lost.index
        results = wire.Results(number, 1, wire.lengths([payload]), bytes((Status.LOST,)), payload)
        self._tell(lost.work.client, results.encode())
        self._release(lost.work)

    def _release(self, work: Work) -> None:
        if work.unsettled == 0:
            payload = self._payloads.pop(work, None)
            if payload is not None:
                self._on_freed(payload)
            if work.client not in self._clients:
                self._forget_client(work.client)

    def _on_freed(self, payload: _Payload) -> None:
        if payload.refs:
            self._free(self._values.give_back(payload.refs))
        self._kept_bytes -= payload.size
        if self._halted and self._kept_bytes < _MOST_KEPT_BYTES // 2:
            for client in self._halted:
                self._hub.pause(client, on=False)
            self._halted.clear()

    # load

    def _note_load(self) -> None:
        load = self._scheduler.load
        if load.queued or load.running:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        # The controller was told "busy" or "not alone" and decides by that: tell it once when that is over.
        busy, attended = self._told
        if (busy and self._idle_since is not None) or (attended and self._alone_since is not None):
            self._tell_load()

    def _tell_load(self) -> None:
        load = self._scheduler.load
        self._told = (self._idle_since is None, self._alone_since is None)
        self._controller.send(
            {
                "event": "load",
                "queued": load.queued,
                "running": load.running,
                "settled": load.settled,
                "clients": len(self._clients),
                "engines": {str(engine): tasks for engine, tasks in self._scheduler.engines.items()},
                "idle_since": self._idle_since,
                "alone_since": self._alone_since,
            }
        )


def run(boot: Mapping[str, Any], nanny: Link, controller: Link) -> None:
    """Be the broker in a fork of the nanny."""
    # Nanny or controller say when it is over; a signal to the group is for the engines.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    Broker(boot, nanny, controller).run()
