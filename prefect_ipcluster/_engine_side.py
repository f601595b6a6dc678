"""The engine's side of the task runner: Prefect's task engine, in contexts that are opened once for many tasks.

::

    driver                                      engine
      | RemoteTask(task, surroundings) ------>  |   once for each task and flow run: the function of the cluster's tasks
      | run id, parameters, inputs ---------->  |   for each task run
      |  <-------- notes: states, log records   |   see `_relay`
      |  <----------- (state, value, traceback) |

Opening the contexts (settings above all) and a client of the API costs some 50 ms; a task run costs a tenth of that.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import pickle
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any, cast
from uuid import UUID

import cloudpickle
from prefect import State, Task
from prefect.client.schemas.objects import (
    Constant,
    FlowRunResult,
    Parameter,
    StateDetails,
    StateType,
    TaskRunResult,
)
from prefect.context import AssetContext, AsyncClientContext, FlowRunContext, SyncClientContext, hydrated_context
from prefect.logging.configuration import setup_logging
from prefect.results import ResultRecord  # type: ignore[attr-defined] # it is there, and has moved before
from prefect.task_engine import run_task_async, run_task_sync

from ipcluster_core.errors import RemoteTraceback, TaskError

from . import _relay

__all__ = ["RemoteTask", "unpack"]

#: Contexts of so many places are kept open.
_MOST_OPEN = 8

#: State without its value, the value, and the traceback of a value that is an exception.
Packed = tuple[bytes, Any, str]

_INPUTS: Mapping[str, type[TaskRunResult | FlowRunResult | Parameter | Constant]] = {
    "task_run": TaskRunResult,
    "flow_run": FlowRunResult,
    "parameter": Parameter,
    "constant": Constant,
}


class RemoteTask:
    """A task, and the surroundings in which it was submitted: what an engine needs to run it any number of times."""

    def __init__(self, task: Task[..., Any], key: str, surroundings: Mapping[str, Any]) -> None:
        self._task = task
        self._key = key
        self._surroundings = surroundings

    def __call__(
        self,
        run_id: str,
        parameters: dict[str, Any],
        inputs: Mapping[str, Iterable[Mapping[str, Any]]],
        waited_for: Iterable[str],
        assets: Mapping[str, Any] | None,
    ) -> Packed:
        """Run it once.

        Parameters
        ----------
        run_id
            Of the task run.
        parameters
            With values in place of futures.
        inputs
            By parameter, the runs from which its value comes.
        waited_for
            Task runs that had to be over before.
        assets
            Serialized asset context, if assets are involved.

        Returns
        -------
        tuple
            What `unpack` reads.
        """
        options: dict[str, Any] = {
            "task_run_id": UUID(run_id),
            "parameters": parameters,
            "wait_for": [_waited_for(run) for run in waited_for] or None,
            "return_type": "state",
            "dependencies": {name: _inputs(found) for name, found in inputs.items()},
        }
        with _relay.telling(run_id):
            return pack(_opened(self._key, self._surroundings).run(self._task, options, assets))


def _inputs(found: Iterable[Mapping[str, Any]]) -> set[Any]:
    made: Iterable[Any] = (_INPUTS[one["input_type"]](**one) for one in found)
    return set(made)


def _waited_for(run: str) -> State[Any]:
    """Return a state that tells which run it is of; that it was a good one is known."""
    return State(type=StateType.COMPLETED, data=True, state_details=StateDetails(task_run_id=UUID(run)))


class _Opened:
    """Prefect's contexts of one place in one flow run, kept open, and a loop for its async tasks."""

    def __init__(self, surroundings: Mapping[str, Any]) -> None:
        self._context = contextvars.copy_context()
        self._stack = ExitStack()
        self._loop: asyncio.Runner | None = None
        self._context.run(self._enter, surroundings)

    def _enter(self, surroundings: Mapping[str, Any]) -> None:
        self._stack.enter_context(hydrated_context(dict(surroundings)))
        self._stack.enter_context(SyncClientContext())
        _set_up_logging()
        _relay.install()
        _relay.tell("versions", json.dumps(_relay.versions()))

    def run(self, task: Task[..., Any], options: dict[str, Any], assets: Mapping[str, Any] | None) -> State[Any]:
        """Run a task to its end, in a copy of the contexts: what it changes there is not for the next one."""
        if task.isasync and self._loop is None:
            self._loop = asyncio.Runner()
            # A client of the API is bound to its loop.
            self._loop.run(_enter_client(), context=self._context)
        context = self._context.copy()
        try:
            if assets is not None:
                context.run(AssetContext(**assets).__enter__)
            if self._loop is not None and task.isasync:
                return self._run_async(self._loop, task, options, context)
            state: Any = context.run(lambda: run_task_sync(task, **options))
            return cast("State[Any]", state)  # as return_type says
        finally:
            # What came of it, and of tasks inside it, would be kept for ever.
            kept = context.get(FlowRunContext.__var__)
            if kept is not None:
                kept.run_results.clear()
                kept.task_run_assets.clear()

    def _run_async(
        self, loop: asyncio.Runner, task: Task[..., Any], options: dict[str, Any], context: contextvars.Context
    ) -> State[Any]:
        self._loop = None
        try:
            state: Any = loop.run(run_task_async(task, **options), context=context)
            left = asyncio.all_tasks(loop.get_loop())
            if left:  # as `asyncio.run` does it: what it has not waited for does not go on beside the next one
                loop.run(_cancel(left))
        except BaseException:
            # It was interrupted in the middle of something: have it come to its end, and begin anew with the next.
            with suppress(Exception):
                loop.close()
            raise
        self._loop = loop
        return cast("State[Any]", state)  # as return_type says

    def close(self) -> None:
        """Close what was opened."""
        if self._loop is not None:
            with suppress(Exception):
                self._loop.close()
        with suppress(Exception):
            self._context.run(self._stack.close)


def _set_up_logging() -> None:
    """Log as the driver does: handlers and extra loggers as the first one had them, levels as the current one has."""
    global _logs  # noqa: PLW0603 - it is the process's logging
    setup_logging(incremental=_logs)
    _logs = True


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _enter_client() -> None:
    await AsyncExitStack().enter_async_context(AsyncClientContext())


_logs = False
_open: OrderedDict[str, _Opened] = OrderedDict()


def _opened(key: str, surroundings: Mapping[str, Any]) -> _Opened:
    if key not in _open:
        while len(_open) >= _MOST_OPEN:
            _open.popitem(last=False)[1].close()
        _open[key] = _Opened(surroundings)
    _open.move_to_end(key)
    return _open[key]


def pack(state: State[Any]) -> Packed:
    """Take a state apart, so that its value travels as any task's value does."""
    value, data = state.data, None
    if isinstance(value, ResultRecord):
        value, data = value.result, value.model_copy(update={"result": None})
    text = ""
    if isinstance(value, BaseException):
        text = "".join(traceback.format_exception(value))
        value = _portable(value)
    state.data = data  # a copy of a state gets another time
    return pickle.dumps(state), value, text


def _portable(error: BaseException) -> BaseException:
    """Return an exception, or what tells the same if it cannot be rebuilt from its pickle."""
    try:
        same = type(cloudpickle.loads(cloudpickle.dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - anything may go wrong in the user's exception
        same = False
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return error if same else TaskError(f"{kind}: {error}", kind)


def unpack(packed: Packed) -> State[Any]:
    """Put a state together again; the engine's traceback is the ``__cause__`` of its exception."""
    blob, value, text = packed
    if text and isinstance(value, BaseException) and value.__cause__ is None:
        # Past the class's own __setattr__, which may refuse.
        BaseException.__setattr__(value, "__cause__", RemoteTraceback(text))
    state: State[Any] = pickle.loads(blob)  # noqa: S301 - from an engine, as its value is
    if isinstance(state.data, ResultRecord):
        state.data.result = value
    else:
        state.data = value
    return state
