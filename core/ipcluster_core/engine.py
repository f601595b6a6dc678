"""Runs user code: one process, one thread, one socket.

The main thread receives a chunk, runs its tasks in order, and sends what came of them; nothing stands between the
task socket and the user's code, so signals reach it and ``import`` locks are its own. What began and what finished
is written to the journal, which the nanny reads if this process dies. When its policy wants it, the engine leaves
between two tasks, and writes that there too: what it has not begun goes to others.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from . import errors, interrupts, namespaces, notes, refs, serialize, versions, wire
from .channel import Channel, connect
from .forking import let_forks_be_ordinary
from .incarnation import LOG_FORMAT, TASK, secret_of
from .interrupts import Why
from .journal import Journal
from .logs import line_buffer
from .memory import resident_bytes
from .policy import EnginePolicy, policy_of
from .process import close_input, die_with_parent
from .recent import Recent
from .record import utc_now
from .segments import Pool, Reader, folder_of
from .store import open_store
from .wire import Buffer, Kind, Notice, Status

__all__ = ["Engine", "run"]

logger = logging.getLogger("ipcluster.engine")

#: Results are sent at the end of a chunk, or when the oldest has waited so long, in ns.
_FLUSH_NS = 2_000_000

#: Seconds that an engine that leaves by itself waits until the broker has all results.
_LEAVE_SECONDS = 5

#: What must not interrupt a message on its way.
_SIGNALS = signal.valid_signals()

#: Seconds that its exit hooks may then take.
_HOOKS_SECONDS = 2


class Engine:
    """Serves one broker until it is told to stop, or signalled."""

    def __init__(self, boot: Mapping[str, Any], engine: int, incarnation: int, journal: Journal) -> None:
        self._boot = boot
        self._engine = engine
        self._incarnation = incarnation
        self._journal = journal
        self._policy = policy_of(boot["spec"])
        self._is_limited = self._policy != EnginePolicy(max_restarts=self._policy.max_restarts)
        self._tasks_run = 0
        self._farewell = ""
        self._functions: dict[bytes, Callable[..., Any]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._sent = Recent()
        self._in_task = False
        self._now = (0, 0)  # chunk and index of the task that runs, or ran last
        self._revoked: dict[tuple[int, int], Why] = {}
        # On another host than the head's, buffers come and go in the messages.
        segments = "" if boot.get("outpost") else folder_of(str(boot["tag"]).rpartition("/")[2])
        self._pool = Pool(segments, f"e{engine}")
        self._reader = Reader(segments)
        self._channel: Channel | None = None
        self._sending = threading.Lock()  # threads of a task may send notes
        self._stopped = False
        self._pid = os.getpid()

    def run(self) -> None:
        """Register, and serve until the broker is gone, `stop` is called, or it leaves by itself."""
        secret = secret_of(open_store(str(self._boot["store"])), str(self._boot["tag"]))
        try:
            channel = self._channel = Channel(connect(str(self._boot["folder"]), TASK), blocking=True)
        except OSError as error:
            logger.warning("the broker cannot be reached: %s", error)
            return
        spec = self._boot["spec"]
        hello = {
            "role": "engine",
            "protocol": wire.VERSION,
            "secret": secret,
            "engine": self._engine,
            "incarnation": self._incarnation,
            "host": os.uname().nodename,
            "set": self._boot.get("set", "default"),
            "ranks": self._boot.get("ranks"),
            "inline": bool(self._boot.get("outpost")),
            "versions": dict(versions.ours(map(str, spec.get("packages", ())))),
            "unchecked": not spec.get("check_versions", True),
        }
        channel.send(Notice(Kind.HELLO, hello).encode())
        notes.serve(self._send_note)
        try:
            while not (self._stopped or self._farewell):
                self._serve_all(channel.receive())
            if self._farewell:
                self._leave(channel)
        except EOFError:
            logger.info("the broker is gone")
        finally:
            notes.serve(None)
            channel.close()

    def stop(self) -> None:
        """End `run`, from another thread, when the task that it may be at is done."""
        self._stopped = True
        if self._channel is not None:
            self._channel.shut()

    def _leave(self, channel: Channel) -> None:
        """Go when the broker has all results. What it sends before it knows is not begun, and goes to others."""
        logger.info("engine %d leaves: %s", self._engine, self._farewell)
        self._journal.leave(self._farewell)
        channel.send(Notice(Kind.BYE, {}).encode())
        poller = select.poll()
        poller.register(channel, select.POLLIN)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if any(wire.kind_of(frames) is Kind.BYE for frames in channel.receive()):
                return

    def _serve_all(self, messages: Iterable[Sequence[Buffer]]) -> None:
        for frames in messages:
            if not self._farewell:
                self._serve(frames)

    def _serve(self, frames: Sequence[Buffer]) -> None:
        kind = wire.kind_of(frames)
        if kind is Kind.CHUNK:
            self._run_chunk(wire.Chunk.decode(frames))
        elif kind is Kind.VALUE:
            value = wire.Value.decode(frames)
            buffers: Sequence[Buffer] = ()
            # Without its buffers it cannot be made: then that is the error of the tasks that use it.
            with suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
                buffers = self._reader.load(value.buffers, release=False)
            refs.keep(value.key, bytes(value.blob), buffers)
        elif kind is Kind.DROP:
            refs.forget(wire.Drop.decode(frames).key)
        elif kind is Kind.REFUSED:
            answer = Notice.decode(frames).data
            raise getattr(errors, answer["error"])(answer["message"])

    def on_sigint(self, signum: int, frame: object) -> None:
        """Interrupt whatever task runs; between tasks there is nothing to interrupt."""
        del signum, frame
        self._interrupt()

    def on_interrupt(self, signum: int, frame: object) -> None:
        """Interrupt exactly the tasks that the nanny names; those that have not begun will not."""
        del signum, frame
        self._revoked.update(self._journal.interrupts.take())
        if self._now in self._revoked and self._in_task:
            # Before it is raised: the user's code may hold it up.
            self._journal.interrupts.note(*self._now)
            self._interrupt()

    def _interrupt(self) -> None:
        if self._in_task:
            # Here, because nothing that comes after is safe from a second signal.
            self._in_task = False
            raise KeyboardInterrupt

    def _run_chunk(self, chunk: wire.Chunk) -> None:
        ends = wire.offsets(chunk.sizes, chunk.tasks)
        body = memoryview(chunk.body)
        function: Callable[..., Any] | None = None
        broken: bytes | None = None
        given: Sequence[Buffer] = ()
        self._note_function(chunk)
        try:
            self._in_task = True
            try:
                function = self._function(chunk)
            finally:
                self._in_task = False
            given = self._reader.load(chunk.buffers, release=False)
        except BaseException as error:  # noqa: BLE001 - whatever a module of the user raises on import is the task's error
            _go_if_stopped(error)
            broken = serialize.dump_exception(error)
        outbox = _Outbox(self._send, chunk.number)
        self._journal.open_chunk(chunk.number)
        self._forget_revoked(chunk.number)
        for index in range(chunk.tasks):
            self._now = (chunk.number, index)
            self._journal.begin(index)
            buffers: list[memoryview] = []
            if self._revoked and self._now in self._revoked:
                self._journal.interrupts.note(*self._now)
                status, payload = _revoked(self._revoked[self._now])
            elif function is None or broken is not None:
                status, payload = Status.ERROR, broken or b""
            else:
                status, payload = self._call(function, body[ends[index] : ends[index + 1]], given, buffers)
            kept = self._journal.finish(status, payload, keep=not buffers)
            outbox.add(status, payload, self._pool.share(buffers))
            if not kept or time.perf_counter_ns() - outbox.since > _FLUSH_NS:
                outbox.flush()
            if self._is_limited and self._is_to_leave():
                break
        outbox.flush()

    def _forget_revoked(self, chunk: int) -> None:
        for key in [key for key in self._revoked if key[0] < chunk]:
            del self._revoked[key]

    def _call(
        self, function: Callable[..., Any], call: memoryview, given: Sequence[Buffer], buffers: list[memoryview]
    ) -> tuple[Status, bytes]:
        """Run one task; whatever it does, something comes back. Only the process's own end gets past."""
        try:
            self._in_task = True
            try:
                if self._revoked and self._now in self._revoked:  # asked for a moment ago
                    self._journal.interrupts.note(*self._now)
                    raise KeyboardInterrupt
                args, kwargs = pickle.loads(call, buffers=given)
                value = function(*args, **kwargs) if kwargs else function(*args)
                if os.getpid() != self._pid:
                    _end_copy(None)
                return Status.OK, serialize.dump(value, buffers)
            finally:
                self._in_task = False
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit of a task are results too
            if os.getpid() != self._pid:
                _end_copy(error)
            _go_if_stopped(error)
            del buffers[:]
            if type(error) is KeyboardInterrupt and self._revoked.get(self._now) is Why.CANCEL:
                return Status.CANCELLED, b""
            return Status.ERROR, serialize.dump_exception(error)

    def _is_to_leave(self) -> bool:
        """Count a task that has been run; tell whether it was the last."""
        self._tasks_run += 1
        resident = 0 if self._policy.max_memory_bytes is None else resident_bytes("self")
        self._farewell = self._policy.farewell(self._tasks_run, resident)
        return bool(self._farewell)

    def _function(self, chunk: wire.Chunk) -> Callable[..., Any]:
        function = self._functions.get(chunk.function)
        if function is None:
            loaded: Callable[..., Any] = serialize.load(self._blobs[chunk.function])
            function = self._functions[chunk.function] = loaded
            del self._blobs[chunk.function]
        return function

    def _note_function(self, chunk: wire.Chunk) -> None:
        """Keep a function's pickle, which comes with its first chunk only: a load that failed can be tried again."""
        if chunk.function in self._sent:
            return
        self._blobs[chunk.function] = bytes(chunk.blob)
        forgotten = self._sent.add(chunk.function)
        if forgotten is not None:
            self._functions.pop(forgotten, None)
            self._blobs.pop(forgotten, None)

    def _send(self, frames: Sequence[Buffer]) -> None:
        if self._channel is not None:
            with self._sending:
                self._channel.send(frames)

    def _send_note(self, payload: bytes) -> bool:
        """Tell the client of the task that runs; called by the user's code, in whatever thread."""
        if not self._in_task or os.getpid() != self._pid:
            return False
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            # A signal handler of the user's, or ours, may raise: not in the middle of a message.
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            self._send(wire.Note(*self._now, payload).encode())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


def _end_copy(error: BaseException | None) -> NoReturn:
    """End a copy of an engine that a task has forked: what it returns or raises is not the task's outcome."""
    code: object = None
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        code = 1
        logger.error("a process that a task has forked fails", exc_info=error)
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


class _Outbox:
    """Results of a chunk that wait to be sent together."""

    def __init__(self, send: Callable[[Sequence[Buffer]], None], chunk: int) -> None:
        self._send = send
        self._chunk = chunk
        self._first = 0
        self._statuses = bytearray()
        self._payloads: list[bytes] = []
        self._buffers: list[Buffer] = []
        self.since = time.perf_counter_ns()

    def add(self, status: int, payload: bytes, buffers: list[Buffer]) -> None:
        if buffers:
            # A result with buffers travels alone.
            self.flush()
        self._statuses.append(status)
        self._payloads.append(payload)
        self._buffers = buffers
        if buffers:
            self.flush()

    def flush(self) -> None:
        count = len(self._statuses)
        now = time.perf_counter_ns()
        if count:
            done = wire.Done(
                self._chunk,
                self._first,
                count,
                now - self.since,
                wire.lengths(self._payloads),
                bytes(self._statuses),
                b"".join(self._payloads),
                self._buffers,
            )
            self._send(done.encode())
        self._first += count
        self._statuses, self._payloads, self._buffers = bytearray(), [], []
        self.since = now


def _revoked(why: Why) -> tuple[Status, bytes]:
    """Return the outcome of a task that was to be left before it began."""
    if why is Why.CANCEL:
        return Status.CANCELLED, b""
    return Status.ERROR, serialize.dump_exception(KeyboardInterrupt())


class _Stopped(BaseException):
    """SIGTERM: leave the user's code, run exit hooks, go."""

    #: Whether it was: what gets here may be another exception, into which the user's code or Python has made it.
    raised = False


def _stop(signum: int, frame: object) -> None:
    del signum, frame
    # Once: a second signal while hooks run must not cut them short.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Stopped.raised = True
    raise _Stopped


def _go_if_stopped(error: BaseException) -> None:
    """Go on to the end, rather than take for a task's own what came of being told to stop."""
    if _Stopped.raised:
        raise _Stopped from error


def main() -> None:
    """Be an engine that was executed anew: boot document on standard input, the rest as arguments."""
    boot = json.loads(sys.stdin.buffer.read())
    engine, incarnation, memory, parent = map(int, sys.argv[1:])
    # Again, because the executed program may not have kept it.
    die_with_parent(parent)
    close_input()
    line_buffer()
    journal = Journal(memory)
    os.close(memory)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=LOG_FORMAT)
    sys.path.insert(0, "")
    for module in boot["preload"]:
        importlib.import_module(module)
    run(boot, engine, incarnation, journal)


def run(boot: Mapping[str, Any], engine: int, incarnation: int, journal: Journal) -> None:
    """Be an engine in a fork of the nanny."""
    signal.signal(signal.SIGTERM, _stop)
    os.environ.update(boot["env"])
    os.environ["IPCLUSTER_ENGINE"] = str(engine)
    namespaces.begin(str(boot["folder"]), engine, incarnation, utc_now())
    served = Engine(boot, engine, incarnation, journal)
    signal.signal(signal.SIGINT, served.on_sigint)
    signal.signal(interrupts.SIGNAL, served.on_interrupt)
    let_forks_be_ordinary((signal.SIGTERM, signal.SIGINT, interrupts.SIGNAL))
    try:
        served.run()
        # As `_stop` does it: the broker's end and a signal may come together.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Exit hooks are the user's and may hang; until they are through, the next one is not started.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HOOKS_SECONDS)
    except _Stopped:
        logger.info("engine %d stops", engine)


if __name__ == "__main__":
    main()
