"""What can be asked of a running cluster: the verbs that its controller answers. Each opens, asks, closes."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from . import ending, reach
from ._sync import synced
from .errors import ClusterBroken, ClusterEnded
from .record import ClusterState, Liveness, Record
from .status import ClusterEvent, ClusterStatus
from .store import Store

__all__ = ["Steering"]


class Steering(ABC):
    """The verbs of a cluster between its creation and its end."""

    @abstractmethod
    def _known(self) -> tuple[Store, Record]:
        """Return the store, and the record of the incarnation that is meant."""

    async def _ask(self, verb: str, *, timeout: float, **arguments: Any) -> Mapping[str, Any]:
        """Ask this incarnation's controller."""
        return await reach.ask_controller(*self._known(), verb, timeout=timeout, **arguments)

    async def status(self, *, timeout: float = 10.0) -> ClusterStatus:
        """Return how the cluster is. An ended or broken one has a status too.

        Returns
        -------
        ClusterStatus
            As the controller knows it now; from the record where there is no controller any more.

        Raises
        ------
        ClusterNotFound, StaleHandle
            Its record is gone, or of another incarnation.
        ClusterTimeout
            Its controller lives and did not answer within `timeout` seconds.
        """
        record = reach.current(*self._known())
        if record.state is ClusterState.ENDED:
            return ClusterStatus(record.name, record.incarnation, record.state, reasons=(record.end_message(),))
        try:
            answer = await self._ask("status", timeout=timeout)
        except ClusterEnded as error:
            return ClusterStatus(record.name, record.incarnation, ClusterState.ENDING, reasons=(str(error),))
        except ClusterBroken as error:
            unseen = ending.life_of(record) is Liveness.UNKNOWN
            state = ClusterState.UNKNOWN if unseen else ClusterState.BROKEN
            return ClusterStatus(record.name, record.incarnation, state, record.sets, reasons=(str(error),))
        return ClusterStatus.from_answer(record, answer)

    async def wait(self, n: int | None = None, *, timeout: float = 60.0) -> int:
        """Wait until engines are up.

        Parameters
        ----------
        n
            How many; default all that were asked for.
        timeout
            Seconds.

        Returns
        -------
        int
            How many are up.

        Raises
        ------
        LaunchError
            So many can certainly not come up; says why, with the last output of those that failed.
        ClusterTimeout
            They were not up within `timeout` seconds.
        ClusterEnded
            The cluster ended meanwhile.
        """
        answer = await self._ask("wait", timeout=timeout + 2, n=n, limit=timeout)
        return int(answer["up"])

    async def scale(self, n: int, *, engines: str = "default", drain: float = 300.0, timeout: float = 10.0) -> None:
        """Set the number of engines in a set. Absolute, so it is safe to repeat; returns at once.

        New engines start together, see `wait`. For fewer, idle ones leave first; busy ones finish the tasks they
        have, within `drain`. A set that adapts to its load (see `adapt`) does so no longer. With none, tasks
        wait until there are some. An MPI set, whose size is that of its world, is ended and started with the new size;
        what its ranks run or wait for is lost, and says so.

        Parameters
        ----------
        n
            Number wanted.
        engines
            Name of the set.
        drain
            Seconds that busy engines may go on. Then they are ended, and their tasks fail with `EngineLost`, which says
            that they were scaled down; 0 ends them at once. Those that an earlier call asked to leave are included.
        timeout
            Seconds for the controller to accept it.

        Raises
        ------
        ClusterError
            There is no such set; the message names those that there are.
        ValueError
            `drain` is negative.
        """
        if not drain >= 0:
            raise ValueError(f"drain is a number of seconds from 0 on, not {drain}")
        await self._ask("scale", timeout=timeout, set=engines, n=n, drain=drain)

    async def adapt(
        self,
        minimum: int = 0,
        maximum: int = 8,
        *,
        engines: str = "default",
        patience: float = 30.0,
        timeout: float = 10.0,
    ) -> None:
        """Have the cluster size a set by its load from now on, until `scale` ends it. Safe to repeat; returns at once.

        There is an engine for each task that runs or waits, within the bounds; quick tasks share one. Engines are
        started at once, also from none. They are ended when fewer have been enough for some time, and only idle ones.
        The cluster does this by itself, whichever clients come and go. Where engines cannot be started, it tries again
        after pauses that grow, and says so in `status`; tasks wait for two such pauses, and then fail with the reason.

        Parameters
        ----------
        minimum, maximum
            Least and most engines. A cluster with none is idle, and may end by its ``idle_timeout``.
        engines
            Name of the set.
        patience
            Seconds for which fewer engines must have been enough.
        timeout
            Seconds for the controller to accept it.

        Raises
        ------
        ValueError
            The minimum is negative or more than the maximum, or the patience is negative.
        ClusterError
            There is no such set; the message names those that there are.
        """
        if not 0 <= minimum <= maximum:
            raise ValueError(f"a set cannot have between {minimum} and {maximum} engines: 0 <= minimum <= maximum")
        if not 0 <= patience < float("inf"):
            raise ValueError(f"patience={patience} is not a number of seconds")
        bounds = {"minimum": minimum, "maximum": maximum, "patience": patience}
        await self._ask("adapt", timeout=timeout, set=engines, **bounds)

    async def restart(self, engines: str | Sequence[int] | None = None, *, timeout: float = 60.0) -> None:
        """Start engines anew under their ids, and wait until they are up.

        What an engine holds (memory, a GPU, locks) is free before its successor starts. A task that it runs is lost,
        and says why; tasks that wait for it are kept. Other engines are not disturbed. For users of IPython Parallel:
        this is ``client.shutdown(targets, restart=True)``, in one call.

        Parameters
        ----------
        engines
            Ids, or the name of a set; default all. One that was given up gets another chance.
        timeout
            Seconds until they must be up.

        Raises
        ------
        ClusterError
            There is no such engine; the message names those that there are.
        LaunchError
            One did not come back; the message ends with its last output.
        ClusterTimeout
            They were not up within `timeout` seconds.
        """
        await self._ask("restart", timeout=timeout + 2, engines=_plain(engines), limit=timeout)

    async def signal(
        self,
        signum: int,
        engines: str | Sequence[int] | None = None,
        *,
        target: Literal["engines", "launcher"] = "engines",
        timeout: float = 10.0,
    ) -> list[int]:
        """Send a signal to engines: to their own processes, and not to what those have started.

        SIGINT interrupts the task that runs, as Ctrl-C does; see `interrupt` for never hitting the one after it. What
        else a signal does is up to the code that engines have run: without a handler most of them end an engine,
        which is then started again.

        Parameters
        ----------
        signum
            Which, for example ``signal.SIGUSR1``.
        engines
            Ids, or the name of a set; default all.
        target
            "launcher": not the ranks of an MPI set, but its mpiexec. SIGUSR1 it passes on to all ranks; SIGUSR2 only
            that of Open MPI does, MPICH's ends by it, and the set with it. SIGINT and SIGTERM end the set.
        timeout
            Seconds for the answer.

        Returns
        -------
        list of int
            The engines that were signalled. Those that are not up are left out.

        Raises
        ------
        ValueError
            There is no such signal, or `target` is something else.
        ClusterError
            There is no such engine or set, the message names those that there are; or none with a launcher.
        """
        if signum not in signal.valid_signals():
            raise ValueError(f"there is no signal {signum}")
        if target not in ("engines", "launcher"):
            raise ValueError(f"target is 'engines' or 'launcher', not {target!r}")
        order = {"signum": int(signum), "engines": _plain(engines), "target": target}
        answer = await self._ask("signal", timeout=timeout, **order)
        return list(answer["engines"])

    async def interrupt(self, engines: str | Sequence[int] | None = None, *, timeout: float = 10.0) -> dict[int, str]:
        """Raise KeyboardInterrupt in the tasks that run on engines at this moment, never in those after them.

        It ends Python code and most system calls, `time.sleep` for example, and is the outcome of the task unless its
        code handles it. C code goes on until it returns to Python, and is interrupted then.

        Parameters
        ----------
        engines
            Ids, or the name of a set; default all.
        timeout
            Seconds for the answer.

        Returns
        -------
        dict
            What became of it by engine, after one second at most: "interrupted"; "idle" if no task ran or it came to
            its end by itself; "goes on: cannot be interrupted here, use restart"; "not up" if there is no engine.

        Raises
        ------
        ClusterError
            There is no such engine or set; the message names those that there are.
        """
        answer = await self._ask("interrupt", timeout=timeout, engines=_plain(engines))
        return {int(engine): str(outcome) for engine, outcome in answer["outcomes"].items()}

    async def logs(
        self, engines: str | Sequence[int] | None = None, *, tail: int = 100, timeout: float = 10.0
    ) -> dict[str, str]:
        """Return what the parts wrote last.

        Parameters
        ----------
        engines
            Ids, also of engines that are gone; or the name of a set, with its mpiexec if it has one; default all parts.
        tail
            Lines of each.
        timeout
            Seconds for the controller to answer.

        Returns
        -------
        dict
            Text by part: "engine-0", "controller", "broker", "nanny"; "mpiexec-4" where that is the first engine of an
            MPI set.

        Raises
        ------
        ClusterError
            There is no such set; the message names those that there are.
        """
        answer = await self._ask("logs", timeout=timeout, engines=_plain(engines), tail=tail)
        return dict(answer["logs"])

    async def events(self, *, tail: int = 100, timeout: float = 10.0) -> list[ClusterEvent]:
        """Return what has happened in the cluster's life; it is forgotten when the cluster ends.

        Parameters
        ----------
        tail
            How many events, of the thousand that are kept.
        timeout
            Seconds for the controller to answer.

        Returns
        -------
        list of ClusterEvent
            The newest last.
        """
        answer = await self._ask("events", timeout=timeout, tail=tail)
        return [ClusterEvent(**event) for event in answer["events"]]

    status_sync = synced(status)
    wait_sync = synced(wait)
    scale_sync = synced(scale)
    adapt_sync = synced(adapt)
    restart_sync = synced(restart)
    signal_sync = synced(signal)
    interrupt_sync = synced(interrupt)
    logs_sync = synced(logs)
    events_sync = synced(events)


def _plain(engines: str | Sequence[int] | None) -> str | list[int] | None:
    return engines if engines is None or isinstance(engines, str) else [int(engine) for engine in engines]
