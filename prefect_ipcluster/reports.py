"""What a run's log says of a cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from ipcluster_core import ClusterState, TeardownReport
from ipcluster_core.errors import ClusterBroken

if TYPE_CHECKING:
    from ipcluster_core import ClusterHandle, ClusterStatus

__all__ = [
    "AnyCluster",
    "Logger",
    "announce",
    "conclude",
    "describe",
    "name_of",
    "nothing_to_end",
    "run_logger",
    "store_of",
]

#: A cluster by name, by handle, or by handle as a dict or JSON.
AnyCluster: TypeAlias = "str | Mapping[str, Any] | ClusterHandle"

#: Logs of a run, or of Prefect outside one.
Logger: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"


def run_logger() -> Logger:
    """Return the current run's logger, outside of one a logger of Prefect's."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("ipcluster")


def name_of(cluster: object) -> str:
    """Return the name in whatever tells a cluster."""
    if isinstance(cluster, str) and cluster.lstrip().startswith("{"):
        cluster = json.loads(cluster)
    return str(cluster.get("name", "?") if isinstance(cluster, Mapping) else cluster)


def store_of(cluster: AnyCluster) -> str | None:
    """Return the URL of the store in whatever tells a cluster; None in a mere name."""
    if isinstance(cluster, str):
        return str(json.loads(cluster)["store"]) if cluster.lstrip().startswith("{") else None
    return str(cluster["store"]) if isinstance(cluster, Mapping) else cluster.store


def announce(name: str, engines: int) -> str:
    """Say that a cluster is about to be made."""
    return f"creating cluster {name!r} with {_counted(engines)}"


def describe(status: ClusterStatus) -> str:
    """Say how a cluster is, and what will end it by itself."""
    limits = [f"{limit.replace('_', ' ')} in {_duration(seconds)}" for limit, seconds in sorted(status.ends_in.items())]
    if status.state in (ClusterState.ENDED, ClusterState.BROKEN, ClusterState.UNKNOWN):
        return f"cluster {status.name!r} #{status.incarnation} is {status.state}: {'; '.join(status.reasons)}"
    ends = f"ends by itself: {', '.join(limits)}" if limits else "nothing ends it by itself"
    return f"cluster {status.name!r} #{status.incarnation} is {status.state} with {_counted(status.up)} up; {ends}"


def _counted(engines: int) -> str:
    return f"{engines} engine{'' if engines == 1 else 's'}"


def _duration(seconds: float) -> str:
    """Write a number of seconds as people say it."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"


def nothing_to_end(cause: BaseException | None) -> TeardownReport:
    """Report the end of a cluster that could not be made."""
    why = "" if cause is None else f": {type(cause).__name__}: {cause}"
    return TeardownReport("", "already gone", f"there is no cluster to end{why}")


def conclude(report: TeardownReport, log: Logger) -> TeardownReport:
    """Log how a teardown ended.

    Returns
    -------
    TeardownReport
        The same one.

    Raises
    ------
    ClusterBroken
        Something is left that could not be ended.
    """
    if report.leftovers:
        raise ClusterBroken(f"{report.message}, but could not be ended: {', '.join(report.leftovers)}")
    log.log(logging.INFO if report.outcome == "ended" else logging.WARNING, "%s", report.message)
    return report
