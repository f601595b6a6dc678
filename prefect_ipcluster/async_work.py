"""Twins of the tasks in `work` for async flows; those have the documentation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import Client

from .attempts import MapTask, a_map, attempt, left_of
from .options import TAGS, Calling
from .progress import SECONDS, Progress
from .reports import AnyCluster

# Waiting is done in threads, which end with the client: futures that are wrapped for a loop would have to be looked at.

__all__ = ["amap_on_cluster", "arun_on_cluster", "arun_spmd"]

T = TypeVar("T")


@asynccontextmanager
async def _connected(cluster: AnyCluster, store: str | None) -> AsyncGenerator[Client]:
    """Connect in a thread, because that blocks; what is not over when the block is left goes on."""
    client = await asyncio.to_thread(Client.connect, cluster, store=store)
    try:
        yield client
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
    store: str | None = None,
    **kwargs: Any,
) -> T:
    """Run ``fn(*args, **kwargs)`` once, on an engine of a cluster; twin of `run_on_cluster`."""
    async with _connected(cluster, store) as client:
        future = client.options(engines=engines, timeout=timeout, retries=retries).submit(fn, *args, **kwargs)
        with attempt(client, lambda: [] if future.done() else [future.task_id]):
            while not future.done():
                await asyncio.to_thread(wait, [future], SECONDS)
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
    store: str | None = None,
) -> list[T]:
    """Run `fn` over the items of iterables on the engines of a cluster; twin of `map_on_cluster`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    shown = Progress.of(cluster, fn, shown=progress)
    async with _connected(cluster, store) as client:
        with a_map(client, fn, iterables, chunksize=chunksize, keep_errors=keep_errors) as work:
            view = client.options(engines=engines, retries=retries)
            work.begin(view)
            while pending := work.pending(view):
                await shown.ashow(work.percent)
                left = left_of(deadline, SECONDS, work, client)
                await asyncio.to_thread(wait, pending, left, FIRST_EXCEPTION)
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
    store: str | None = None,
    **kwargs: Any,
) -> list[T]:
    """Run ``fn(*args, **kwargs)`` once on each engine, at the same time; twin of `run_spmd`."""
    async with _connected(cluster, store) as client:
        results = await asyncio.to_thread(client.run, fn, *args, engines=engines, timeout=timeout, **kwargs)
    return [results[engine] for engine in sorted(results)]
