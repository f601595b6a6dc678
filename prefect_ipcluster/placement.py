"""Where the tasks of a part of a flow run."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from types import TracebackType

from prefect.context import FlowRunContext

from ipcluster_core import ClusterSpec

from .reports import AnyCluster
from .task_runners import IPClusterTaskRunner

__all__ = ["TasksOn", "tasks_on"]


def tasks_on(
    cluster: AnyCluster | None = None,
    *,
    spec: ClusterSpec | None = None,
    n: int | None = None,
    store: str | None = None,
    timeout: float = 60.0,
    retries_on_engine_loss: int = 0,
) -> TasksOn:
    """Have ``submit`` and ``map`` of ordinary tasks run on a cluster, inside of a ``with`` block of a flow.

    So the flow itself may have created the cluster, or take it as a parameter. After the block, tasks run as before.
    Leaving it waits for what was submitted inside; an exception cancels that instead, also on the engines.

    Parameters
    ----------
    cluster, spec, n, store, timeout, retries_on_engine_loss
        As for `IPClusterTaskRunner`.

    Returns
    -------
    TasksOn
        A context manager, for ``with`` and for ``async with``, which does not hold up the event loop while it waits.
    """
    return TasksOn(
        IPClusterTaskRunner(
            cluster, spec=spec, n=n, store=store, timeout=timeout, retries_on_engine_loss=retries_on_engine_loss
        )
    )


class TasksOn:
    """Puts a task runner in the place of the flow's."""

    def __init__(self, runner: IPClusterTaskRunner) -> None:
        self._runner = runner
        self._stack = ExitStack()

    def __enter__(self) -> IPClusterTaskRunner:
        flow = FlowRunContext.get()
        if flow is None:
            raise RuntimeError("tasks_on is for the body of a flow; elsewhere use an IPClusterTaskRunner itself")
        runner = self._runner.duplicate()
        with ExitStack() as stack:
            stack.enter_context(runner)
            stack.enter_context(flow.model_copy(update={"task_runner": runner}))
            self._started, self._stack = runner, stack.pop_all()
        return runner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    async def __aenter__(self) -> IPClusterTaskRunner:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await asyncio.to_thread(self._started.wait)
        except BaseException as late:
            self._stack.__exit__(type(late), late, late.__traceback__)
            raise
        self._stack.__exit__(kind, error, traceback)
