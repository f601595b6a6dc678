"""What a run tells of a change in a cluster's life: a line in its log, an event, an artifact.

Events are ``ipcluster.cluster.`` and one of ready, scaled, restarted, released, ended; their resource is
``ipcluster.cluster.<name>``, and Prefect relates them to the run, its flow and its deployment. Automations can react to
them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from prefect.events import emit_event

from ipcluster_core import Cluster, ClusterStatus, TeardownReport
from ipcluster_core.errors import ClusterError

from .artifacts import ashow_end, ashow_engines, is_shown, show_end, show_engines
from .reports import AnyCluster, Logger, conclude, describe, run_logger
from .settings import IPClusterSettings

__all__ = [
    "Change",
    "aconclude_and_tell",
    "alast_status",
    "atell",
    "conclude_and_tell",
    "emit",
    "last_status",
    "tell",
]

#: Seconds for a cluster that is about to be ended to say how it is.
_LAST_SECONDS = 2.0

#: What may happen to a cluster.
Change: TypeAlias = Literal["ready", "scaled", "restarted", "released", "ended"]


def tell(change: Change, status: ClusterStatus) -> None:
    """Log how a cluster is after a change, emit the event, and show its engines."""
    run_logger().info("%s", describe(status))
    _emit_status(change, status)
    show_engines(status)


async def atell(change: Change, status: ClusterStatus) -> None:
    """Log how a cluster is after a change, emit the event, and show its engines; twin of `tell`."""
    run_logger().info("%s", describe(status))
    _emit_status(change, status)
    await ashow_engines(status)


def conclude_and_tell(
    report: TeardownReport, log: Logger, last: ClusterStatus | None = None, *, show: bool = True
) -> TeardownReport:
    """Log how a teardown ended and emit the event, see `conclude`; show a summary if the API may be asked."""
    _emit_report(report)
    conclude(report, log)
    if show:
        show_end(report, last)
    return report


async def aconclude_and_tell(
    report: TeardownReport, log: Logger, last: ClusterStatus | None = None, *, show: bool = True
) -> TeardownReport:
    """Log how a teardown ended, emit the event, and show a summary; twin of `conclude_and_tell`."""
    _emit_report(report)
    conclude(report, log)
    if show:
        await ashow_end(report, last)
    return report


def last_status(cluster: AnyCluster, store: str | None) -> ClusterStatus | None:
    """Return how a cluster is before its end, for the summary; None if it does not say at once, or none is shown."""
    if not is_shown():
        return None
    try:
        return Cluster.connect_sync(cluster, store=store, timeout=_LAST_SECONDS).status_sync(timeout=_LAST_SECONDS)
    except (ClusterError, ValueError, TypeError):
        return None  # the teardown tells what is wrong


async def alast_status(cluster: AnyCluster, store: str | None) -> ClusterStatus | None:
    """Return how a cluster is just before its end; twin of `last_status`."""
    if not is_shown():
        return None
    try:
        found = await Cluster.connect(cluster, store=store, timeout=_LAST_SECONDS)
        return await found.status(timeout=_LAST_SECONDS)
    except (ClusterError, ValueError, TypeError):
        return None


def emit(change: Change, name: str, **payload: Any) -> None:
    """Emit the event of a change; without waiting for anything."""
    if IPClusterSettings().events:
        resource = {"prefect.resource.id": f"ipcluster.cluster.{name}", "prefect.resource.name": name}
        emit_event(f"ipcluster.cluster.{change}", resource, payload=payload)


def _emit_status(change: Change, status: ClusterStatus) -> None:
    counts = {"incarnation": status.incarnation, "engines": status.up, "wanted": dict(status.sets)}
    emit(change, status.name, **counts)


def _emit_report(report: TeardownReport) -> None:
    if report.outcome != "already gone":
        left = {"leftovers": list(report.leftovers)}
        emit("released" if report.outcome == "released" else "ended", report.name, message=report.message, **left)
