"""For tests of code that uses clusters: a launcher that starts no process, a store in memory, a clock to set.

::

    def test_my_pipeline_step():
        with StubLauncher.installed(), memory_store() as store:
            cluster = Cluster.create_sync("test", n=2, store=store)
            ...

The stub runs the real controller, broker and engines as threads of this process, over real sockets. So everything
behaves as it does for real but for processes: user code that ends its process ends the test. The ranks of an MPI set
are threads too, started and lost together; there is no MPI between them.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

from . import namespaces
from .broker import Broker
from .controller import Controller
from .engine import Engine
from .errors import LaunchError
from .incarnation import forget, update
from .interrupts import Outcome
from .journal import Journal
from .launchers import REGISTERED
from .link import link_pair
from .record import ClusterState, Ended, Job, Liveness, Record, utc_now
from .store import Store, open_store
from .store.memory import MemoryStore
from .wanted import kinds_of

__all__ = ["FakeClock", "StubLauncher", "memory_store"]


class FakeClock:
    """A clock that moves when it is told to. Call it for the time, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Move on and return the new time."""
        self.now += seconds
        return self.now


@contextmanager
def memory_store() -> Generator[Store]:
    """Give a new store in memory; its URL opens it in this process until the block is left."""
    name = uuid.uuid4().hex
    try:
        yield MemoryStore.named(name)
    finally:
        MemoryStore.drop(name)


class StubLauncher:
    """See `ipcluster_core.launchers.Launcher` for the contract."""

    _running: ClassVar[dict[str, _ThreadNanny]] = {}

    @classmethod
    @contextmanager
    def installed(cls, name: str = "local") -> Generator[None]:
        """Stand in for the launcher of that name; on leaving, end what still runs."""
        before = REGISTERED.get(name)
        REGISTERED[name] = cls
        try:
            yield
        finally:
            for nanny in list(cls._running.values()):
                nanny.end("the test is over", "StubLauncher")
                nanny.join()
            del REGISTERED[name]
            if before is not None:
                REGISTERED[name] = before

    async def start(self, boot: Mapping[str, Any], *, timeout: float) -> Mapping[str, Any]:
        """Start the parts of a cluster as threads."""
        nanny = _ThreadNanny(boot, lambda: self._running.pop(boot["tag"], None))
        self._running[boot["tag"]] = nanny
        nanny.start()
        if not await asyncio.to_thread(nanny.ready.wait, timeout):
            raise LaunchError(f"the threads of {boot['tag']} were not ready within {timeout:g} s")
        return {"tag": boot["tag"]}

    def poll(self, job: Job) -> Liveness:
        """Tell whether the threads run."""
        return Liveness.ALIVE if job.reference.get("tag") in self._running else Liveness.GONE

    async def wait(self, job: Job, *, timeout: float) -> bool:
        """Wait until the threads have ended."""
        nanny = self._running.get(str(job.reference.get("tag")))
        if nanny is not None:
            await asyncio.to_thread(nanny.join, timeout)
        return self.poll(job) is Liveness.GONE

    async def stop(self, job: Job | None, tag: str, *, timeout: float) -> list[str]:  # noqa: ARG002 - by the contract
        """End the threads."""
        nanny = self._running.get(tag)
        if nanny is None:
            return []
        nanny.end("stopped", "StubLauncher")
        await asyncio.to_thread(nanny.join, timeout)
        return [nanny.name] if nanny.is_alive() else []


class _ThreadNanny(threading.Thread):
    """Does with threads what `nanny.Nanny` does with processes."""

    def __init__(self, boot: Mapping[str, Any], on_end: Callable[[], object]) -> None:
        super().__init__(name=f"stub-nanny {boot['tag']}", daemon=True)
        self.ready = threading.Event()
        self._boot = boot
        self._on_end = on_end
        self._tag = str(boot["tag"])
        self._store = open_store(str(boot["store"]))
        self._engines: dict[int, tuple[Engine, threading.Thread, int]] = {}
        self._mpi_sets = {name for name, kind in kinds_of(boot["spec"]).items() if kind == "mpi"}
        self._units: dict[int, range] = {}  # the ranks of MPI sets, by the first of them
        self._over: Ended | None = None
        self._left: deque[tuple[int, int, str]] = deque()  # engines that left by themselves, and why
        self._wake_read, self._wake_write = os.pipe()
        self._controller, controller = link_pair()
        self._broker, broker = link_pair()
        upper, lower = link_pair()
        self._far_ends = (controller, broker, upper, lower)
        runs = (Broker(boot, broker, lower).run, Controller(boot, controller, upper).run)
        self._parts = [threading.Thread(target=run, name=f"stub {self._tag}", daemon=True) for run in runs]

    def end(self, reason: str, by: str) -> None:
        """Have it all end."""
        if self._over is None:
            self._over = Ended(reason, utc_now(), by)
            os.write(self._wake_write, b"x")

    def run(self) -> None:
        """Register, start the parts, follow the controller, and clean up."""
        job = Job(str(self._boot["launcher"]), {"tag": self._tag})
        update(self._store, self._tag, lambda record: record._replace(jobs=(job,)))
        for module in self._boot["preload"]:
            import_module(module)
        for part in self._parts:
            part.start()
        while self._over is None:
            sources: list[Any] = [self._wake_read, self._controller, self._broker]
            readable, _, _ = select.select(sources, [], [])
            if self._controller in readable:
                self._from_controller()
            if self._broker in readable:
                self._from_broker()
            if self._wake_read in readable and self._over is None:
                os.read(self._wake_read, 1)
                number, incarnation, farewell = self._left.popleft()
                if number in self._engines and self._engines[number][2] == incarnation:
                    self._stop_engine(number, farewell)
        self._clean_up()

    def _from_controller(self) -> None:
        try:
            for message, _ in self._controller.receive():
                self._on_command(message)
        except EOFError:
            self._over = self._over or Ended("its controller thread ended", utc_now(), "StubLauncher")

    def _from_broker(self) -> None:
        """Read, and do nothing: a thread cannot be interrupted."""
        try:
            list(self._broker.receive())
        except EOFError:
            self._over = self._over or Ended("its broker thread ended", utc_now(), "StubLauncher")

    def _on_command(self, message: Mapping[str, Any]) -> None:
        match message["do"]:
            case "ready":
                self.ready.set()
            case "start":
                self._start(int(message["engine"]), int(message["incarnation"]), str(message["set"]), message["ranks"])
            case "stop":
                self._stop_engine(int(message["engine"]))
            case "interrupt":
                pass  # a thread cannot be interrupted
            case "interrupt_running":
                outcomes = {str(engine): Outcome.GOES_ON for engine in message["engines"]}
                self._answer(message, {"outcomes": outcomes})
            case "signal":
                self._answer(message, {"engines": []})
            case _:
                self._over = self._over or Ended(message["reason"], utc_now(), message["by"], message["tail"])

    def _answer(self, message: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        self._controller.send({"event": "answer", "request": message["request"], "content": content})

    def _start(self, first: int, incarnation: int, name: str, ranks: int) -> None:
        """Start an engine, or the ranks of an MPI set."""
        boot: dict[str, Any] = {**self._boot, "set": name}
        if name in self._mpi_sets:
            self._units[first] = range(first, first + ranks)
            limits = {
                "max_tasks": None,
                "max_memory_bytes": None,
            }  # those that replace single engines are not for ranks
            boot = {**boot, "ranks": ranks, "spec": {**boot["spec"], **limits}}
        for number in range(first, first + ranks):
            self._start_engine(boot, number, incarnation)

    def _start_engine(self, boot: Mapping[str, Any], number: int, incarnation: int) -> None:
        journal = Journal()
        engine = Engine(boot, number, incarnation, journal)

        def run() -> None:
            namespaces.begin(str(boot["folder"]), number, incarnation, utc_now(), thread=True)
            engine.run()
            if journal.farewell():
                self._left.append((number, incarnation, journal.farewell()))
                os.write(self._wake_write, b"x")

        thread = threading.Thread(target=run, name=f"stub-engine {self._tag} {number}", daemon=True)
        self._engines[number] = (engine, thread, incarnation)
        thread.start()
        self._controller.send({"event": "started", "engine": number, "incarnation": incarnation, "pid": os.getpid()})

    def _stop_engine(self, number: int, farewell: str = "") -> None:
        """Stop an engine, or the MPI set that it is of, and tell so."""
        if number not in self._engines:
            return
        first = next((first for first, ranks in self._units.items() if number in ranks), number)
        unit = list(self._units.pop(first, ()))
        ending = {rank: self._engines.pop(rank) for rank in unit or [number]}
        for engine, _, _ in ending.values():
            engine.stop()
        for _, thread, _ in ending.values():
            thread.join()
        gone = {"event": "died", "incarnation": ending[number][2], "cause": "stopped", "tail": ""}
        told = {"unit": unit, "whole": f"the MPI set of engine {first}"} if unit else {}
        for rank in ending:
            self._broker.send({**gone, **told, "engine": rank, "chunks": []})
        self._controller.send({**gone, "engine": first, "farewell": farewell})

    def _clean_up(self) -> None:
        over = self._over or Ended("stopped", utc_now(), "StubLauncher")
        for link in (self._controller, self._broker):
            link.send({"do": "end", "reason": over.reason, "by": over.by, "tail": over.tail})
        for engine, thread, _ in self._engines.values():
            engine.stop()
            thread.join()
        for part in self._parts:
            part.join()
        for link in (self._controller, self._broker, *self._far_ends):
            link.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

        def ended(record: Record) -> Record:
            return record.with_state(ClusterState.ENDED, ended=over)

        update(self._store, self._tag, ended)
        forget(self._store, self._tag, str(self._boot["folder"]))
        self._on_end()
