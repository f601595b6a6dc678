"""A step's connection to run work: an `Executor` whose tasks run on the engines of a named cluster.

The lean path of a step: record, socket, first result, with neither asyncio nor pydantic.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from . import errors
from .calls import call_each, collect, engine_ids, hold, results_of, submit_chunks, take, value_of
from .connection import Connection, Options
from .futures import TaskFuture
from .incarnation import read_record, resolve
from .record import ClusterState
from .refs import Ref
from .store import Store

if TYPE_CHECKING:
    from .handle import ClusterHandle
    from .streaming import OutputStream

__all__ = ["Client"]

T = TypeVar("T")


class Client(concurrent.futures.Executor):
    """Runs functions on the engines of a cluster.

    A `concurrent.futures.Executor`: its futures work with `concurrent.futures.wait`, `as_completed` and
    ``asyncio.wrap_future``. Leaving a ``with`` block waits for the results and disconnects; it never ends the
    cluster. Work that was sent goes on when the client goes.
    """

    def __init__(self, connection: Connection, options: Options | None = None) -> None:
        self._connection = connection
        self._options = options or Options()

    @classmethod
    def connect(
        cls,
        cluster: str | Mapping[str, Any] | ClusterHandle,
        *,
        store: str | Store | None = None,
        timeout: float = 30.0,
        check_versions: bool = True,
    ) -> Self:
        """Connect to a running cluster from any process that reaches its store.

        Parameters
        ----------
        cluster
            Name, handle, dict or JSON string of a handle.
        store
            Store or its URL; default: the handle's, else as `open_store` has it.
        timeout
            Seconds to wait for a cluster that is still being created, and for its answer.
        check_versions
            Whether to be refused when Python's minor version, cloudpickle or this package differ; otherwise the table
            of differences is logged as a warning.

        Returns
        -------
        Client
            Connected.

        Raises
        ------
        ClusterNotFound
            There is no such record.
        ClusterEnded
            It has ended; the message says when, why and by whom.
        StaleHandle
            The handle is of an earlier incarnation.
        ClusterBroken
            Its processes are gone.
        ClusterTimeout
            No answer within `timeout` seconds.
        VersionMismatch
            The versions here and there do not go together; the message has a table.
        """
        deadline = time.monotonic() + timeout
        opened, record = resolve(cluster, store)
        while record.require_living().state is ClusterState.CREATING:
            if time.monotonic() > deadline:
                raise errors.ClusterTimeout(f"{record.title} is still being created after {timeout:g} s")
            time.sleep(0.02)  # a record cannot be waited for, only read again
            record = read_record(opened, record.name)
        left = max(1.0, deadline - time.monotonic())
        return cls(Connection(opened, record, left, check_versions=check_versions))

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self._connection.record.name

    def options(
        self,
        *,
        retries: int | None = None,
        engines: Sequence[int] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        on_note: Callable[[Any], object] | None = None,
    ) -> Self:
        """Return a view of this client with settings for what is submitted through it.

        Parameters
        ----------
        retries
            How often a task may be run again after it was lost together with its engine. Default 0: at most once.
        engines
            Ids of the engines that may run the tasks. Default: any.
        timeout
            Seconds that each task may run. Then it is interrupted, after two more seconds ended with its engine, and
            fails with `TaskTimeout`. Such tasks are given to engines one at a time. Default: no limit.
        name
            What messages call the tasks.
        on_note
            Gets each value that a task sends by `send_note` while it runs: in order, and before its result. It is
            called in this client's I/O thread, so it must be quick, and must not wait for results.

        Returns
        -------
        Client
            Shares this one's connection: shutting down either ends both.

        Raises
        ------
        ValueError
            `timeout` is not positive, or `retries` is negative.
        """
        if timeout is not None and not timeout > 0:
            raise ValueError(f"a task's timeout is a positive number of seconds, not {timeout}")
        if retries is not None and retries < 0:
            raise ValueError(f"retries cannot be negative: {retries}")
        now = self._options
        changed = Options(
            now.retries if retries is None else retries,
            now.engines if engines is None else tuple(engines),
            now.timeout if timeout is None else timeout,
            now.name if name is None else name,
            on_note=now.on_note if on_note is None else on_note,
        )
        return type(self)(self._connection, changed)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> TaskFuture[T]:
        """Run ``fn(*args, **kwargs)`` on an engine.

        Arguments are pickled now; the function when it is first used here, so later changes of what it closes over
        are not seen.

        Returns
        -------
        TaskFuture
            Its ``result()`` raises what the task raised (the engine's traceback is its ``__cause__``), `EngineLost`
            when the engine died with it, `ClusterEnded` or `ClusterBroken` when the cluster went.

        Raises
        ------
        ClusterEnded, ClusterBroken
            The cluster is gone already.
        RuntimeError
            The client was shut down.
        """
        return self._connection.submit(fn, args, kwargs, self._options)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[T]:
        """Run `fn` over the items of the iterables; yield results in their order.

        Parameters
        ----------
        fn
            Called with one item of each iterable.
        iterables
            Read to the end at once; the shortest sets the length.
        timeout
            Seconds from now until the last result must be here.
        chunksize
            Items per task. Default: each item is a task of its own, with its own failure; small ones travel together
            anyway. More than 1 makes one task of so many items, which fail together.

        Returns
        -------
        iterator
            Leaving it early cancels what no engine has been given yet.

        Raises
        ------
        ClusterTimeout
            A result was not there in time; raised while iterating.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if chunksize is not None and chunksize > 1:
            chunks = submit_chunks(self._connection, self._options, fn, iterables, chunksize)
            lists = results_of(self._connection, chunks, deadline)
            return itertools.chain.from_iterable(lists)
        calls = zip(*iterables, strict=False)
        submit, options = self._connection.submit, self._options
        return results_of(self._connection, [submit(fn, call, {}, options) for call in calls], deadline)

    def run(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        engines: str | Sequence[int] = "all",
        timeout: float | None = None,
        **kwargs: Any,
    ) -> dict[int, T]:
        """Run ``fn(*args, **kwargs)`` once on each engine.

        The calls are queued together: of two that are made at the same time every engine runs its part in the same
        order, so collective calls of MPI do not meet those of others. The first exception is raised when it comes; a
        note of it tells which engines are still busy.

        Parameters
        ----------
        fn, args, kwargs
            The call.
        engines
            Ids, or the name of a set, or ``"all"`` that are up now. All ranks of an MPI set that is named must be up.
        timeout
            Seconds to wait for all results; default no limit but the cluster's end.

        Returns
        -------
        dict
            Result by engine id.

        Raises
        ------
        ClusterTimeout
            A result was not there in time.
        ClusterError
            There is no such set, or none of it is up, or not all ranks of an MPI set are.
        Exception
            Whatever one of the calls raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return collect(self._connection, self.spread(fn, *args, engines=engines, timeout=timeout, **kwargs), deadline)

    def spread(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        engines: str | Sequence[int] = "all",
        timeout: float | None = None,
        **kwargs: Any,
    ) -> dict[int, TaskFuture[T]]:
        """Submit ``fn(*args, **kwargs)`` once to each engine, as `run` does, without waiting for the results.

        Parameters
        ----------
        fn, args, kwargs, engines
            As for `run`, and so are the errors.
        timeout
            Seconds for the cluster to say which engines are up; default 10.

        Returns
        -------
        dict
            Future by engine id. They can be cancelled, and looked up by their ``task_id``.
        """
        ids = engine_ids(self._connection, engines, timeout)
        return call_each(self._connection, self._options, (fn, args, kwargs), ids)

    def push(
        self, values: Mapping[str, Any], *, engines: str | Sequence[int] = "all", timeout: float | None = None
    ) -> list[int]:
        """Give each engine values to keep by name, for tasks and steps that come later; see `namespace`.

        Parameters
        ----------
        values
            By name. Pickled now. Those of the same names are replaced, others are left.
        engines, timeout
            As for `run`.

        Returns
        -------
        list of int
            The engines that have them now.

        Raises
        ------
        ClusterTimeout, ClusterError
            As for `run`.
        """
        return list(self.run(hold, dict(values), engines=engines, timeout=timeout))

    def pull(
        self, names: str | Sequence[str], *, engines: str | Sequence[int] = "all", timeout: float | None = None
    ) -> dict[int, Any]:
        """Return what engines keep by name, whichever step has pushed it, or task has put it there.

        Parameters
        ----------
        names
            One, or several.
        engines, timeout
            As for `run`.

        Returns
        -------
        dict
            By engine id the value; of several names a dict of values by name.

        Raises
        ------
        StateLost
            An engine had it, and was started anew since.
        NotHeld
            An engine has no value of that name; the message tells which it has.
        ClusterTimeout, ClusterError
            As for `run`.
        """
        return self.run(take, names, engines=engines, timeout=timeout)

    def put(self, value: T) -> Ref[T]:
        """Send a value once, to be used as an argument of many tasks of this client.

        Parameters
        ----------
        value
            Pickled now. Engines load it when a task first needs it, and keep it: tasks must not change it.

        Returns
        -------
        Ref
            Stands for it, also inside lists and dicts. The cluster gives the value up when this object is gone, or its
            client, and no task needs it any more.
        """
        return self._connection.put(value)

    def future(self, task_id: str) -> TaskFuture[Any]:
        """Return a future of a task that any client of this cluster has submitted.

        Parameters
        ----------
        task_id
            Its `TaskFuture.task_id`, as another step has written it down.

        Returns
        -------
        TaskFuture
            Done at once if the task is; else when it is. Fails with `ResultExpired` if the result is not kept any more
            (``keep_results`` seconds, large ones until they are read), or there was no such task.
        """
        return self._connection.fetch(task_id)

    def result(self, task_id: str, timeout: float | None = None) -> Any:  # noqa: ANN401 - whatever the task returned
        """Return the value of a task that any client of this cluster has submitted, waiting for it.

        Parameters
        ----------
        task_id
            Its `TaskFuture.task_id`.
        timeout
            Seconds; default no limit but the cluster's end.

        Returns
        -------
        object
            What the task returned.

        Raises
        ------
        ResultExpired
            It is not kept any more, or there was no such task.
        ClusterTimeout
            The task was not done in time.
        Exception
            Whatever the task raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return value_of(self._connection, self.future(task_id), deadline)

    def cancel(self, task_ids: Sequence[str], *, timeout: float = 10.0) -> dict[str, bool]:
        """Cancel tasks of any client of this cluster, also running ones. Whoever waits for them is told.

        Parameters
        ----------
        task_ids
            Their ids.
        timeout
            Seconds that running ones have to come to their end.

        Returns
        -------
        dict
            By id, whether the task is cancelled. It is not if it was over, is unknown, or cannot be interrupted.

        Raises
        ------
        ClusterTimeout
            The broker did not answer.
        """
        return self._connection.cancel_tasks(list(task_ids), timeout)

    def stream_output(
        self, callback: Callable[[int, str], object] | None = None, *, timeout: float = 10.0
    ) -> OutputStream:
        """Have each line that engines write from now on delivered here: prints, log records, output of children.

        Parameters
        ----------
        callback
            Gets engine id and line, in a thread of its own. Default: a record of level INFO for the logger
            ``ipcluster.output``.
        timeout
            Seconds to wait for the nanny's answer.

        Returns
        -------
        OutputStream
            Delivers until its ``with`` block is left or it is closed; by then all lines of tasks that have finished
            have been delivered.

        Raises
        ------
        ClusterEnded, ClusterBroken
            The cluster is gone, or its launcher serves no output.
        ClusterTimeout
            No answer within `timeout` seconds.
        """
        from .streaming import OutputStream

        return OutputStream(self._connection.store, self._connection.record, callback, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as in the base class
        """Disconnect. Idempotent; never ends the cluster.

        Parameters
        ----------
        wait
            Return when all results are here. Otherwise tasks that were sent go on; `result` of another client has
            their results.
        cancel_futures
            Cancel the tasks that no engine has been given yet.
        """
        self._connection.close(wait=wait, cancel=cancel_futures)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error nobody is left to take the results: do not wait for them.
        self.shutdown(wait=kind is None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._connection.record.title}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a Client cannot be sent elsewhere: send the name ({self.name!r}) and connect there")
