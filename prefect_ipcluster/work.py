"""Work on a cluster as Prefect tasks: one call, a map over many items, a call on each engine.

However many items a map has, it is one task run: a Prefect task costs milliseconds, an item on an engine a fraction of
one. Twins for async flows are in `async_work`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from .attempts import (
    MapTask,
    a_map,
    attempt,
    attempt_on_each,
    connected,
    late_calls,
    late_map,
    results_of,
    wait_for_a_turn,
)
from .options import TAGS, Calling
from .progress import Progress
from .reports import AnyCluster

__all__ = ["map_on_cluster", "run_on_cluster", "run_spmd"]

T = TypeVar("T")


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("run"))
def run_on_cluster(
    cluster: AnyCluster,
    fn: Callable[..., T],
    /,
    *args: Any,
    engines: Sequence[int] | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    log_output: bool = False,
    store: str | None = None,
    **kwargs: Any,
) -> T:
    """Run ``fn(*args, **kwargs)`` once, on an engine of a cluster.

    When the task is stopped (timeout, cancellation, SIGTERM), so is the call on the engine.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    fn, args, kwargs
        The call. An argument that goes by one of the names below is bound with `functools.partial`.
    engines
        Ids of the engines that may run it. Default: any.
    timeout
        Seconds that the call may run before it is interrupted.
    retries
        How often it may be run again after it was lost together with its engine. Default 0: at most once.
    log_output
        Whether what the cluster's engines write meanwhile, for whatever task, goes to the run's log, line by line: 2000
        lines at once, and 100 a second.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.

    Returns
    -------
    object
        What `fn` returned.

    Raises
    ------
    ClusterNotFound, ClusterEnded, StaleHandle, ClusterBroken
        See `connect_cluster`.
    TaskTimeout, EngineLost
        It took too long, or its engine died.
    Exception
        Whatever `fn` raised, with the engine's traceback as its cause.
    """
    with connected(cluster, store, log_output=log_output) as client:
        future = client.options(engines=engines, timeout=timeout, retries=retries).submit(fn, *args, **kwargs)
        with attempt(client, [future]):
            while not wait_for_a_turn([future]):
                pass
            return future.result()


def _map_on_cluster(
    cluster: AnyCluster,
    fn: Callable[..., T],
    /,
    *iterables: Iterable[Any],
    chunksize: int | None = None,
    keep_errors: bool = False,
    engines: Sequence[int] | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    progress: bool = True,
    log_output: bool = False,
    store: str | None = None,
) -> list[T]:
    """Run `fn` over the items of iterables on the engines of a cluster, all as one task run.

    When the task is retried (``with_options(retries=2)``), chunks that have finished are not run again, and those that
    still run are waited for. When it is stopped, so is its work on the engines.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    fn
        Called with one item of each iterable.
    iterables
        Read to the end at once; the shortest sets the length. Each may be a future of another task.
    chunksize
        Items that travel, finish and fail together. Default: so many that there are at most 1000 chunks.
    keep_errors
        Whether an exception takes the place of its item's result; otherwise the first one fails the task.
    engines
        Ids of the engines that may run it. Default: any.
    timeout
        Seconds until all results must be here.
    retries
        How often a chunk may be run again after it was lost together with its engine. Default 0: at most once.
    progress
        Whether to show an artifact that tells how much is done; there is none when it takes less than two seconds.
    log_output
        Whether what the cluster's engines write meanwhile, for whatever task, goes to the run's log, line by line: 2000
        lines at once, and 100 a second.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.

    Returns
    -------
    list
        The results, in the order of the items.

    Raises
    ------
    ClusterNotFound, ClusterEnded, StaleHandle, ClusterBroken
        See `connect_cluster`.
    ClusterTimeout
        Not all results were here in time.
    EngineLost
        An engine died with a chunk.
    Exception
        Whatever `fn` raised, with the engine's traceback as its cause.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = Progress.of(cluster, fn, shown=progress)
    with (
        connected(cluster, store, log_output=log_output) as client,
        a_map(client, fn, iterables, chunksize=chunksize, keep_errors=keep_errors) as work,
    ):
        view = client.options(engines=engines, retries=retries)
        work.begin(view)
        while pending := work.pending(view):
            shown.show(work.percent)
            wait_for_a_turn(pending, deadline, lambda: late_map(work, client))
        shown.show(work.percent)
        return work.results()


map_on_cluster = MapTask(
    _map_on_cluster, name="map_on_cluster", cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("map")
)


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("run on each engine"))
def run_spmd(
    cluster: AnyCluster,
    fn: Callable[..., T],
    /,
    *args: Any,
    engines: str | Sequence[int] = "all",
    timeout: float | None = None,
    log_output: bool = False,
    store: str | None = None,
    **kwargs: Any,
) -> list[T]:
    """Run ``fn(*args, **kwargs)`` once on each engine, at the same time; on an MPI set once on each rank.

    When one call fails or the task is stopped, the others are interrupted. What waits inside a C library, as MPI does,
    heeds that when it comes back: a note of the exception names such engines, and `restart_engines` ends it.

    Parameters
    ----------
    cluster
        Name, handle, dict or JSON of a handle.
    fn, args, kwargs
        The call. An argument that goes by one of the names below is bound with `functools.partial`.
    engines
        Name of a set, or ids, or ``"all"`` that are up now.
    timeout
        Seconds until all results must be here.
    log_output
        Whether what the cluster's engines write meanwhile, for whatever task, goes to the run's log, line by line: 2000
        lines at once, and 100 a second.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.

    Returns
    -------
    list
        One result of each engine, in the order of their ids; for an MPI set that of the ranks.

    Raises
    ------
    ClusterNotFound, ClusterEnded, StaleHandle, ClusterBroken
        See `connect_cluster`.
    ClusterTimeout
        Not all results were here in time.
    EngineLost
        An engine died; with it a whole MPI set.
    Exception
        What the first call that failed has raised.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with connected(cluster, store, log_output=log_output) as client:
        calls = client.spread(fn, *args, engines=engines, timeout=timeout, **kwargs)
        with attempt_on_each(client, calls):
            while not wait_for_a_turn(calls.values(), deadline, lambda: late_calls(calls, fn, client)):
                pass
            return results_of(calls)
