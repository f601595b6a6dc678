"""One look at a cluster that somebody waits for: by a task, a sensor, or a trigger. Blocking, and bounded.

::

    look  ->  NOT_YET            look again, until the deadline
              READY | ENDED      what was waited for
              FAILED             it will not come

A handle means one incarnation, so what is over stays over. A name may be created anew: then an end is no reason to
give up waiting for a cluster that is ready.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    from .hooks import AnyCluster

__all__ = ["Event", "Look", "Seen", "Wanted", "handle_of", "is_name", "look"]


class Wanted(enum.StrEnum):
    """What is waited for."""

    READY = "ready"
    ENDED = "ended"


class Seen(enum.StrEnum):
    """See the drawing above."""

    NOT_YET = "not yet"
    READY = "ready"
    ENDED = "ended"
    FAILED = "failed"


class Event(TypedDict):
    """What a trigger tells its task: plain, since it goes through Airflow's database."""

    #: "ready", "ended", "failed", or "timeout".
    seen: str
    message: str
    handle: dict[str, Any] | None


class Look(NamedTuple):
    """What was seen, in words, and the handle of a cluster that is ready."""

    seen: Seen
    message: str
    handle: dict[str, Any] | None = None

    def event(self) -> Event:
        """Return what this becomes when no other look follows."""
        seen = "timeout" if self.seen is Seen.NOT_YET else str(self.seen)
        return Event(seen=seen, message=self.message, handle=self.handle)


def is_name(cluster: AnyCluster) -> bool:
    """Tell whether a cluster is given by its name, and not by handle."""
    return isinstance(cluster, str) and not cluster.lstrip().startswith("{")


def look(
    cluster: AnyCluster, wanted: Wanted, *, n: int | None = None, store: str | None = None, patience: float = 0.0
) -> Look:
    """Look at a cluster once.

    Parameters
    ----------
    cluster
        Name or handle.
    wanted
        What is waited for.
    n
        Engines that are to be up for it to be ready; default all that were asked for.
    store
        URL of the store of a name.
    patience
        Seconds for which a living cluster is asked to answer when it is ready.

    Returns
    -------
    Look
        Never an error of the cluster or its store: those may pass, and the deadline is the caller's.
    """
    from ipcluster_core.errors import ClusterError

    where = store if is_name(cluster) else None
    try:
        return _ready(cluster, n, where, patience) if wanted is Wanted.READY else _ended(cluster, where)
    except (ClusterError, OSError) as error:
        return Look(Seen.NOT_YET, str(error))


def _ready(cluster: AnyCluster, n: int | None, store: str | None, patience: float) -> Look:
    from ipcluster_core import Cluster
    from ipcluster_core.errors import ClusterBroken, ClusterEnded, ClusterNotFound, LaunchError, StaleHandle

    try:
        found = Cluster.connect_sync(cluster, store=store, timeout=patience)
        up = found.wait_sync(n, timeout=patience)
    except LaunchError as error:
        return Look(Seen.FAILED, str(error))
    except (ClusterBroken, ClusterEnded, ClusterNotFound, StaleHandle) as error:
        return Look(Seen.NOT_YET if is_name(cluster) else Seen.FAILED, str(error))
    handle = found.handle.model_dump(mode="json")
    return Look(Seen.READY, f"cluster {found.name!r} has {up} engines up", handle)


def _ended(cluster: AnyCluster, store: str | None) -> Look:
    from ipcluster_core import ClusterManager, ClusterState
    from ipcluster_core.errors import ClusterNotFound

    handle = handle_of(cluster)
    name = str(cluster) if handle is None else str(handle["name"])
    manager = ClusterManager(store if handle is None else str(handle["store"]))
    try:
        summary = manager.get_sync(name)
    except ClusterNotFound as error:
        return Look(Seen.NOT_YET if handle is None else Seen.ENDED, str(error))
    if not summary.incarnation:  # it cannot be read at this moment
        return Look(Seen.NOT_YET, summary.reason)
    title = f"cluster {name!r} #{summary.incarnation}"
    if handle is not None and summary.incarnation != handle["incarnation"]:
        return Look(
            Seen.ENDED, f"cluster {name!r} #{handle['incarnation']} is over; now there is #{summary.incarnation}"
        )
    if summary.state in (ClusterState.ENDED, ClusterState.BROKEN):
        return Look(Seen.ENDED, f"{title} is {summary.state}: {summary.reason}")
    return Look(Seen.NOT_YET, f"{title} is {summary.state}")


def handle_of(cluster: AnyCluster) -> Mapping[str, Any] | None:
    """Return a handle as a mapping; None when the cluster is given by its name."""
    if is_name(cluster):
        return None
    found: Mapping[str, Any] = json.loads(cluster) if isinstance(cluster, str) else cluster
    return found
