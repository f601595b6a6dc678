"""A cluster for a part of a DAG: a setup task, a teardown task, and what stands between them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .operators.create import CreateClusterOperator
from .operators.teardown import TeardownClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import XComArg

__all__ = ["ClusterScope", "cluster"]


class ClusterScope(NamedTuple):
    """The two tasks of a scope."""

    setup: CreateClusterOperator
    teardown: TeardownClusterOperator

    @property
    def handle(self) -> XComArg:
        """The cluster, as the other operators and any task take it."""
        return self.setup.output


@contextmanager
def cluster(name: str | None = None, *, task_id: str = "cluster", **kwargs: Any) -> Generator[ClusterScope]:
    """Have a cluster made before the tasks of the block, and ended after them in every outcome.

    Parameters
    ----------
    name, kwargs
        As for `CreateClusterOperator`.
    task_id
        Of the task that creates it; the other one has ``_teardown`` behind that.

    Yields
    ------
    ClusterScope
        Its ``handle`` is what tasks take as ``cluster=``.
    """
    create = CreateClusterOperator(task_id=task_id, name=name, **kwargs)
    teardown = create.teardown()
    with teardown:
        yield ClusterScope(create, teardown)
