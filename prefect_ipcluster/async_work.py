"""Twins of the tasks in `work` for async flows; those have the documentation."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import Client

from .attempts import (
    MapTask,
    a_map,
    attempt,
    attempt_on_each,
    late_calls,
    late_map,
    results_of,
    wait_for_a_turn,
)
from .options import TAGS, Calling
from .output import logged_output
from .progress import Progress
from .reports import AnyCluster

# Waiting is done in threads, which end with the client: futures that are wrapped for a loop would have to be looked at.

__all__ = ["amap_on_cluster", "arun_on_cluster", "arun_spmd"]

T = TypeVar("T")


@asynccontextmanager
async def _connected(cluster: AnyCluster, store: str | None, *, log_output: bool) -> AsyncGenerator[Client]:
    """Connect as `connected` does, in threads, because that blocks; what is not over at the end goes on."""
    client = await asyncio.to_thread(Client.connect, cluster, store=store)
    try:
        output = logged_output(client, wanted=log_output)
        await asyncio.to_thread(output.__enter__)
        try:
            yield client
        finally:
            await asyncio.shield(asyncio.to_thread(output.__exit__, None, None, None))
    finally:
        client.shutdown(wait=False)


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("run"))
async def arun_on_cluster(
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
    """Run ``fn(*args, **kwargs)`` once, on an engine of a cluster; twin of `run_on_cluster`."""
    async with _connected(cluster, store, log_output=log_output) as client:
        future = client.options(engines=engines, timeout=timeout, retries=retries).submit(fn, *args, **kwargs)
        with attempt(client, [future]):
            while not await asyncio.to_thread(wait_for_a_turn, [future]):
                pass
            return future.result()


async def _amap_on_cluster(
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
    """Run `fn` over the items of iterables on the engines of a cluster; twin of `map_on_cluster`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = Progress.of(cluster, fn, shown=progress)
    async with _connected(cluster, store, log_output=log_output) as client:
        with a_map(client, fn, iterables, chunksize=chunksize, keep_errors=keep_errors) as work:
            view = client.options(engines=engines, retries=retries)
            work.begin(view)
            while pending := work.pending(view):
                await shown.ashow(work.percent)
                await asyncio.to_thread(wait_for_a_turn, pending, deadline, lambda: late_map(work, client))
            await shown.ashow(work.percent)
            return work.results()


amap_on_cluster = MapTask(
    _amap_on_cluster, name="amap_on_cluster", cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("map")
)


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name=Calling("run on each engine"))
async def arun_spmd(
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
    """Run ``fn(*args, **kwargs)`` once on each engine, at the same time; twin of `run_spmd`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    async with _connected(cluster, store, log_output=log_output) as client:
        calls = await asyncio.to_thread(client.spread, fn, *args, engines=engines, timeout=timeout, **kwargs)
        with attempt_on_each(client, calls):
            late = functools.partial(late_calls, calls, fn, client)
            while not await asyncio.to_thread(wait_for_a_turn, calls.values(), deadline, late):
                pass
            return results_of(calls)
