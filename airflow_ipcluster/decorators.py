"""``@task.ipcluster``: a function that runs on an engine of a cluster.

::

    @task.ipcluster(cluster=create.output)
    def fit(rows):
        ...

    fit(clean())            # one call
    fit.expand(rows=many)   # a task instance for each, and a call on whatever engine is free
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory

from .operators.run import RunOnClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator

__all__ = ["ipcluster_task"]


class ClusterDecoratedOperator(DecoratedOperator, RunOnClusterOperator):  # type: ignore[misc]  # what ours takes is wider
    """A `RunOnClusterOperator` whose function is the decorated one, called with the arguments of the task."""

    template_fields = (*RunOnClusterOperator.template_fields,)
    template_fields_renderers = RunOnClusterOperator.template_fields_renderers
    shallow_copy_attrs = RunOnClusterOperator.shallow_copy_attrs
    custom_operator_name = "@task.ipcluster"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call: dict[str, Any] = {
            "python_callable": python_callable,
            "op_args": op_args or (),
            "op_kwargs": op_kwargs or {},
        }
        super().__init__(kwargs_to_upstream=call, **call, **kwargs)


def ipcluster_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001 - as all decorators of tasks
    **kwargs: Any,
) -> TaskDecorator:
    """Make a task of a function that runs on an engine; Airflow offers it as ``@task.ipcluster``.

    Parameters
    ----------
    python_callable
        The function: of plain values and what other tasks have returned, without the task's context.
    multiple_outputs
        Whether a dict that it returns becomes an XCom for each key.
    kwargs
        As for `RunOnClusterOperator`: ``cluster``, ``mode``, ``engines``, ``timeout``, …; and for any task.

    Returns
    -------
    TaskDecorator
        Called in a DAG it makes the task; ``.expand()`` and ``.override()`` are as for any.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ClusterDecoratedOperator,
        **kwargs,
    )
