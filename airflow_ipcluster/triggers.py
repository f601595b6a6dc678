"""The wait for a cluster in Airflow's triggerer: many of them share one process, and none holds its loop up.

A trigger only looks. It ends nothing, so one that is left over after a clear is harmless; all that it knows is in
`serialize`, so it goes on after the triggerer was restarted, to the same deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from .hooks import AnyCluster, ClusterHook
from .watching import Seen, Wanted, is_name, look

__all__ = ["ClusterTrigger"]


class ClusterTrigger(BaseTrigger):
    """Fires when a cluster is ready, or has ended, or that will certainly not come, or the deadline has passed.

    The event is a dict with ``seen`` ("ready", "ended", "failed", "timeout"), ``message`` and ``handle``.

    Parameters
    ----------
    cluster
        Name or handle.
    wanted
        "ready" or "ended".
    n
        Engines that are to be up; default all that were asked for.
    store
        URL of the store of a name.
    ipcluster_conn_id
        Connection that names it instead, for a task that no worker has begun, see `ClusterSensor`.
    deadline
        When to give up, in seconds since 1970; default: never, Airflow does.
    poll_interval
        Seconds between two looks.
    """

    def __init__(
        self,
        cluster: AnyCluster,
        wanted: str,
        *,
        n: int | str | None = None,
        store: str | None = None,
        ipcluster_conn_id: str | None = None,
        deadline: float | None = None,
        poll_interval: float = 5.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are not annotated
        self.cluster = cluster
        self.wanted = Wanted(wanted)
        self.n = n
        self.store = store
        self.ipcluster_conn_id = ipcluster_conn_id
        self.deadline = deadline
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, all plain.

        Returns
        -------
        tuple
            What makes an equal trigger.
        """
        arguments = {
            "cluster": self.cluster if isinstance(self.cluster, str) else dict(self.cluster),
            "wanted": str(self.wanted),
            "n": self.n,
            "store": self.store,
            "ipcluster_conn_id": self.ipcluster_conn_id,
            "deadline": self.deadline,
            "poll_interval": self.poll_interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is something to tell; what is seen meanwhile is in the task's log.

        Yields
        ------
        TriggerEvent
            One.
        """
        store, told = self.store, ""
        if self.ipcluster_conn_id is not None and is_name(self.cluster):
            store = (await ClusterHook.reached(self.ipcluster_conn_id)).store.url
        n = None if self.n is None else int(self.n)
        while True:
            # In a thread: the core's first import takes a moment, and so does a store that is far away.
            found = await asyncio.to_thread(look, self.cluster, self.wanted, n=n, store=store)
            left = self.poll_interval if self.deadline is None else self.deadline - time.time()
            if found.seen is not Seen.NOT_YET or left <= 0:
                yield TriggerEvent(found.event())  # type: ignore[no-untyped-call]  # as above
                return
            if found.message != told:
                told = found.message
                self.log.info("%s", told)
            await asyncio.sleep(min(self.poll_interval, left))
