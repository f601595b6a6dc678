"""Performs a plan on real processes, and reports what came of it; judges nothing."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import leaks
from ipcluster_core import Client, Cluster, ClusterManager, errors
from ipcluster_core.record import Record

from .actors import Actor, kill, parts, pause, record_of
from .plan import WINDOW, Action, Plan
from .work import Outcome, outcome_of, submit

__all__ = ["Report", "perform"]

#: Seconds within which each future must be settled, and each process of ours must be done, after the last disturbance.
PATIENCE = 30.0


@dataclass
class Report:
    """What came of a round, as plain data."""

    #: Outcomes that the clients have seen, and those fetched by task id from another one.
    outcomes: list[Outcome] = field(default_factory=list)
    fetched: list[Outcome] = field(default_factory=list)
    #: How often each task ran.
    runs: Counter[int] = field(default_factory=Counter)
    #: Names of the disturbances that hit something.
    performed: set[str] = field(default_factory=set)
    #: Tasks that somebody asked to be cancelled.
    asked: set[int] = field(default_factory=set)
    #: What verbs raised: (verb, type name, text).
    refusals: list[tuple[str, str, str]] = field(default_factory=list)
    #: What other processes said, by role.
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    #: Threads of this process that did not end in time, or failed, and why.
    stuck: list[str] = field(default_factory=list)
    leftovers: tuple[str, ...] = ()
    record: Record | None = None
    #: Documents and files in the store, as the first two parts of each path.
    store: list[str] = field(default_factory=list)
    #: What is left of processes, files, threads and descriptors, one line each.
    leaked: str = ""
    #: Listening sockets in the store that are left.
    sockets: list[str] = field(default_factory=list)
    seconds: float = 0.0


def perform(plan: Plan, folder: Path) -> Report:
    """Perform a plan with a store of its own in a folder."""
    before = leaks.take_snapshot()
    start = time.monotonic()
    os.environ["IPCLUSTER_STORE"] = f"file:{folder}/store"
    round_ = _Round(plan, folder)
    try:
        round_.live()
    finally:
        round_.end()
    report = round_.report
    left = _ours(leaks.wait_until_clean(before, leaks.Policy()), round_.uids)
    report.leaked = str(left)
    leaks.end(left)
    report.sockets = [path for path in _listening() if path.startswith(str(folder))]
    report.seconds = time.monotonic() - start
    return report


def _ours(left: leaks.Snapshot, uids: set[str]) -> leaks.Snapshot:
    """Leave out what other people's clusters on this machine have come to meanwhile."""
    below = {process.pid for process in leaks.descending(list(leaks.all_processes()), {os.getpid()})}
    return dataclasses.replace(
        left,
        processes=frozenset(one for one in left.processes if one.run == leaks.RUN or one.pid in below),
        files=frozenset(path for path in left.files if Path(path).name.removeprefix("ipcluster-") in uids),
    )


class _Round:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.report = Report()
        self._folder = folder
        self._log = folder / "runs"
        self._ids = folder / "ids"
        self._rng = random.Random(plan.seed)
        self._actors: list[Actor] = []
        self._cast: dict[Action, list[Actor]] = {}
        self._second: Actor | None = None
        self._threads: list[threading.Thread] = []
        self._futures: dict[int, concurrent.futures.Future[Any]] = {}
        self._client: Client | None = None
        self._start = 0.0
        #: Of all incarnations that were there, as their folders in the store told.
        self.uids: set[str] = set()
        self._ended = threading.Event()

    # life

    def live(self) -> None:
        """Create, submit and disturb, until all is settled or patience is over."""
        watcher = threading.Thread(target=self._note_uids, name="chaos uids", daemon=True)
        watcher.start()
        cluster = self._create()
        if cluster is None:
            return
        try:
            self._client = Client.connect(self.plan.name)
        except errors.ClusterError as error:
            self._refused("connect", error)
        self._prepare()
        self._start = time.monotonic()
        if self._second is not None:
            self._second.go()
        self._thread("submit", self._submit)
        for action in self.plan.actions:
            self._thread(action.name, functools.partial(self._act, action))
        if self.plan.n == 0 or any(action.name == "scale" for action in self.plan.actions):
            self._thread("scale in the end", functools.partial(self._give_engines, cluster))
        self._join()
        deadline = time.monotonic() + PATIENCE
        concurrent.futures.wait(self._futures.values(), PATIENCE)
        self._hear_actors(deadline)
        tasks = [task for task in self.plan.tasks_of(0) if task.number in self._futures]
        self.report.outcomes += [outcome_of(self._futures[task.number], task) for task in tasks]

    def end(self) -> None:
        """Disconnect, tear down whatever has the name, and see what is left."""
        self._ended.set()
        if self._client is not None:
            self._thread("shutdown", functools.partial(self._client.shutdown, wait=False))
            self._join()
        self._hear_actors(time.monotonic() + PATIENCE)
        with suppress(errors.ClusterNotFound):
            self.report.leftovers = ClusterManager().teardown_sync(self.plan.name, force=True).leftovers
        self.report.record = record_of(self.plan.name)
        root = self._folder / "store"
        files = [path.relative_to(root) for path in root.rglob("*") if not path.is_dir()]
        self.report.store = sorted({"/".join(path.parts[:2]) for path in files})
        if self._log.exists():
            self.report.runs.update(map(int, self._log.read_text().split()))

    def _create(self) -> Cluster | None:
        plan = self.plan
        if plan.create == "race":
            actors = [self._actor("create", **self._wish(mode)) for mode in plan.create_modes]
            for actor in actors:
                actor.wait_ready(PATIENCE)
            for actor in actors:
                actor.go()
        if plan.create == "killed":
            actor = self._actor("create", **self._wish("fail"))
            actor.wait_ready(PATIENCE)
            actor.go()
            time.sleep(plan.create_kill)  # the plan's moment
            actor.kill()
        mode: Any = "fail" if plan.create == "plain" else "attach"
        spec: Any = plan.spec
        try:
            return Cluster.create_sync(plan.name, n=plan.n, if_exists=mode, timeout=PATIENCE, **spec)
        except errors.ClusterError as error:
            self._refused("create", error)
            return None

    def _wish(self, mode: str) -> dict[str, object]:
        return {"name": self.plan.name, "n": self.plan.n, "if_exists": mode, "spec": self.plan.spec}

    def _prepare(self) -> None:
        """Start the processes that act later, and let them get ready."""
        tasks = self.plan.tasks_of(1)
        if tasks:
            wanted = {"log": str(self._log), "ids": str(self._ids), "patience": PATIENCE}
            self._second = self._actor("client", tasks=[asdict(task) for task in tasks], **wanted)
        for action in self.plan.actions:
            if action.name == "create":
                self._cast[action] = [self._actor("create", **self._wish(mode)) for mode in action.modes]
            elif action.name in ("teardown twice", "teardown claims"):
                claims = ("anna", "berta") if action.name == "teardown claims" else (None, None)
                self._cast[action] = [self._actor("leave", claim=claim) for claim in claims]
        for actor in self._actors:
            actor.wait_ready(PATIENCE)

    def _actor(self, role: str, **wanted: object) -> Actor:
        number = len(self._actors)
        log = self._folder / f"actor-{number}.log"
        actor = Actor(role, {"name": self.plan.name, **wanted}, log)
        self._actors.append(actor)
        return actor

    def _hear_actors(self, deadline: float) -> None:
        for actor in self._actors:
            actor.go()
        while self._actors:
            actor = self._actors.pop()
            said = actor.said(deadline)
            self.report.said.append((actor.role, said))
            self.report.outcomes += [Outcome(**outcome) for outcome in said.pop("outcomes", ())]

    # threads

    def _thread(self, name: str, run: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception:  # noqa: BLE001 - whatever a verb raises that is none of our errors is a finding
                self.report.stuck.append(f"{name} failed: {traceback.format_exc()}")

        thread = threading.Thread(target=guarded, name=f"chaos {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.report.stuck += [f"{thread.name} does not end" for thread in self._threads if thread.is_alive()]
        self._threads.clear()

    def _wait_for(self, at: float) -> None:
        time.sleep(max(0.0, self._start + at - time.monotonic()))  # the plan's moment

    def _submit(self) -> None:
        if self._client is None:
            return
        for task in self.plan.tasks_of(0):
            self._wait_for(task.at)
            self._futures[task.number] = submit(self._client, str(self._log), task)

    def _note_uids(self) -> None:
        while not self._ended.wait(0.02):
            with suppress(FileNotFoundError):
                self.uids.update(path.name for path in (self._folder / "store" / "run").iterdir())

    def _give_engines(self, cluster: Cluster) -> None:
        """Scale up after all disturbances: tasks without engines wait for some, by contract for ever."""
        self._wait_for(WINDOW + 0.1)
        self._try("scale", lambda: cluster.scale_sync(2))

    def _try(self, verb: str, run: Callable[[], object]) -> None:
        try:
            run()
        except errors.ClusterError as error:
            self._refused(verb, error)

    def _refused(self, verb: str, error: errors.ClusterError) -> None:
        self.report.refusals.append((verb, type(error).__name__, str(error)))

    # disturbances

    def _act(self, action: Action) -> None:
        self._wait_for(action.at)
        verb, _, target = action.name.partition(" ")
        if verb in ("kill", "stop"):
            if self._hit(verb, target, action.seconds):
                self.report.performed.add(action.name)
            return
        self.report.performed.add(action.name)
        if action in self._cast:
            for actor in self._cast[action]:
                actor.go()
            return
        self._try(verb, functools.partial(self._verb, action))

    def _hit(self, verb: str, target: str, seconds: float) -> bool:
        """Kill or stop a process; return whether it was there."""
        if target == "client":
            if self._second is None or self._second.process.poll() is not None:
                return False
            return self._second.kill() if verb == "kill" else pause(self._second.process.pid, seconds)
        found = parts(self.plan.name)
        if target == "all":
            return kill([pid for pids in found.values() for pid in pids])
        pids = found.get(target)
        if not pids:
            return False
        pid = self._rng.choice(pids)
        return kill([pid]) if verb == "kill" else pause(pid, seconds)

    def _verb(self, action: Action) -> None:
        if action.name == "teardown force":
            ClusterManager().teardown_sync(self.plan.name, force=True)
            return
        if action.name == "cancel":
            self._cancel(action.tasks)
            return
        if action.name == "fetch":
            self._fetch(action.tasks)
            return
        cluster = Cluster.connect_sync(self.plan.name)
        if action.name == "scale":
            cluster.scale_sync(action.n)
        elif action.name == "interrupt":
            cluster.interrupt_sync()
        else:
            cluster.restart_sync(timeout=PATIENCE - 10)

    def _cancel(self, numbers: Iterable[int]) -> None:
        """Cancel tasks: every second one of ours by its future, the others by their ids from another client."""
        ids = self._task_ids()
        mine = [number for number in numbers if number % 2 and number in self._futures]
        others = [number for number in numbers if number in ids and number not in mine]
        self.report.asked.update(mine, others)
        for number in mine:
            self._futures[number].cancel()
        client = Client.connect(self.plan.name)
        try:
            client.cancel([ids[number] for number in others])
        finally:
            client.shutdown(wait=False)

    def _fetch(self, numbers: Iterable[int]) -> None:
        """Get outcomes by their ids from another client."""
        ids = self._task_ids()
        tasks = {task.number: task for task in self.plan.tasks}
        client = Client.connect(self.plan.name)
        try:
            futures = {number: client.future(ids[number]) for number in numbers if number in ids}
            concurrent.futures.wait(futures.values(), PATIENCE - 10)
            self.report.fetched += [outcome_of(future, tasks[number]) for number, future in futures.items()]
        finally:
            client.shutdown(wait=False)

    def _task_ids(self) -> dict[int, str]:
        """Return the ids of the tasks that were submitted so far, by number."""
        found = {number: getattr(future, "task_id", None) for number, future in list(self._futures.items())}
        with suppress(OSError, ValueError):  # not there yet, or half written
            found |= {int(number): task_id for number, task_id in json.loads(self._ids.read_text()).items()}
        return {number: task_id for number, task_id in found.items() if task_id is not None}


def _listening() -> list[str]:
    """Return the paths of the unix sockets of this machine that listen (proc(5): flag 0x10000)."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    fields = [line.split(maxsplit=7) for line in lines]
    return [entry[7] for entry in fields if len(entry) == 8 and int(entry[3], 16) & 0x10000]
