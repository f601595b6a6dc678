"""The task that ends a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowException

from ..hooks import AnyCluster, ClusterHook
from ..naming import RUN_CLAIM
from ..watching import handle_of
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

__all__ = ["TeardownClusterOperator"]


class TeardownClusterOperator(ClusterOperator):
    """End a cluster. Safe to repeat: a cluster that is gone already is a success.

    Use ``create.teardown()`` where the DAG itself creates the cluster. Returns a dict with ``name``, ``outcome``
    ("ended", "already gone", "released", "never made") and ``message``.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated. A handle never ends a newer cluster of its name.
        None, as from a task that was skipped, is a success.
    claim
        Use of the cluster to give up: it ends when no other is left, and is "released" otherwise; templated. Default:
        the DAG run. None refuses to end a cluster that has claims, unless forced.
    counter
        The claim's counter when it was taken; templated. A claim taken again since is left alone.
    force
        End it although others hold claims.
    missing_ok
        Whether a cluster that never was is a success, with a warning.
    timeout
        Seconds.
    retries
        As for any task, with another default: a cluster left behind costs more than a try.
    """

    template_fields: Collection[str] = (*ClusterOperator.template_fields, "cluster", "claim", "counter")

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        claim: str | None = RUN_CLAIM,
        counter: int | XComArg | None = None,
        force: bool = False,
        missing_ok: bool = True,
        timeout: float = 30.0,
        retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, **kwargs)
        self.cluster = cast("AnyCluster | None", cluster)
        self.claim = claim
        self.counter = cast("int | None", counter)
        self.force = force
        self.missing_ok = missing_ok
        self.timeout = timeout

    def work(self, hook: ClusterHook, context: Context) -> dict[str, str]:  # noqa: ARG002 - the shape of all operators
        """End the cluster.

        Returns
        -------
        dict
            What was done.

        Raises
        ------
        AirflowException
            Something of it could not be ended; the message names it.
        ClusterNotFound
            It never was, and ``missing_ok=False``.
        """
        from ipcluster_core.errors import ClusterNotFound

        if self.cluster is None:  # the task that was to create it has pushed nothing
            self.log.warning("nothing to end: no cluster was created")
            return {"name": "", "outcome": "never made", "message": "no cluster was created"}
        try:
            report = hook.teardown(
                self.cluster, claim=self.claim, counter=self.counter, force=self.force, timeout=self.timeout
            )
        except ClusterNotFound as error:
            if not self.missing_ok:
                raise
            self.log.warning("nothing to end: %s", error)
            return {"name": name_of(self.cluster), "outcome": "never made", "message": str(error)}
        self.log.info("%s: %s", report.outcome, report.message)
        if report.leftovers:
            raise AirflowException(f"left of cluster {report.name!r}: {', '.join(report.leftovers)}")
        return {"name": report.name, "outcome": report.outcome, "message": report.message}


def name_of(cluster: AnyCluster) -> str:
    """Return the name of a cluster that is given by name or handle."""
    handle = handle_of(cluster)
    return str(cluster) if handle is None else str(handle["name"])
