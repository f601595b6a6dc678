"""The task that resizes a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from ..hooks import AnyCluster, ClusterHook
from .waiting import WaitingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

__all__ = ["ScaleClusterOperator"]


class ScaleClusterOperator(WaitingOperator):
    """Set the number of engines of a cluster. Absolute, so it is safe to repeat.

    Returns the cluster's handle, as `CreateClusterOperator` does.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated.
    n
        Number of engines; templated. Of more than wanted, idle ones leave first; busy ones finish their tasks.
    engines
        Name of the engine set.
    wait
        Whether to wait until all engines that the cluster is to have are up.
    timeout, deferrable, poll_interval
        For that wait, see `WaitingOperator`.
    """

    template_fields: Collection[str] = (*WaitingOperator.template_fields, "cluster", "n")

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        n: int | XComArg,
        engines: str = "default",
        wait: bool = True,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        self.cluster = cast("AnyCluster", cluster)
        self.n = cast("int", n)
        self.engines = engines
        self.wait = wait

    def work(self, hook: ClusterHook, context: Context) -> dict[str, Any]:  # noqa: ARG002 - the shape of all operators
        """Resize the cluster and return its handle."""
        with self.explained():
            cluster = hook.find(self.cluster)
        cluster.scale_sync(int(self.n), engines=self.engines)
        handle = cluster.handle.model_dump(mode="json")
        if self.wait:
            return self.wait_ready(hook, handle)
        self.links = hook.links(handle)
        return handle
