"""A cluster for a part of a flow: made at the head of a ``with`` block, ended when the block is left, however.

What ends it, in the order in which they come to act:

1. leaving the block: success, exception, timeout, cancellation, the first SIGTERM or SIGINT. The cluster's controller
   is told before anything is waited for, so that a second signal interrupts the wait, not the end; tasks that wait for
   the cluster in threads fail at once, and do not hold up the flow;
2. the cluster itself, which watches this process: SIGKILL, out of memory, and whatever else left it no time;
3. its limits: 30 minutes idle, a lifetime of 24 h.

A run that is suspended keeps its cluster (see `suspension`). Leaving the block in any way but success asks nothing of
Prefect's API, which may be why the flow fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Literal, Unpack

from anyio import CancelScope
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import Pause

from ipcluster_core import Cluster, ClusterHandle, ClusterSpec, SpecFields
from ipcluster_core.errors import ClusterError, ClusterNotFound

from .notices import aconclude_and_tell, alast_status, atell, conclude_and_tell, last_status, tell
from .options import TAGS
from .reports import announce, run_logger
from .runs import plan
from .suspension import akeep, atake_up, keep, take_up

if TYPE_CHECKING:
    from .reports import Logger

__all__ = ["acluster", "cluster"]

#: Seconds that a flow which is being stopped waits for the end; whoever stops it will not wait for long.
_STOPPED_WAIT = 5.0


@contextmanager
def cluster(
    name: str | None = None,
    spec: ClusterSpec | None = None,
    *,
    if_exists: Literal["fail", "replace"] = "fail",
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 60.0,
    teardown_timeout: float = 30.0,
    keep_on_suspend: bool = True,
    **fields: Unpack[SpecFields],
) -> Generator[ClusterHandle]:
    """Create a cluster for the ``with`` block, and end it when the block is left in any way, for others too.

    Work that was submitted must be waited for inside of the block.

    Parameters
    ----------
    name, spec, claim, store, timeout, fields
        As for `create_cluster`.
    if_exists
        What to do when there is a living cluster of that name: "fail", or "replace" it. To share a cluster, use
        `create_cluster` and `teardown_cluster`.
    teardown_timeout
        Seconds until what is left is given up and named; at most 5 when the flow is being stopped.
    keep_on_suspend
        Whether the cluster lives on while the flow run is suspended, to be found by its block when that is resumed,
        unless one of its limits has ended it.

    Yields
    ------
    ClusterHandle
        What tasks and subflows need to find it.

    Raises
    ------
    LaunchError, ClusterTimeout
        It could not be started, or not in time. Nothing is left of it.
    ClusterExists
        There is one, and ``if_exists="fail"``.
    ClusterBroken
        The block was left without an exception, and something is left that could not be ended.
    ValueError
        The name or the spec is not valid, or there is neither a name nor a flow run.
    """
    log, wanted = run_logger(), plan(name, spec, claim, fields)
    log.info("%s", announce(wanted.name, wanted.spec.total))
    scope = take_up(wanted, store) or Cluster(
        wanted.name, wanted.spec, if_exists=if_exists, claim=wanted.claim, store=store, timeout=timeout
    )
    try:
        yield _enter(scope)
    except BaseException as error:
        if not (keep_on_suspend and isinstance(error, Pause) and keep(scope, wanted.claim, log)):
            _leave(scope, log, teardown_timeout, error)
        raise
    _leave(scope, log, teardown_timeout)


@asynccontextmanager
async def acluster(
    name: str | None = None,
    spec: ClusterSpec | None = None,
    *,
    if_exists: Literal["fail", "replace"] = "fail",
    claim: str | None = None,
    store: str | None = None,
    timeout: float = 60.0,
    teardown_timeout: float = 30.0,
    keep_on_suspend: bool = True,
    **fields: Unpack[SpecFields],
) -> AsyncGenerator[ClusterHandle]:
    """Create a cluster for the ``async with`` block; twin of `cluster`."""
    log, wanted = run_logger(), await asyncio.to_thread(plan, name, spec, claim, fields)
    log.info("%s", announce(wanted.name, wanted.spec.total))
    scope = await atake_up(wanted, store) or Cluster(
        wanted.name, wanted.spec, if_exists=if_exists, claim=wanted.claim, store=store, timeout=timeout
    )
    try:
        yield await _aenter(scope)
    except BaseException as error:
        if not (keep_on_suspend and isinstance(error, Pause) and await akeep(scope, wanted.claim, log)):
            await _aleave(scope, log, teardown_timeout, error)
        raise
    await _aleave(scope, log, teardown_timeout)


# Entering the core's own scope has the cluster watch this process; it is left by hand, to bound the wait.


@task(name="create_cluster", cache_policy=NO_CACHE, tags=TAGS, task_run_name="create cluster {scope.name}")
def _enter(scope: Cluster) -> ClusterHandle:
    scope.__enter__()
    tell("ready", scope.status_sync())
    return scope.handle


@task(name="acreate_cluster", cache_policy=NO_CACHE, tags=TAGS, task_run_name="create cluster {scope.name}")
async def _aenter(scope: Cluster) -> ClusterHandle:
    await scope.__aenter__()
    await atell("ready", await scope.status())
    return scope.handle


def _leave(scope: Cluster, log: Logger, limit: float, error: BaseException | None = None) -> None:
    last = last_status(scope.handle, None) if error is None else None
    try:
        report = scope.teardown_sync(force=True, timeout=_patience(limit, error))
        conclude_and_tell(report, log, last, show=error is None)
    except ClusterError as failure:
        _weigh(failure, error, log)


async def _aleave(scope: Cluster, log: Logger, limit: float, error: BaseException | None = None) -> None:
    # The scope of a flow's timeout would cancel each further await as well.
    with CancelScope(shield=True):
        last = await alast_status(scope.handle, None) if error is None else None
        try:
            report = await scope.teardown(force=True, timeout=_patience(limit, error))
            await aconclude_and_tell(report, log, last, show=error is None)
        except ClusterError as failure:
            _weigh(failure, error, log)


def _patience(limit: float, error: BaseException | None) -> float:
    """Return how long to wait for the end: not for long if the flow is being stopped."""
    return limit if error is None or isinstance(error, Exception) else min(limit, _STOPPED_WAIT)


def _weigh(failure: ClusterError, error: BaseException | None, log: Logger) -> None:
    """Raise what failed at the end, unless the block has failed already: that must not be hidden."""
    if error is None:
        raise failure
    if not isinstance(failure, ClusterNotFound):  # one that was not made needs no end; `error` says why it was not
        log.error("%s", failure)
