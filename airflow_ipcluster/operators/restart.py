"""The task that starts engines anew."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..hooks import AnyCluster, ClusterHook
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

__all__ = ["RestartEnginesOperator"]


class RestartEnginesOperator(ClusterOperator):
    """Start engines anew under their ids: what they hold (memory, a GPU, locks) is free, and what they run is lost.

    Returns the cluster's handle, as `CreateClusterOperator` does.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated.
    engines
        Ids, or the name of a set; templated. Default: all.
    timeout
        Seconds until they must be up.
    """

    template_fields: Collection[str] = (*ClusterOperator.template_fields, "cluster", "engines")

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        engines: str | Sequence[int] | XComArg | None = None,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cast("AnyCluster", cluster)
        self.engines = cast("str | Sequence[int] | None", engines)
        self.timeout = timeout

    def work(self, hook: ClusterHook, context: Context) -> dict[str, Any]:  # noqa: ARG002 - the shape of all operators
        """Restart the engines and return the cluster's handle."""
        with self.explained():
            cluster = hook.find(self.cluster)
        cluster.restart_sync(self.engines, timeout=self.timeout)
        self.log.info("engines of %r are up again: %s", cluster.name, "all" if self.engines is None else self.engines)
        handle = cluster.handle.model_dump(mode="json")
        self.links = hook.links(handle)
        return handle
