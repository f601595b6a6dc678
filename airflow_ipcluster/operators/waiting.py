"""Tasks that wait for a cluster: for a moment by themselves, then in Airflow's triggerer if they may."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, conf

from ..hooks import AnyCluster, ClusterHook
from ..watching import Event, Look, Seen, Wanted, is_name, look
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["DEFERRABLE", "WaitingOperator"]

#: Whether tasks that can wait in the triggerer do so, as Airflow is configured.
DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)

#: Seconds that a task waits by itself before it is deferred. A short deferral costs more than it saves, and Airflow's
#: scheduler may take the event of the task's first end for that of its second (apache/airflow#66374).
SYNC_SECONDS = 10.0

#: Seconds between two looks while the task waits by itself.
_LOOK_SECONDS = 0.5


class WaitingOperator(ClusterOperator):
    """A task that waits until a cluster is ready.

    Parameters
    ----------
    timeout
        Seconds until the engines must be up.
    deferrable
        Whether a longer wait is left to the triggerer, so that it holds no worker slot. Default: as Airflow's
        configuration has it (``[operators] default_deferrable``).
    poll_interval
        Seconds between two looks of the triggerer.
    """

    def __init__(
        self, *, timeout: float, deferrable: bool = DEFERRABLE, poll_interval: float = 5.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if not (timeout > 0 and poll_interval > 0):
            raise ValueError(
                f"timeout and poll_interval of task {self.task_id!r} are seconds, not {timeout} and {poll_interval}"
            )
        self.timeout = timeout
        self.deferrable = deferrable
        self.poll_interval = poll_interval

    def wait_ready(self, hook: ClusterHook, cluster: AnyCluster, n: int | None = None) -> dict[str, Any]:
        """Wait until engines are up; return the cluster's handle.

        Returns
        -------
        dict
            Of the cluster that is ready. When the task is deferred, `resume` has it.

        Raises
        ------
        AirflowException
            It is not ready in time, or certainly will not be; the message says why.
        """
        store, deadline = hook.store.url, time.time() + self.timeout
        here = min(deadline, time.time() + SYNC_SECONDS) if self.deferrable else deadline
        found = self._wait_here(cluster, n, store, here)
        if found.seen is Seen.NOT_YET and here < deadline:
            self._defer(cluster, n, store, deadline, found)
        return self._conclude(found.event(), hook)

    def _wait_here(self, cluster: AnyCluster, n: int | None, store: str, until: float) -> Look:
        while True:
            patience = min(SYNC_SECONDS, max(0.0, until - time.time()))
            found = look(cluster, Wanted.READY, n=n, store=store, patience=patience)
            left = until - time.time()
            if found.seen is not Seen.NOT_YET or left <= 0:
                return found
            time.sleep(min(_LOOK_SECONDS, left))

    def _defer(self, cluster: AnyCluster, n: int | None, store: str, deadline: float, found: Look) -> NoReturn:
        from ..triggers import ClusterTrigger

        self.log.info("%s; the triggerer waits on", found.message)
        trigger = ClusterTrigger(
            cluster,
            Wanted.READY,
            n=n,
            store=store if is_name(cluster) else None,
            deadline=deadline,
            poll_interval=self.poll_interval,
        )
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: Event) -> dict[str, Any]:  # noqa: ARG002 - as Airflow calls it
        """Go on when the triggerer has waited.

        Returns
        -------
        dict
            The cluster's handle.

        Raises
        ------
        AirflowException
            As for `wait_ready`.
        """
        return self._conclude(event, self.reach())

    def _conclude(self, event: Event, hook: ClusterHook) -> dict[str, Any]:
        message, handle = event["message"], event["handle"]
        if event["seen"] == "timeout":
            raise AirflowException(f"not ready within {self.timeout:g} s: {message}")
        if handle is None:
            raise AirflowException(f"task {self.task_id!r} waits for what will not come: {message}")
        self.log.info("%s", message)
        self.links = hook.links(handle)
        return handle
