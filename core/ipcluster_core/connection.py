"""A client's socket, its I/O thread, and the futures that wait for results.

The caller's thread pickles and appends to a queue; the I/O thread sends whatever has gathered since it last sent, so
many small tasks travel together. A task that is alone is sent by the caller itself, which saves waking a thread. When
the broker goes, everything that waits fails with the reason.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from . import errors, serialize, wire
from .aftermath import verdict
from .futures import TaskFuture
from .greeting import join
from .outbox import Farewell, Lease, Options, Outbox, Question, Statement, Task, fits
from .outcomes import hear, settle
from .process import own
from .recent import Recent
from .record import Record
from .refs import Ref
from .segments import Pool, Reader, folder_of
from .store import Store
from .wire import Buffer, CancelOutcome, Kind, Notice

__all__ = ["Connection", "Options"]

T = TypeVar("T")

#: Seconds that `cancel` waits for the broker's answer.
_CANCEL_SECONDS = 10.0

#: Seconds that `cancel` waits for a running task to come to its end. Not long: an event loop may be waiting for this.
_LEAVE_SECONDS = 1.0

#: Seconds for the broker to say what keeps results from coming.
_WHY_SECONDS = 1.0

#: Milliseconds after which the I/O thread looks by itself: a signal handler may raise just before a caller wakes it.
_LONGEST_SLEEP_MS = 1000

#: Seconds for the last message to leave.
_FAREWELL_SECONDS = 1.0

_NO_BUFFERS: Sequence[Buffer] = ()
_NO_REFS: frozenset[bytes] = frozenset()

#: Functions whose pickles are remembered.
_MOST_FUNCTIONS = 256


class Connection:
    """The socket, its I/O thread, and the futures that wait for results; shared by all views of a client."""

    def __init__(self, store: Store, record: Record, timeout: float, *, check_versions: bool = True) -> None:
        self.store, self.record = store, record
        self.pid = own.pid
        self.uid = os.urandom(6).hex()
        self._outbox = Outbox()
        self._futures: dict[int, TaskFuture[Any]] = {}
        self._leases: dict[int, Lease] = {}
        self._shared: dict[bytes, Sequence[Buffer]] = {}  # buffers of values, by key
        segments = folder_of(record.uid)
        # Not of its address: that may be the next connection's too, while tasks of this one still need their segments.
        self._prefix = f"c{self.uid}"
        self._pool, self._reader = Pool(segments, self._prefix), Reader(segments)
        self._answers: dict[int, concurrent.futures.Future[Any]] = {}
        self._functions: dict[int, tuple[Any, bytes, bytes]] = {}
        self._sent_functions = Recent()
        self._number = itertools.count()
        self._over: errors.ClusterError | None = None
        self._closing = False
        self._farewell = False
        self._left, self._left_since = (0, 0), 0.0  # what is still to be sent, when that was seen first
        self._asleep = False
        self._sending = threading.Lock()
        self._settled = threading.Condition()
        self._channel = join(store, record, self.uid, self._prefix, timeout=timeout, check_versions=check_versions)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name=f"ipcluster-client-{record.name}", daemon=True)
        self._thread.start()
        _open.add(self)

    # the caller's side

    def submit(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> TaskFuture[T]:
        """Queue one task."""
        return self.submit_each(function, args, kwargs, [options])[0]

    def submit_each(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any], several: Sequence[Options]
    ) -> list[TaskFuture[T]]:
        """Queue a task once with each of several options; its arguments are pickled and shared once."""
        key, blob = self._function(function)
        raw: list[memoryview] = []
        used: set[bytes] = set()
        payload = serialize.dump_call(args, kwargs, raw, used)
        refs = frozenset(used) if used else _NO_REFS
        self.check()
        if self._outbox.full and threading.current_thread() is not self._thread:
            self._outbox.wait_for_room(lambda: self._over is not None or self._closing)
            self.check()
        buffers = self._share(raw) if raw else _NO_BUFFERS
        lease = Lease(buffers, len(several)) if raw else None
        futures = []
        for options in several:
            future: TaskFuture[T] = TaskFuture(self, next(self._number), options.on_note)
            if lease is not None:
                self._leases[future.number] = lease
            # Known before it is queued, so that `close` never sees it in neither place.
            self._futures[future.number] = future
            self._put(Task(future, key, blob, payload, buffers, options, refs))
            futures.append(future)
        return futures

    def put(self, value: T) -> Ref[T]:
        """Send a value to the broker, and give it up when the returned object is gone."""
        raw: list[memoryview] = []
        blob = serialize.dump(value, raw)
        self.check()
        ref: Ref[T] = Ref(os.urandom(16))
        buffers = self._share(raw)
        self._shared[ref.key] = buffers
        self._put(Statement(wire.Value(ref.key, blob, buffers)))
        weakref.finalize(ref, self._drop, ref.key).atexit = False
        return ref

    def _share(self, raw: Sequence[memoryview]) -> list[Buffer]:
        """Return copies of buffers, in shared memory where that pays: the caller may change its own from now on."""
        return [bytes(buffer) if isinstance(buffer, memoryview) else buffer for buffer in self._pool.share(raw)]

    def _drop(self, key: bytes) -> None:
        if self.pid == own.pid and self._over is None and not self._closing:
            self._put(Statement(wire.Drop(key)))

    def _function(self, function: Callable[..., Any]) -> tuple[bytes, bytes]:
        """Return hash and pickle of a function, remembered by identity while the function lives here."""
        known = self._functions.get(id(function))
        if known is None or known[0] is not function:
            if len(self._functions) >= _MOST_FUNCTIONS:  # closures made in a loop must not pile up
                self._functions.clear()
            known = self._functions[id(function)] = (function, *serialize.dump_function(function))
        return known[1], known[2]

    def _put(self, item: Task | Question | Statement | Farewell) -> None:
        self._outbox.append(item)
        if not self._asleep:
            return
        try:
            if isinstance(item, Task) and len(self._futures) == 1 and self._sending.acquire(blocking=False):
                try:
                    self._send_alone(item)
                finally:
                    self._sending.release()
        finally:
            if self._outbox or self._channel.waiting:
                self._wake()

    def _send_alone(self, task: Task) -> None:
        """Send from the caller's thread: nothing else is under way, so nothing would be gathered, and no thread woken.

        A signal handler may raise at any point of it (Ctrl-C): then the task was sent and is out of the queue, or it
        still is in it.
        """
        if len(self._outbox) != 1 or self._outbox.first() is not task or self._channel.waiting:
            return
        taken: list[int] = []
        try:
            self._channel.send_at_once(self._messages([task]), taken)
        finally:
            if taken:
                self._outbox.pop()
                self._note_function(task)

    def check(self) -> None:
        """Raise unless new work can be taken."""
        if self.pid != own.pid:
            raise RuntimeError("a Client cannot be used after a fork: connect again in the new process")
        if self._closing:
            raise RuntimeError("cannot submit after shutdown")
        if self._over is not None:
            raise self._over

    def _wake(self) -> None:
        # Once: until the I/O thread has got the interpreter's lock, what is appended waits for it together. Writing
        # again would let go of that lock, and have the thread send a few tasks at a time.
        try:
            self._asleep = False
        finally:
            with suppress(BlockingIOError, OSError):
                os.write(self._wake_write, b"x")

    def ask_engines(self, name: str | None, timeout: float) -> list[int]:
        """Return the ids of the engines that are up, of a set or of all; ClusterError if the set can take nothing."""
        self.check()
        answer = self._ask(timeout, about="engines", set=name)
        if "error" in answer:
            raise errors.ClusterError(str(answer["error"]))
        return list(answer["engines"])

    def why_late(self) -> str:
        """Say what is known to keep results from coming, in words to follow others; empty when nothing is."""
        with suppress(errors.ClusterError, RuntimeError):
            if not self.ask_engines(None, _WHY_SECONDS):
                return ": no engine is up (scale it, or see its status)"
        return ""

    def _ask(self, timeout: float, **question: Any) -> Mapping[str, Any]:
        number = next(self._number)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._put(Question(number, Notice(Kind.ASK, {"id": number, **question}), answer))
        try:
            found: Mapping[str, Any] = answer.result(timeout)
        except TimeoutError:
            raise errors.ClusterTimeout(
                f"the broker of {self.record.title} did not answer within {timeout:g} s"
            ) from None
        return found

    def fetch(self, task: str) -> TaskFuture[Any]:
        """Return a future of a task of whatever client, by its id."""
        self.check()
        future: TaskFuture[Any] = TaskFuture(self, next(self._number))
        self._futures[future.number] = future
        self._put(Statement(Notice(Kind.ASK, {"id": future.number, "about": "result", "task": task})))
        return future

    def cancel_tasks(self, tasks: Sequence[str], timeout: float) -> dict[str, bool]:
        """Cancel tasks of whatever client, by their ids; see `Client.cancel`."""
        self.check()
        deadline = time.monotonic() + timeout
        outcomes = dict(zip(tasks, self._ask(timeout, about="cancel", tasks=tasks)["outcomes"], strict=True))
        asked = {task: self.fetch(task) for task, outcome in outcomes.items() if outcome == CancelOutcome.ASKED}
        concurrent.futures.wait(asked.values(), max(0.0, deadline - time.monotonic()))
        for future in asked.values():
            self._futures.pop(future.number, None)  # nobody waits for it any more, nor does `close`
        return {
            task: asked[task].cancelled() if task in asked else outcome == CancelOutcome.DONE
            for task, outcome in outcomes.items()
        }

    def cancel(self, future: TaskFuture[Any]) -> bool:
        """Cancel a task of this client, also a running one."""
        if self._over is not None or self.pid != own.pid:
            return False
        answer: concurrent.futures.Future[CancelOutcome] = concurrent.futures.Future()
        self._put(Question(future.number, wire.Cancel(future.number, running=True), answer))
        if threading.current_thread() is self._thread:
            return False  # called by a callback: the answer can only come when this returns
        try:
            outcome = answer.result(_CANCEL_SECONDS)
        except TimeoutError:
            return False
        if outcome is CancelOutcome.ASKED:
            concurrent.futures.wait([future], _LEAVE_SECONDS)
        return future.cancelled()

    def cancel_all(self, futures: Iterable[TaskFuture[Any]]) -> None:
        """Cancel many tasks that no engine has been given yet, with one wait for all answers."""
        if self._over is not None or self.pid != own.pid:
            return
        answers: list[concurrent.futures.Future[CancelOutcome]] = []
        for future in [future for future in futures if not future.done()]:
            answers.append(concurrent.futures.Future())
            self._put(Question(future.number, wire.Cancel(future.number), answers[-1]))
        if threading.current_thread() is not self._thread:
            concurrent.futures.wait(answers, _CANCEL_SECONDS)

    def close(self, *, wait: bool, cancel: bool) -> None:
        """Take no new work; with `wait`, return when all results are here. What was sent goes on in any case."""
        if self.pid != own.pid or self not in _open:
            return
        if cancel:
            self.cancel_all(list(self._futures.values()))
        self._closing = True
        self._outbox.wake()
        if wait:
            with self._settled:
                self._settled.wait_for(lambda: self._over is not None or not (self._outbox or self._futures))
        self._put(Farewell())
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        _open.discard(self)

    # the I/O thread

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        try:
            while self._turn(poller):
                pass
            # Whoever still waits for a result of a client that was shut down is told, and not left waiting.
            gone = f"the client of {self.record.title} was shut down before the result came; the task goes on"
            self._fail(self._over or errors.ClusterError(gone))
        except Exception as error:
            self._fail(errors.ClusterError(f"the connection to {self.record.title} failed: {error!r}"))
            raise
        finally:
            self._close_socket()

    def _turn(self, poller: select.poll) -> bool:
        """Wait for something to do and do it; return False when it was the farewell."""
        if self._over is None:
            poller.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.waiting else 0))
        # Say that this thread sleeps before looking into the queue a last time: who appends after that look wakes it.
        self._asleep = True
        ready = dict(poller.poll(0 if self._outbox and not self._channel.waiting else _LONGEST_SLEEP_MS))
        self._asleep = False
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._channel.fileno() in ready:
            self._receive()
        if self._over is None:
            with self._sending:
                self._flush()
            return not (self._farewell or (self._closing and self._is_stuck()))
        self._refuse_outbox()
        with suppress(KeyError):
            poller.unregister(self._channel)
        return not self._closing

    def _is_stuck(self) -> bool:
        """Tell whether nothing has left for a while: a broker that does not read must not hold up the exit."""
        left, now = (len(self._outbox), self._channel.unsent_bytes), time.monotonic()
        if left != self._left:
            self._left, self._left_since = left, now
        return self._channel.waiting and now - self._left_since > _FAREWELL_SECONDS

    def _flush(self) -> None:
        """Send what has gathered, up to the farewell."""
        run: list[Task] = []
        self._channel.flush()
        # What the broker does not take stays in the outbox, which is bounded.
        while self._outbox and not self._channel.waiting:
            item = self._outbox.pop()
            if isinstance(item, Task):
                if run and not fits(run, item):
                    self._send_run(run)
                    run = []
                run.append(item)
                continue
            self._send_run(run)
            run = []
            if isinstance(item, Farewell):
                self._channel.send(Notice(Kind.BYE, {}).encode())
                self._channel.flush(_FAREWELL_SECONDS)
                self._farewell = True
                return
            if isinstance(item, Question):
                self._answers[item.number] = item.answer
            self._channel.send(item.message.encode())
        self._send_run(run)

    def _send_run(self, run: list[Task]) -> None:
        if not run:
            return
        for frames in self._messages(run):
            self._channel.send(frames)
        self._note_function(run[0])

    def _note_function(self, task: Task) -> None:
        if task.function not in self._sent_functions:
            self._sent_functions.add(task.function)

    def _messages(self, run: list[Task]) -> list[list[Buffer]]:
        """Return what has to be sent for tasks that travel together."""
        first = run[0]
        found = []
        if first.function not in self._sent_functions:
            found.append(wire.Function(first.function, first.blob).encode())
        payloads = [task.payload for task in run]
        message = wire.Submit(
            first.future.number,
            len(run),
            first.function,
            wire.lengths(payloads),
            payloads[0] if len(payloads) == 1 else b"".join(payloads),
            first.options.on_wire(first.refs),
            first.buffers,
        )
        return [*found, message.encode()]

    def _receive(self) -> None:
        try:
            for frames in self._channel.receive():
                self._on_message(frames)
        except EOFError:
            if self._over is None:
                self._fail(verdict(self.store, self.record, f"the broker of {self.record.title} is gone"))
        if not self._futures:
            with self._settled:
                self._settled.notify_all()

    def _on_message(self, frames: Sequence[Buffer]) -> None:
        match wire.kind_of(frames):
            case Kind.RESULTS:
                self._settle(wire.Results.decode(frames))
            case Kind.NOTE:
                hear(self._futures, wire.Note.decode(frames))
            case Kind.DROP:
                self._pool.release(self._shared.pop(wire.Drop.decode(frames).key, ()))
            case Kind.CANCELLED:
                self._on_cancelled(wire.Cancelled.decode(frames))
            case Kind.ANSWER:
                answer = Notice.decode(frames).data
                self._answers.pop(answer["id"]).set_result(answer)
            case Kind.END:
                self._fail(errors.ClusterEnded(str(Notice.decode(frames).data["reason"])))
            case other:
                raise ValueError(f"{other!r} is not for a broker to send")

    def _settle(self, results: wire.Results) -> None:
        ends = wire.offsets(results.sizes, results.tasks)
        body = memoryview(results.body)
        for index in range(results.tasks):
            future = self._futures.pop(results.base + index, None)
            if future is None:
                continue
            payload = body[ends[index] : ends[index + 1]]
            if self._leases:
                self._give_back(results.base + index)
            settle(future, results.statuses[index], payload, results.buffers, self._reader)

    def _give_back(self, number: int) -> None:
        """Note that a task needs its shared buffers no more."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.tasks -= 1
            if lease.tasks == 0:
                self._pool.release(lease.buffers)

    def _on_cancelled(self, answer: wire.Cancelled) -> None:
        if answer.outcome is CancelOutcome.DONE:
            future = self._futures.pop(answer.number, None)
            self._give_back(answer.number)
            if future is not None:
                future.settle_cancelled()
        waiting = self._answers.pop(answer.number, None)
        if waiting is not None:
            waiting.set_result(answer.outcome)

    # the end

    def _fail(self, error: errors.ClusterError) -> None:
        """Fail everything that waits."""
        self._over = error
        self._refuse_outbox()
        self._outbox.wake()
        for future in list(self._futures.values()):
            future.settle(None, error)
        for answer in list(self._answers.values()):
            answer.set_exception(error)
        self._futures.clear()
        self._answers.clear()
        with self._settled:
            self._settled.notify_all()

    def _refuse_outbox(self) -> None:
        with self._sending:  # a caller may be sending the item in front
            items = [self._outbox.pop() for _ in range(len(self._outbox))]
        for item in items:
            if isinstance(item, Task):
                self._futures.pop(item.future.number, None)
                item.future.settle(None, self._over)
            elif isinstance(item, Question):
                item.answer.set_exception(self._over)

    def _close_socket(self) -> None:
        self._pool.close()
        self._reader.close()
        self._channel.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)


#: Connections to close when the interpreter ends: their threads must not outlive it.
_open: set[Connection] = set()


def _close_all() -> None:
    for connection in list(_open):
        connection.close(wait=False, cancel=False)


# As concurrent.futures does it: before the interpreter waits for its threads.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public one
