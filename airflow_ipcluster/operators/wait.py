"""The task that waits until a cluster is ready."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from ..hooks import AnyCluster, ClusterHook
from .waiting import WaitingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

__all__ = ["WaitForClusterOperator"]


class WaitForClusterOperator(WaitingOperator):
    """Wait until engines of a cluster are up. Changes nothing.

    Returns the cluster's handle, as `CreateClusterOperator` does; so a task can use a cluster that another DAG or a
    person has created, by its name.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated. One that is given by its name need not exist yet.
    n
        Engines that must be up; templated. Default: all that were asked for.
    timeout, deferrable, poll_interval
        See `WaitingOperator`.
    """

    template_fields: Collection[str] = (*WaitingOperator.template_fields, "cluster", "n")

    def __init__(
        self, *, cluster: AnyCluster | XComArg, n: int | XComArg | None = None, timeout: float = 600.0, **kwargs: Any
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.cluster = cast("AnyCluster", cluster)
        self.n = cast("int | None", n)

    def work(self, hook: ClusterHook, context: Context) -> dict[str, Any]:  # noqa: ARG002 - the shape of all operators
        """Wait, and return the cluster's handle."""
        return self.wait_ready(hook, self.cluster, None if self.n is None else int(self.n))
