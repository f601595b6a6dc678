"""A client's socket, its I/O thread, and the futures that wait for results.

The caller's thread pickles and appends to a queue; the I/O thread sends whatever has gathered since it last sent, so
many small tasks travel together and a single one does not wait. When the broker goes, everything that waits fails
with the reason.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import zmq

from . import errors, serialize, wire
from .futures import TaskFuture
from .incarnation import TASK, find_record, log_path, secret_of, tail_of
from .link import endpoint
from .process import Identity, Liveness, identify, liveness
from .record import ClusterState, Record
from .store import Store
from .wire import Buffer, Kind, Notice, Status

__all__ = ["Connection", "Options"]

T = TypeVar("T")

#: Most tasks in one message to the broker.
_MOST_TASKS = 1024

#: Seconds to wait for a reason to appear in the record after the broker has gone.
_VERDICT_SECONDS = 3.0

#: Seconds that `cancel` waits for the broker's answer.
_CANCEL_SECONDS = 10.0

#: Functions whose pickles are remembered.
_MOST_FUNCTIONS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What a view of a client has set."""

    retries: int = 0
    engines: tuple[int, ...] | None = None
    timeout: float | None = None

    def on_wire(self) -> dict[str, Any] | None:
        """Return what the broker must know; None if nothing differs from the defaults."""
        found: dict[str, Any] = {}
        if self.retries:
            found["retries"] = self.retries
        if self.engines is not None:
            found["engines"] = self.engines
        return found or None


class Connection:
    """The socket, its I/O thread, and the futures that wait for results; shared by all views of a client."""

    def __init__(self, store: Store, record: Record, timeout: float) -> None:
        self.store, self.record = store, record
        self.pid = os.getpid()
        self.engines: list[int] = []
        self._outbox: deque[Any] = deque()
        self._futures: dict[int, TaskFuture[Any]] = {}
        self._answers: dict[int, concurrent.futures.Future[Any]] = {}
        self._functions: dict[int, tuple[Any, bytes, bytes]] = {}
        self._sent_functions: set[bytes] = set()
        self._number = itertools.count()
        self._over: errors.ClusterError | None = None
        self._closing = False
        self._asleep = False
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.sndhwm = self._socket.rcvhwm = 0
        # Frames still unsent at close get a moment; a broker that is gone must not hold up the exit.
        self._socket.linger = 1000
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fd: int | None = None
        try:
            self._greet(timeout)
        except BaseException:
            self._close_socket()
            raise
        self._thread = threading.Thread(target=self._serve, name=f"ipcluster-client-{record.name}", daemon=True)
        self._thread.start()
        _open.add(self)

    # connecting

    def _greet(self, timeout: float) -> None:
        title, folder = self.record.title, self.record.folder
        if not os.path.exists(os.path.join(folder, TASK)):
            raise self._verdict(f"{title} has no task socket: its broker is gone, or not on this host")
        address, self._fd = endpoint(folder, TASK)
        self._socket.connect(address)
        hello = {
            "role": "client",
            "secret": secret_of(self.store, self.record),
            "process": identify().to_dict(),
            "python": sys.version_info[:2],
        }
        self._socket.send_multipart(Notice(Kind.HELLO, hello).encode())
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            ready = dict(_poll([self._socket, self._monitor], remaining * 1000))
            if self._socket in ready:
                break
            if self._monitor in ready:
                raise self._verdict(f"the broker of {title} is gone")
            if remaining == 0:
                raise errors.ClusterTimeout(f"the broker of {title} did not answer within {timeout:g} s")
        answer = Notice.decode(self._socket.recv_multipart())
        if answer.kind is Kind.REFUSED:
            raise getattr(errors, answer.data["error"])(answer.data["message"])
        if answer.kind is Kind.END:
            raise errors.ClusterEnded(str(answer.data["reason"]))
        self.engines = list(answer.data["engines"])

    # the caller's side

    def submit(self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> TaskFuture[T]:
        """Queue one task."""
        key, blob = self._function(function)
        buffers: list[memoryview] = []
        payload = serialize.dump_call(args, kwargs, buffers)
        future: TaskFuture[T] = TaskFuture(self._cancel, next(self._number))
        self._put((future, key, blob, payload, buffers, options))
        return future

    def _function(self, function: Callable[..., Any]) -> tuple[bytes, bytes]:
        """Return hash and pickle of a function, remembered by identity while the function lives here."""
        known = self._functions.get(id(function))
        if known is None or known[0] is not function:
            if len(self._functions) >= _MOST_FUNCTIONS:  # closures made in a loop must not pile up
                self._functions.clear()
            known = self._functions[id(function)] = (function, *serialize.dump_function(function))
        return known[1], known[2]

    def _put(self, item: Any) -> None:
        self.check()
        self._outbox.append(item)
        if self._asleep:
            self._wake()

    def check(self) -> None:
        """Raise unless new work can be taken."""
        if self.pid != os.getpid():
            raise RuntimeError("a Client cannot be used after a fork: connect again in the new process")
        if self._over is not None:
            raise self._over
        if self._closing:
            raise RuntimeError("cannot submit after shutdown")

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"x")

    def ask_engines(self, timeout: float) -> list[int]:
        """Return the ids of the engines that are up."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._put((Kind.ASK, answer))
        try:
            return list(answer.result(timeout)["engines"])
        except TimeoutError:
            raise errors.ClusterTimeout(f"the broker of {self.record.title} did not answer within {timeout:g} s") from None

    def _cancel(self, future: TaskFuture[Any]) -> bool:
        if self._over is not None or self.pid != os.getpid():
            return False
        answer: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._outbox.append((Kind.CANCEL, future.number, answer))
        self._wake()
        try:
            return answer.result(_CANCEL_SECONDS)
        except TimeoutError:
            return False

    def close(self, *, wait: bool, cancel: bool) -> None:
        """Take no new work; with `wait`, return when all results are here. What was sent goes on in any case."""
        if self.pid != os.getpid():
            return
        if cancel:
            for future in list(self._futures.values()):
                future.cancel()
        self._closing = True
        if wait:
            with self._settled:
                self._settled.wait_for(lambda: self._over is not None or not (self._outbox or self._futures))
        self._outbox.append((Kind.BYE,))
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        _open.discard(self)

    # the I/O thread

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._wake_read):
            poller.register(source, zmq.POLLIN)
        open_ = True
        try:
            while open_:
                # Say that this thread sleeps before looking into the queue a last time: whoever appends after that
                # look wakes it.
                self._asleep = True
                ready = dict(poller.poll(None if not self._outbox else 0))
                self._asleep = False
                if self._wake_read in ready:
                    os.read(self._wake_read, 4096)
                if self._socket in ready:
                    self._receive()
                if self._monitor in ready and self._over is None:
                    self._receive()  # what it sent before it went comes first
                    self._fail(self._over or self._verdict(f"the broker of {self.record.title} is gone"))
                if self._over is not None:
                    open_ = not self._closing
                    self._refuse_outbox()
                    if open_:
                        poller = zmq.Poller()
                        poller.register(self._wake_read, zmq.POLLIN)
                else:
                    open_ = self._flush()
        except Exception as error:  # noqa: BLE001 - the top of the thread: whoever waits must learn of it
            self._fail(errors.ClusterError(f"the connection to {self.record.title} failed: {error!r}"))
            raise
        finally:
            self._close_socket()

    def _flush(self) -> bool:
        """Send what has gathered; return False when the last message was the farewell."""
        run: list[Any] = []
        outbox = self._outbox
        while outbox:
            item = outbox.popleft()
            if isinstance(item[0], Kind):
                self._send_run(run)
                run = []
                if item[0] is Kind.BYE:
                    self._send(Notice(Kind.BYE, {}).encode())
                    return False
                self._send_question(item)
                continue
            last = run[-1] if run else None
            fits = last is not None and last[1] == item[1] and last[5] is item[5] and last[0].number + 1 == item[0].number
            if run and (not fits or item[4] or last[4] or len(run) >= _MOST_TASKS):
                self._send_run(run)
                run = []
            run.append(item)
        self._send_run(run)
        return True

    def _send_run(self, run: list[Any]) -> None:
        if not run:
            return
        first, key, blob, _, buffers, options = run[0]
        if key not in self._sent_functions:
            self._send(wire.Function(key, blob).encode())
            self._sent_functions.add(key)
        payloads = [item[3] for item in run]
        self._futures.update((item[0].number, item[0]) for item in run)
        body = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        self._send(wire.Submit(first.number, len(run), key, wire.lengths(payloads), body, options.on_wire(), buffers).encode())

    def _send_question(self, item: Any) -> None:
        if item[0] is Kind.ASK:
            number = next(self._number)
            self._answers[number] = item[1]
            self._send(Notice(Kind.ASK, {"id": number}).encode())
        else:
            self._answers[item[1]] = item[2]
            self._send(wire.Cancel(item[1]).encode())

    def _send(self, frames: Sequence[Buffer]) -> None:
        self._socket.send_multipart(frames, copy=sum(map(len, frames)) < serialize.LARGE_BYTES)

    def _receive(self) -> None:
        while True:
            try:
                frames = [frame.buffer for frame in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                break
            match wire.kind_of(frames):
                case Kind.RESULTS:
                    self._settle(wire.Results.decode(frames))
                case Kind.CANCELLED:
                    self._on_cancelled(wire.Cancelled.decode(frames))
                case Kind.ANSWER:
                    answer = Notice.decode(frames).data
                    self._answers.pop(answer["id"]).set_result(answer)
                case Kind.END:
                    self._fail(errors.ClusterEnded(str(Notice.decode(frames).data["reason"])))
                    break
                case _:
                    continue
        if not self._futures:
            with self._settled:
                self._settled.notify_all()

    def _settle(self, results: wire.Results) -> None:
        ends = wire.offsets(results.sizes, results.count)
        body = memoryview(results.body)
        for index in range(results.count):
            future = self._futures.pop(results.base + index, None)
            if future is None:
                continue
            payload = body[ends[index] : ends[index + 1]]
            try:
                status = results.statuses[index]
                if status == Status.OK:
                    future.settle(serialize.load(payload, results.buffers), None)
                elif status == Status.ERROR:
                    future.settle(None, serialize.load_exception(payload))
                else:
                    future.settle(None, _lost(json.loads(bytes(payload))))
            except Exception as error:  # noqa: BLE001 - a class unknown here, a user's __setstate__: that task's error
                failed = errors.TaskError(f"the result came, but cannot be rebuilt here: {error!r}", type(error).__name__)
                failed.__cause__ = error
                future.settle(None, failed)

    def _on_cancelled(self, answer: wire.Cancelled) -> None:
        if answer.success:
            future = self._futures.pop(answer.number, None)
            if future is not None:
                future.settle_cancelled()
        waiting = self._answers.pop(answer.number, None)
        if waiting is not None:
            waiting.set_result(answer.success)

    # the end

    def _fail(self, error: errors.ClusterError) -> None:
        """Fail everything that waits."""
        self._over = error
        self._refuse_outbox()
        for future in list(self._futures.values()):
            future.settle(None, error)
        for answer in list(self._answers.values()):
            answer.set_exception(error)
        self._futures.clear()
        self._answers.clear()
        with self._settled:
            self._settled.notify_all()

    def _refuse_outbox(self) -> None:
        while self._outbox:
            item = self._outbox.popleft()
            if not isinstance(item[0], Kind):
                item[0].settle(None, self._over)
            elif len(item) > 1:
                item[-1].set_exception(self._over)

    def _verdict(self, fact: str) -> errors.ClusterError:
        """Say why the broker is gone, from the record; wait a moment for the reason to be written."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        tail = tail_of(log_path(self.record.folder, "broker"))
        while True:
            with suppress(errors.StoreError):
                found = find_record(self.store, self.record.name)
                if found is None or found[0].tag != self.record.tag:
                    return errors.ClusterEnded(f"{self.record.title} is over and its record is gone")
                if found[0].state is ClusterState.ENDED:
                    return errors.ClusterEnded(found[0].end_message())
                job = found[0].jobs[0].nanny if found[0].jobs else None
                if job is not None and liveness(Identity.from_dict(job)) is Liveness.GONE and time.monotonic() > deadline - 1.5:
                    text = f"{fact}; its nanny ({Identity.from_dict(job)}) is gone too: tear it down to clean up"
                    return errors.ClusterBroken(f"{text}\n{tail}".rstrip())
            if time.monotonic() >= deadline:
                return errors.ClusterBroken(f"{fact}\n{tail}".rstrip())
            # Nothing announces a change of the record to a process that has lost its broker.
            time.sleep(0.02)

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._context.term()
        for fd in (self._wake_read, self._wake_write, self._fd):
            if fd is not None:
                os.close(fd)


def _poll(sockets: Iterable[zmq.Socket[bytes]], timeout_ms: float) -> list[tuple[Any, int]]:
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    return poller.poll(timeout_ms)


def _lost(content: Mapping[str, Any]) -> errors.EngineLost:
    return errors.EngineLost(
        str(content["message"]),
        engine=content.get("engine"),
        cause=str(content.get("cause", "")),
        output=str(content.get("output", "")),
    )


#: Connections to close when the interpreter ends: their threads must not outlive it.
_open: set[Connection] = set()


def _close_all() -> None:
    for connection in list(_open):
        connection.close(wait=False, cancel=False)


# As concurrent.futures does it: before the interpreter waits for its threads.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
