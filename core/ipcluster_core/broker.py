"""Routes tasks from clients to engines and results back: performs what `scheduling` decides, opens no pickle.

One plain poll loop over one ROUTER socket and two links (to the nanny: which engines died and how far they had come;
to the controller: who is up, how busy). A partner must show the cluster's secret before anything else is heard.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from . import wire
from .incarnation import TASK, endpoint, secret_of
from .link import Link
from .load import LoadReport
from .process import Identity, end_all, liveness, tagged
from .record import Liveness, title_of
from .scheduling import Assignment, Lost, Scheduler, Work
from .segments import Reader, folder_of, remove
from .store import open_store
from .values import Values
from .wire import Buffer, Kind, Notice, Status

__all__ = ["Broker", "run"]

logger = logging.getLogger("ipcluster.broker")

#: Messages of at least so many bytes are sent without a copy.
_LARGE_BYTES = 1 << 16

#: Messages handled before the links are looked at again.
_BURST = 64


@dataclass(slots=True, eq=False)
class _Payload:
    """The bytes of a work, kept until its last task is settled."""

    offsets: list[int]
    sizes: Buffer
    body: Buffer
    buffers: Sequence[Buffer]
    refs: list[bytes]


@dataclass(slots=True)
class _Seat:
    """An engine's connection."""

    identity: bytes
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
        self._secret = b""
        self._scheduler = Scheduler(boot["spec"]["max_tasks"])
        self._seats: dict[int, _Seat] = {}
        self._engine_of: dict[bytes, int] = {}
        self._known: set[int] = set()  # engines that are seated, or will be again
        self._no_engine = ""  # why none is left, and none will come, for tasks that any might take
        self._told_idle: set[int] = set()
        self._leaving: dict[int, str] = {}  # engines that get nothing new, and why they are about to go
        self._clients: dict[bytes, int | None] = {}  # identity -> pidfd
        self._segments = folder_of(self._tag.rpartition("/")[2])
        self._reader = Reader(self._segments)
        self._prefixes: dict[bytes, str] = {}  # of clients' segments, until neither they nor their tasks are there
        self._functions: dict[bytes, Buffer] = {}
        self._payloads: dict[Work, _Payload] = {}
        self._values: Values[wire.Value] = Values()
        self._report = LoadReport(time.monotonic(), time.monotonic())
        self._partners = {"nanny", "controller"}
        self._over = ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._poller = zmq.Poller()

    # the loop

    def _bind(self) -> int | None:
        """Open the socket; return a descriptor to keep while it is open."""
        self._secret = secret_of(self._store, self._tag).encode()
        # Credit bounds what engines hold and clients bound what they send; dropping at a mark would lose tasks.
        self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.linger = 300
        address, fd = endpoint(self._folder, TASK)
        self._socket.bind(address)
        self._controller.send({"event": "bound"})
        for source in (self._socket, self._nanny.fileno(), self._controller.fileno()):
            self._poller.register(source, zmq.POLLIN)
        return fd

    def run(self) -> None:
        """Serve until it is over."""
        fd = self._bind()
        while not self._over:
            ready = dict(self._poller.poll())
            if self._nanny.fileno() in ready:
                self._from(self._nanny, self._on_nanny, "nanny")
            if self._controller.fileno() in ready:
                self._from(self._controller, self._on_controller, "controller")
            if self._socket in ready:
                self._on_messages()
            for identity, pidfd in list(self._clients.items()):
                if pidfd in ready:
                    self._client_gone(identity)
            self._dispatch()
            self._note_idle()
            self._note_load()
        for identity in self._clients:
            self._send(identity, Notice(Kind.END, {"reason": self._over}).encode())
        self._socket.close()
        self._context.term()
        if fd is not None:
            os.close(fd)

    def _from(self, link: Link, handle: Callable[[Mapping[str, Any], bytes], None], name: str) -> None:
        try:
            for message, blob in link.receive():
                handle(message, blob)
        except EOFError:
            self._poller.unregister(link.fileno())
            self._on_partner_gone(name)

    def _on_partner_gone(self, name: str) -> None:
        """Go on until the other partner, who saw it too, says why it is over; alone, clean up."""
        self._partners.discard(name)
        if not self._partners:
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
        self._on_messages()  # what it had sent before its end comes first
        start = 0
        for chunk in message["chunks"]:
            start = self._recover(engine, chunk, blob, start)
        begun = {int(chunk["chunk"]): int(chunk["begun"]) for chunk in message["chunks"]}
        del self._seats[engine], self._engine_of[seat.identity]
        cause, tail = str(message["cause"]), str(message["tail"])
        self._told_idle.discard(engine)
        if engine in self._leaving:
            cause = f"{self._leaving.pop(engine)}, {cause}"
        for lost in self._scheduler.engine_lost(engine, begun):
            self._tell_lost(lost, f"engine {engine} on {seat.host} died ({cause}) while it ran this task", cause, tail)
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Fail what waits for any engine, when none is left."""
        if self._no_engine:
            for lost in self._scheduler.give_up_waiting():
                self._tell_lost(lost, self._no_engine, "", "")

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
                engine = int(message["engine"])
                self._scheduler.suspend(engine)
                self._leaving[engine] = "it was restarted on request"
            case "drop":
                engine, why = int(message["engine"]), str(message["why"])
                self._known.discard(engine)
                remove(self._segments, f"e{engine}", free_only=True)
                for lost in self._scheduler.engine_gone(engine, map(int, message["expected"])):
                    self._tell_lost(lost, why or f"engine {engine} left before it could take this task", "", "")
            case "refuse":
                self._no_engine = str(message["why"])
                self._refuse_waiting()
            case "accept":
                self._no_engine = ""
            case "end":
                self._on_end(message)
            case other:
                logger.error("unknown command %r from the controller", other)

    # from clients and engines

    def _on_messages(self) -> None:
        for _ in range(_BURST):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            identity = frames[0].bytes
            try:
                self._on_message(identity, wire.unpack([frame.buffer for frame in frames[1:]]))
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("message of %d frames not understood and dropped: %r", len(frames), error)
            except zmq.ZMQError as error:
                logger.warning("message could not be answered: %s", error)

    def _on_message(self, identity: bytes, frames: Sequence[Buffer]) -> None:
        kind = wire.kind_of(frames)
        engine = self._engine_of.get(identity)
        if kind is Kind.HELLO:
            self._on_hello(identity, Notice.decode(frames).data)
        elif engine is not None:
            if kind is Kind.DONE:
                self._on_done(engine, wire.Done.decode(frames))
            elif kind is Kind.BYE:
                self._scheduler.suspend(engine)
                self._leaving.setdefault(engine, "it made room for the next one")
                self._send(identity, Notice(Kind.BYE, {}).encode())
                incarnation = self._seats[engine].incarnation
                self._controller.send({"event": "leaves", "engine": engine, "incarnation": incarnation})
        elif identity in self._clients:
            self._on_client(identity, kind, frames)
        elif kind is not Kind.BYE:
            refusal = {"error": "NotAuthorized", "message": f"say hello with the secret of {self._title} first"}
            self._send(identity, Notice(Kind.REFUSED, refusal).encode())

    def _on_hello(self, identity: bytes, hello: Mapping[str, Any]) -> None:
        refusal = self._refusal(hello)
        if refusal is not None:
            logger.warning("refused a %s: %s", hello.get("role"), refusal)
            self._send(identity, Notice(Kind.REFUSED, refusal).encode())
        elif hello["role"] == "engine":
            engine, incarnation = int(hello["engine"]), int(hello["incarnation"])
            self._seats[engine] = _Seat(identity, incarnation, str(hello["host"]))
            self._engine_of[identity] = engine
            self._known.add(engine)
            self._scheduler.engine_up(engine)
            self._send(identity, Notice(Kind.WELCOME, {}).encode())
            self._controller.send({"event": "up", "engine": engine, "incarnation": incarnation})
        else:
            self._clients[identity] = self._watch(hello["process"])
            self._prefixes[identity] = str(hello["segments"])
            self._send(identity, Notice(Kind.WELCOME, {}).encode())

    def _refusal(self, hello: Mapping[str, Any]) -> dict[str, str] | None:
        """Say why a partner cannot be taken; None if it can."""
        if not hmac.compare_digest(str(hello.get("secret")).encode(), self._secret):
            return {"error": "NotAuthorized", "message": f"wrong secret for {self._title}"}
        ours = {"protocol": wire.VERSION, "python": list(sys.version_info[:2])}
        for what, version in ours.items():
            if hello.get(what) != version:
                text = f"{self._title} has {what} {version}, this {hello.get('role')} has {hello.get(what)}"
                return {"error": "VersionMismatch", "message": f"{text}: use the same on both sides"}
        return None

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
        self._poller.register(pidfd, zmq.POLLIN)
        return pidfd

    def _client_gone(self, identity: bytes) -> None:
        """Forget a client; its tasks go on."""
        pidfd = self._clients.pop(identity, None)
        if pidfd is not None:
            self._poller.unregister(pidfd)
            os.close(pidfd)
        self._free(self._values.drop(self._values.of_client(identity)))
        self._forget_client(identity)

    def _forget_client(self, identity: Any) -> None:  # noqa: ANN401 - a work's client is any hashable to the scheduler
        """Remove what a client has left in shared memory, once it is gone and its last task is settled."""
        if identity in self._prefixes and identity not in self._clients and not self._scheduler.has_work(identity):
            remove(self._segments, self._prefixes.pop(identity))

    def _on_client(self, identity: bytes, kind: Kind, frames: Sequence[Buffer]) -> None:
        match kind:
            case Kind.SUBMIT:
                self._on_submit(identity, wire.Submit.decode(frames))
            case Kind.FUNCTION:
                function = wire.Function.decode(frames)
                self._functions[function.key] = function.blob
            case Kind.VALUE:
                value = wire.Value.decode(frames)
                self._values.put(value.key, identity, value)
            case Kind.DROP:
                self._free(self._values.drop([wire.Drop.decode(frames).key]))
            case Kind.CANCEL:
                number = wire.Cancel.decode(frames).number
                work = self._scheduler.cancel(identity, number)
                if work is not None:
                    self._release(work)
                self._send(identity, wire.Cancelled(number, work is not None).encode())
            case Kind.ASK:
                question = Notice.decode(frames).data
                answer = {"id": question["id"], "engines": sorted(self._seats.keys() - self._leaving.keys())}
                self._send(identity, Notice(Kind.ANSWER, answer).encode())
            case Kind.BYE:
                self._client_gone(identity)
            case _:
                raise ValueError(f"{kind!r} is not for a client to send")

    def _on_submit(self, client: bytes, message: wire.Submit) -> None:
        options = message.options or {}
        engines = options.get("engines")
        wanted = None if engines is None else frozenset(map(int, engines))
        work = Work(client, message.base, message.tasks, message.function, wanted, int(options.get("retries", 0)))
        ends = wire.offsets(message.sizes, message.tasks)
        if ends[-1] != len(message.body) or message.function not in self._functions:
            raise ValueError("a submit whose sizes do not fit, or of an unknown function")
        if wanted is not None and not wanted & self._known:
            self._refuse(work, f"no such engine: {sorted(wanted)}; up are: {sorted(self._seats)}")
            return
        if wanted is None and self._no_engine:
            self._refuse(work, self._no_engine)
            return
        refs = [bytes.fromhex(key) for key in options.get("refs", ())]
        if self._values.missing(refs):
            self._refuse(work, "a value that it refers to is not (or no longer) here; was it put by this client?")
            return
        self._values.take(refs)
        self._payloads[work] = _Payload(ends, message.sizes, message.body, message.buffers, refs)
        self._scheduler.submit(work)

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
                    self._send(seat.identity, gone)
            if self._values.owner(key) in self._clients:
                self._send(self._values.owner(key), gone)
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
            self._send(piece.work.client, results.encode())
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
                self._send(seat.identity, self._values.content(key).encode())
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
        self._send(seat.identity, chunk.encode())

    def _send(self, identity: Any, frames: Sequence[Buffer]) -> None:  # noqa: ANN401 - a work's client is any hashable to the scheduler
        # Large frames are handed over, not copied; to a partner that is gone nothing is sent, which is no error.
        self._socket.send_multipart([identity, *wire.pack(frames)], copy=sum(map(len, frames)) < _LARGE_BYTES)

    def _tell_lost(self, lost: Lost, message: str, cause: str, tail: str) -> None:
        if tail:
            message = f"{message}; its last output:\n{tail}"
        content = {"message": f"{message}", "engine": lost.engine, "cause": cause, "output": tail}
        payload = json.dumps(content).encode()
        number = lost.work.base + lost.index
        results = wire.Results(number, 1, wire.lengths([payload]), bytes((Status.LOST,)), payload)
        self._send(lost.work.client, results.encode())
        self._release(lost.work)

    def _release(self, work: Work) -> None:
        if work.unsettled == 0:
            payload = self._payloads.pop(work, None)
            if payload is not None and payload.refs:
                self._free(self._values.give_back(payload.refs))
            if work.client not in self._clients:
                self._forget_client(work.client)

    # load

    def _note_load(self) -> None:
        if self._report.note(self._scheduler, len(self._clients), time.monotonic()):
            self._tell_load()

    def _tell_load(self) -> None:
        self._controller.send({"event": "load", **self._report.tell(self._scheduler, len(self._clients))})


def run(boot: Mapping[str, Any], nanny: Link, controller: Link) -> None:
    """Be the broker in a fork of the nanny."""
    # Nanny or controller say when it is over; a signal to the group is for the engines.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
    Broker(boot, nanny, controller).run()
