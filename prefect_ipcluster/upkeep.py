"""All clusters of a store, as Prefect tasks: list them, end those that nobody needs; with twins for async flows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prefect import task
from prefect.cache_policies import NO_CACHE

from ipcluster_core import ClusterManager, ClusterSummary, ReapResult

from .artifacts import ashow_reaped, show_reaped
from .options import TAGS
from .reports import run_logger

if TYPE_CHECKING:
    from .reports import Logger

__all__ = ["alist_clusters", "areap_clusters", "list_clusters", "reap_clusters"]


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name="list clusters")
def list_clusters(
    labels: Mapping[str, str] | None = None,
    *,
    all: bool = False,  # noqa: A002 - as the core has it
    store: str | None = None,
) -> list[ClusterSummary]:
    """Return the clusters of a store, by name; those with all of these labels, and the ended ones if `all` is set."""
    return ClusterManager(store).list_sync(labels, all=all)


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name="list clusters")
async def alist_clusters(
    labels: Mapping[str, str] | None = None,
    *,
    all: bool = False,  # noqa: A002 - as the core has it
    store: str | None = None,
) -> list[ClusterSummary]:
    """Return the clusters of a store, by name; twin of `list_clusters`."""
    return await ClusterManager(store).list(labels, all=all)


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name="reap clusters")
def reap_clusters(
    *,
    max_age: float | None = None,
    idle_for: float | None = None,
    labels: Mapping[str, str] | None = None,
    broken: bool = True,
    dry_run: bool = False,
    store: str | None = None,
    timeout: float = 30.0,
) -> list[ReapResult]:
    """End clusters that are old or idle, whatever their claims, and clean up broken ones. Safe to repeat.

    What was ended, and why, is logged and shown as an artifact.

    Parameters
    ----------
    max_age, idle_for
        Seconds since they were created, and without work; None for no such rule.
    labels
        Only clusters that have all of these labels.
    broken
        Clean up broken clusters too, and processes without a record.
    dry_run
        Only say what would be ended.
    store
        URL of the store; default as `ipcluster_core.open_store` has it.
    timeout
        Seconds for each cluster.

    Returns
    -------
    list of ReapResult
        By name: what was ended or failed to, and why.

    Raises
    ------
    ValueError
        A number of seconds is negative.
    StoreError
        The store cannot be reached.
    """
    results = ClusterManager(store).reap_sync(
        max_age, idle_for, labels, broken=broken, dry_run=dry_run, timeout=timeout
    )
    _log_reaped(results, run_logger())
    show_reaped(results)
    return results


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name="reap clusters")
async def areap_clusters(
    *,
    max_age: float | None = None,
    idle_for: float | None = None,
    labels: Mapping[str, str] | None = None,
    broken: bool = True,
    dry_run: bool = False,
    store: str | None = None,
    timeout: float = 30.0,
) -> list[ReapResult]:
    """End clusters that are old or idle, and clean up broken ones; twin of `reap_clusters`."""
    manager = ClusterManager(store)
    results = await manager.reap(max_age, idle_for, labels, broken=broken, dry_run=dry_run, timeout=timeout)
    _log_reaped(results, run_logger())
    await ashow_reaped(results)
    return results


def _log_reaped(results: list[ReapResult], log: Logger) -> None:
    for result in results:
        level = logging.WARNING if result.outcome.startswith("failed") or result.leftovers else logging.INFO
        left = f", but could not be ended: {', '.join(result.leftovers)}" if result.leftovers else ""
        log.log(level, "cluster %r #%d: %s (%s)%s", result.name, result.incarnation, result.outcome, result.why, left)
