"""Tasks that a task submits on an engine: they run there and then, so that no engine waits for another.

If they were given to the cluster, tasks that wait for the tasks they have submitted could hold all engines.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

from prefect.task_engine import run_task_async, run_task_sync
from prefect.task_runners import TaskRunner

from .futures import IPClusterFuture

if TYPE_CHECKING:
    from prefect import State, Task
    from prefect.client.schemas.objects import RunInput
    from prefect.futures import PrefectFuture

__all__ = ["EngineTaskRunner", "on_engine", "run_inline"]


def on_engine(cluster: str | None = None) -> bool:
    """Tell whether this is an engine of a cluster (of that one, if named), or a process that one has started."""
    name = os.environ.get("IPCLUSTER_TAG", "").partition("/")[0]
    return "IPCLUSTER_ENGINE" in os.environ and cluster in {None, name}


def run_inline(
    task: Task[..., Any],
    parameters: dict[str, Any],
    wait_for: Iterable[PrefectFuture[Any]] | None,
    dependencies: dict[str, set[RunInput]] | None,
) -> IPClusterFuture[Any]:
    """Run a task to its end, and return its future."""
    run_id = uuid4()
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_result(_run(task, run_id, parameters, wait_for, dependencies))
    return IPClusterFuture(run_id, done)


def _run(
    task: Task[..., Any],
    run_id: UUID,
    parameters: dict[str, Any],
    wait_for: Iterable[PrefectFuture[Any]] | None,
    dependencies: dict[str, set[RunInput]] | None,
) -> State[Any]:
    options: dict[str, Any] = {
        "task_run_id": run_id,
        "parameters": parameters,
        "wait_for": wait_for,
        "return_type": "state",
        "dependencies": dependencies,
    }
    state: Any  # as return_type says
    if not task.isasync:
        state = run_task_sync(task, **options)
    elif not _has_loop():
        state = asyncio.run(run_task_async(task, **options))
    else:
        # An async task submits another: this thread's loop is busy until that has come to its end.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            context = contextvars.copy_context()
            state = thread.submit(context.run, asyncio.run, run_task_async(task, **options)).result()
    return cast("State[Any]", state)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EngineTaskRunner(TaskRunner[IPClusterFuture[Any]]):
    """The task runner of a flow whose task runs on an engine."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Prefect's has no types

    def duplicate(self) -> EngineTaskRunner:
        """Return another one."""
        return EngineTaskRunner()

    def submit(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> IPClusterFuture[Any]:
        """Run a task to its end, and return its future."""
        return run_inline(task, parameters, wait_for, dependencies)
