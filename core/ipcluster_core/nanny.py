"""Root of every job: a clean zygote that forks the parts of a cluster, watches them, and leaves nothing behind.

It imports once, holds no threads and no sockets, and forks: controller and broker, then engines as the
controller says. It learns of ends from the kernel, never from heartbeats. When an engine dies, broker and controller
are told; when the controller or the broker dies, or the end is asked for, everything below this process ends.

Run as ``python -m ipcluster_core.nanny TAG READY_FD`` with the boot document (JSON) on standard input.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Leave the creator before anything is imported: it waits for the first process to end, so that no zombie
    # stays with it and no tree of its children holds this one.
    _boot = sys.stdin.buffer.read()
    if os.fork():
        os._exit(0)
    os.setsid()

import gc
import importlib
import json
import logging
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from . import interrupts, process
from .brood import Brood, Child
from .capture import Captures
from .errors import ClusterError
from .incarnation import LOG_FORMAT, forget, log_path, note, secret_of, tail_of, update
from .interrupts import Why
from .journal import Journal
from .link import Link, link_pair
from .logs import PartHandler, open_log, redirect
from .memory import MemoryWatch
from .mpiset import MpiSet, MpiSets
from .owner import OwnerWatch
from .policy import policy_of
from .process import Identity, describe_exit, end_all, identify
from .pursuit import Pursuits, Target
from .record import ClusterState, Ended, Job, Record, title_of, utc_now
from .segments import folder_of
from .store import open_store
from .streaming import Publisher
from .wire import same_secret

__all__ = ["Nanny", "main"]

logger = logging.getLogger("ipcluster.nanny")

#: Seconds that engines get to run their exit hooks before they are killed.
GRACE_SECONDS = 1.0

#: Seconds after which what could not be ended is given up and named.
END_SECONDS = 10.0

#: Seconds between two looks at what engines print while they are being ended: one that waits for room would not end.
_PUMP_SECONDS = 0.02


class Nanny:
    """The head job's nanny: root of one cluster's controller, broker and engines."""

    def __init__(self, boot: Mapping[str, Any], ready_fd: int) -> None:
        self._boot = boot
        self._ready_fd = ready_fd
        self._tag = str(boot["tag"])
        self._title = title_of(self._tag)
        self._folder = str(boot["folder"])
        self._store = open_store(str(boot["store"]))
        self._pid = os.getpid()
        self._links: dict[str, Link] = {}
        self._roles: dict[str, Callable[..., None]] = {}
        self._memory = MemoryWatch(policy_of(boot["spec"]))
        self._over: Ended | None = None
        self._publisher = Publisher(self._folder, self._authorize, lambda: self._captures.drain())  # noqa: PLW0108 - made below
        self._captures = Captures(self._folder, self._publisher.publish)
        self._brood = Brood(boot, self._captures)
        self._owner = OwnerWatch()
        self._pursuits = Pursuits()
        self._mpi = MpiSets(boot, self._brood, self._captures, self._authorize, self._tell_started)

    # life

    def run(self) -> None:
        """Register, fork the parts, watch them to the end, and clean up."""
        process.own_subreaper()
        self._register()
        for role, path in self._boot["roles"].items():
            module, _, name = str(path).partition(":")
            self._roles[role] = getattr(importlib.import_module(module), name)
        with suppress(OSError):  # without it, large buffers travel in the messages
            os.mkdir(folder_of(self._tag.rpartition("/")[2]), 0o700)
        wake_fd, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _wake_only)
        self._fork_head()
        try:
            # An import may take long; whoever gives up waiting for it must not wait for its end. Nor must the cluster,
            # if nobody waits: the controller ends it a moment before this alarm.
            for signum in (signal.SIGTERM, signal.SIGALRM):
                signal.signal(signum, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, float(self._boot["start_seconds"]) + 1)
            with suppress(_Interrupted):
                self._look_at_signals(wake_fd)  # of those that came before
                if self._over is None:
                    self._preload()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, _wake_only)
            self._watch(wake_fd)
        except Exception:
            # Whatever it is, the end must be orderly: nothing may outlive this process.
            logger.exception("the nanny fails")
            self._end("its nanny failed", "nanny", tail_of(log_path(self._folder, "nanny")))
        self._clean_up()

    def _preload(self) -> None:
        """Import what all engines are to share. Controller and broker are forked already: it is none of theirs."""
        sys.path.insert(0, "")
        # Engines unpickle functions with it: once here instead of once in each.
        for module in ("cloudpickle", *self._boot["preload"]):
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:
                logger.debug("importing %s failed", module, exc_info=True)
                self._end(f"module {module!r} cannot be preloaded: {type(error).__name__}: {error}", "nanny")
                self._tell_creator(self._over.reason if self._over else "")
                return
        # Shared pages stay shared as long as nobody counts references in them.
        gc.collect()
        gc.freeze()

    def _register(self) -> None:
        """Put this process into the record; give up if the name has gone on to another incarnation."""
        job = Job(str(self._boot["launcher"]), {}, identify().to_dict())

        def add(record: Record) -> Record | None:
            return record._replace(jobs=(job,)) if record.state is ClusterState.CREATING else None

        if update(self._store, self._tag, add) is None:
            raise ClusterError(f"{self._title} was given up before it started")

    def _fork_head(self) -> None:
        controller, self._links["controller"] = link_pair()
        broker, self._links["broker"] = link_pair()
        upper, lower = link_pair()
        roles, boot = self._roles, self._boot
        self._brood.fork("broker", lambda: roles["broker"](boot, broker, lower), keep=(broker.fileno(), lower.fileno()))
        self._brood.fork(
            "controller",
            lambda: roles["controller"](boot, controller, upper),
            keep=(controller.fileno(), upper.fileno()),
        )
        for link in (controller, broker, upper, lower):
            link.close()

    def _tell_creator(self, text: str) -> None:
        """Say "ready", or why it will never be."""
        # The creator may be gone; then nobody waits for this.
        with suppress(OSError):
            os.write(self._ready_fd, text.encode())
        os.close(self._ready_fd)

    def _watch(self, wake_fd: int) -> None:
        poller = select.poll()
        poller.register(wake_fd, select.POLLIN)
        for link in self._links.values():
            poller.register(link.fileno(), select.POLLIN)
        poller.register(self._captures.fileno(), select.POLLIN)
        poller.register(self._publisher.fileno(), select.POLLIN)
        for fd in self._mpi.filenos():
            poller.register(fd, select.POLLIN)
        poller.register(self._owner.fileno(), select.POLLIN)
        if not self._owner.watch(self._boot.get("owner")):
            self._links["controller"].send({"event": "owner_gone"})
        while self._over is None:
            ready = {fd for fd, _ in poller.poll(self._wait_ms())}
            self._do_what_is_due()
            if self._publisher.fileno() in ready:
                self._publisher.serve()
            if self._owner.fileno() in ready and self._owner.take_end():
                self._links["controller"].send({"event": "owner_gone"})
            # Links first: what the controller says is the reason for a signal that comes with it.
            for name, link in self._links.items():
                if link.fileno() in ready:
                    self._on_link(name, link)
            if wake_fd in ready:
                self._look_at_signals(wake_fd)

    def _do_what_is_due(self) -> None:
        self._kill_late()
        self._mpi.serve()
        self._answer_pursuits()
        self._captures.serve()

    def _look_at_signals(self, wake_fd: int) -> None:
        try:
            signals = os.read(wake_fd, 512)
        except BlockingIOError:
            return
        self._reap()
        for signum in signals:
            if signum in (signal.SIGTERM, signal.SIGINT):
                self._end(f"its nanny received {signal.Signals(signum).name}", "signal")

    def _on_link(self, name: str, link: Link) -> None:
        if self._over is not None:
            return
        try:
            for message, _ in link.receive():
                self._on_command(message)
        except EOFError:
            self._on_closed(name)

    def _on_closed(self, name: str) -> None:
        """See to a part that closed its link: it is ending; say how, once the kernel knows."""
        for child, status in self._brood.collect_ending(name, GRACE_SECONDS):
            self._on_end(child, describe_exit(status))

    def _on_command(self, message: Mapping[str, Any]) -> None:
        match message["do"]:
            case "ready":
                self._tell_creator("ready")
            case "start":
                self._start(message)
            case "stop":
                self._stop(int(message["engine"]))
            case "interrupt":
                self._interrupt(message)
            case "interrupt_running":
                self._interrupt_running(message)
            case "signal":
                self._signal(message)
            case "own":
                self._answer(int(message["request"]), seen=self._owner.watch(message["owner"]))
            case "end":
                self._end(str(message["reason"]), str(message["by"]), str(message["tail"]))
            case other:
                logger.error("unknown command %r", other)

    def _stop(self, engine: int) -> None:
        if self._mpi.stop(engine, GRACE_SECONDS):
            return
        for child in self._brood.engines([engine]):
            child.kill_at = time.monotonic() + GRACE_SECONDS
            child.signal_group(signal.SIGTERM)

    def _interrupt(self, message: Mapping[str, Any]) -> None:
        """Have an engine leave one task, if it has that one still."""
        engine = int(message["engine"])
        journals = self._mpi.journals()
        for child in self._brood.engines([engine]):
            if child.incarnation == message["incarnation"] and child.journal is not None:
                journals[engine] = child.journal
        if engine in journals:
            journals[engine].interrupts.add(int(message["chunk"]), int(message["index"]), Why(message["why"]))
            self._signal_engines([engine], interrupts.SIGNAL)

    def _interrupt_running(self, message: Mapping[str, Any]) -> None:
        """Have engines leave what they run at this moment; who asked is answered when it is known what became of it."""
        journals: dict[int, Journal | None] = {child.engine: child.journal for child in self._brood.engines()}
        journals.update(self._mpi.journals())
        targets = [Target(engine, journals.get(engine)) for engine in message["engines"]]
        running = self._pursuits.begin(int(message["request"]), targets, time.monotonic())
        self._signal_engines(running, interrupts.SIGNAL)
        self._answer_pursuits()

    def _answer_pursuits(self) -> None:
        for request, outcomes in self._pursuits.settle(time.monotonic()).items():
            self._answer(request, outcomes={str(engine): outcome for engine, outcome in sorted(outcomes.items())})

    def _signal(self, message: Mapping[str, Any]) -> None:
        """Signal the processes of engines, and nothing that they have started; or the launchers of MPI sets."""
        reached = self._signal_engines(message["engines"], int(message["signum"]))
        for name in message["launchers"]:
            launcher = self._mpi.launcher_of(name)
            if launcher is not None:
                launcher.signal(int(message["signum"]))
        self._answer(int(message["request"]), engines=reached)

    def _signal_engines(self, engines: list[int], signum: int) -> list[int]:
        """Signal engines; return those that were there."""
        found = self._brood.engines(engines)
        for child in found:
            child.signal(signum)
        return sorted([child.engine for child in found] + self._mpi.signal(engines, signum))

    def _answer(self, request: int, **content: Any) -> None:
        self._links["controller"].send({"event": "answer", "request": request, "content": content})

    # processes

    def _authorize(self, shown: bytes) -> bool:
        """Tell whether a reader of output shows the secret."""
        try:
            return same_secret(shown, secret_of(self._store, self._tag).encode())
        except ClusterError:  # it is gone: so is the cluster, in a moment
            return False

    def _start(self, message: Mapping[str, Any]) -> None:
        engine, incarnation, name = int(message["engine"]), int(message["incarnation"]), str(message["set"])
        try:
            if self._mpi.has(name):
                self._mpi.start(name, engine, incarnation, int(message["ranks"]))
                return
            child = self._brood.start_engine(self._roles["engine"], engine, incarnation, name)
        # No descriptor, no process, no memory is to be had; or the hosts of an MPI set have no room for so many.
        except (OSError, ValueError) as error:
            who = {"engine": engine, "incarnation": incarnation}
            cause = {"cause": f"it cannot be started: {error}", "tail": "", "farewell": ""}
            self._links["controller"].send({"event": "died", **who, **cause})
            return
        self._tell_started(engine, incarnation, child.pid)

    def _tell_started(self, engine: int, incarnation: int, pid: int) -> None:
        self._links["controller"].send({"event": "started", "engine": engine, "incarnation": incarnation, "pid": pid})

    def _wait_ms(self) -> float | None:
        times = [child.kill_at for child in self._brood]
        times += [self._captures.deadline(), self._pursuits.deadline(time.monotonic())]
        times += [self._memory.deadline(child.pid for child in self._brood.engines())]
        due = [time for time in times if time is not None]
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _kill_late(self) -> None:
        now = time.monotonic()
        for child in self._brood:
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at, child.is_killed = None, True
                child.signal_group(signal.SIGKILL)
        for pid, why in self._memory.condemned([child.pid for child in self._brood.engines()], now).items():
            self._brood[pid].sentence = why
            self._brood[pid].signal_group(signal.SIGKILL)

    def _reap(self) -> None:
        for child, status in self._brood.collect():
            self._on_end(child, describe_exit(status))

    def _on_end(self, child: Child, cause: str) -> None:
        unit = self._mpi.of(child)
        if unit is not None:
            if self._mpi.note_end(unit, child, cause):
                self._on_set_end(unit)
            return
        tail = self._brood.last_words(child)
        if self._over is not None:
            return
        if child.journal is None or child.capture is None:
            self._end(f"its {child.name} died ({cause})", "nanny", tail)
            return
        if child.sentence:
            cause = f"{cause}, {child.sentence}"
        message = {
            "event": "died",
            "engine": child.engine,
            "incarnation": child.incarnation,
            "cause": cause,
            "tail": tail,
            "farewell": child.journal.farewell(),
        }
        self._tell_broker(message, child.journal)
        child.journal.close()
        self._end_orphans()
        self._captures.close(child.capture)
        self._links["controller"].send(message)

    def _tell_broker(self, message: Mapping[str, Any], journal: Journal) -> None:
        """Tell what a dead engine had done."""
        self._pursuits.lost(journal)
        chunks, blob = [], b""
        for part in journal.read():
            sizes = [(done.status, -1 if done.payload is None else len(done.payload)) for done in part.finished]
            blob += b"".join(done.payload or b"" for done in part.finished)
            chunks.append({"chunk": part.chunk, "begun": part.begun, "finished": sizes})
        self._links["broker"].send({**message, "chunks": chunks}, blob)

    def _end_orphans(self) -> None:
        """See to it that the next incarnation finds free what children of this one may still hold."""
        end_all(lambda: self._brood.orphans(self._mpi.marks()), grace=0.0, timeout=END_SECONDS)

    def _on_set_end(self, unit: MpiSet) -> None:
        """Tell of the loss of an MPI set, when nothing of it is left."""
        sets = self._mpi
        if self._over is not None:
            return
        sets.end(unit)
        self._end_orphans()
        died = {"event": "died", "incarnation": unit.incarnation, "tail": sets.last_words(unit)}
        message = {**died, "cause": unit.cause()}
        # Before the broker: whoever hears of the loss, and then waits for the set, waits for the next one.
        self._links["controller"].send({**message, "engine": unit.first, "farewell": ""})
        told = {"unit": list(unit.ranks), "whole": f"MPI set {unit.name!r}"}
        for engine, rank in unit.ranks.items():
            self._tell_broker({**message, **told, "engine": engine}, rank.journal)
        sets.forget(unit)

    # the end

    def _end(self, reason: str, by: str, tail: str = "") -> None:
        if self._over is None:
            self._over = Ended(reason, utc_now(), by, tail)
            logger.info("ending %s: %s", self._title, reason)

    def _clean_up(self) -> None:
        """End everything below this process, say so in the record, and remove secret and folder."""
        ended = self._over or Ended("its nanny ended", utc_now(), "nanny")
        for link in self._links.values():
            link.send({"do": "end", "reason": ended.reason, "by": ended.by, "tail": ended.tail})
        parts = {child.pid for child in self._brood if child.name != "engine"} | self._mpi.begin_end()

        def engines() -> list[int]:
            return [pid for pid in process.descendants(self._pid) if pid not in parts]

        end_all(engines, grace=GRACE_SECONDS, timeout=END_SECONDS, wait=self._wait_and_pump)
        process.wait_gone([identify(pid) for pid in parts if pid in self._brood], GRACE_SECONDS)
        left = end_all(lambda: process.descendants(self._pid), grace=0.0, timeout=END_SECONDS)
        if left:
            ended = ended._replace(reason=f"{ended.reason}; could not be ended: {', '.join(map(str, left))}")
            logger.error("%s: %s", self._title, ended.reason)
        self._reap()
        self._captures.end()
        self._publisher.close()
        self._mpi.close()
        note(
            self._store,
            self._tag,
            # Whoever ends it by force has said why before.
            lambda record: record.with_state(ClusterState.ENDED, ended=record.ended or ended),
        )
        forget(self._store, self._tag, self._folder)

    def _wait_and_pump(self, alive: list[Identity], timeout: float) -> None:
        """Wait for processes to end, and let them say what they have to say."""
        deadline = time.monotonic() + timeout
        while alive and (remaining := deadline - time.monotonic()) > 0:
            alive = process.wait_gone(alive, min(_PUMP_SECONDS, remaining))
            self._captures.serve()


class _Interrupted(BaseException):
    """SIGTERM during an import; not an Exception, which the import might handle."""


def _interrupt(signum: int, frame: object) -> None:  # noqa: ARG001 - as the signal module has it
    raise _Interrupted


def _wake_only(signum: int, frame: object) -> None:
    """Let the wake-up pipe tell of the signal, and nothing else."""


def main(boot: bytes, ready_fd: int) -> None:
    """Be a head nanny. The end of this process is the end of its cluster."""
    document = json.loads(boot)
    os.umask(0o077)
    process.reset_signals()
    for folder in (document["cwd"], os.path.expanduser("~"), "/"):
        try:
            os.chdir(folder)
        except OSError:
            continue
        break
    process.close_input()
    log = open_log(log_path(document["folder"], "nanny"))
    redirect(log)
    os.close(log)
    logging.basicConfig(level=logging.INFO, handlers=[PartHandler(sys.stderr)], format=LOG_FORMAT)
    Nanny(document, ready_fd).run()


if __name__ == "__main__":
    main(_boot, int(sys.argv[2]))  # type: ignore[possibly-undefined]  # set at the top
