"""One task run on its way: from what the user submits, over what it waits for, to the state in which it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prefect.context import AssetContext, FlowRunContext, TaskRunContext
from prefect.events.schemas.events import Event
from prefect.events.worker import EventsWorker
from prefect.exceptions import UpstreamTaskError
from prefect.logging import get_logger
from prefect.task_engine import run_task_sync
from prefect.utilities.collections import visit_collection
from prefect.utilities.engine import collect_task_run_inputs_sync, resolve_inputs_sync, resolve_to_final_result

from ipcluster_core.errors import ClusterError

from ._engine_side import unpack
from ._outcomes import is_crashed, is_over, report, run_of, state_for
from ._relay import handle_log
from ._upstream import pending
from .futures import IPClusterFuture

if TYPE_CHECKING:
    from prefect import State, Task
    from prefect.client.schemas.objects import RunInput
    from prefect.futures import PrefectFuture

    from ipcluster_core import TaskFuture

__all__ = ["Submission"]

logger = get_logger("ipcluster")

#: Seconds in which a task run that the cluster has cancelled is so here: no more than a thread's turn.
_SETTLE_SECONDS = 10.0


class Submission:
    """A task run that was submitted here, and its future.

    What is told of it, and how it ends, comes in the client's I/O thread: nothing here waits there.
    """

    def __init__(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None,
        dependencies: dict[str, set[RunInput]] | None,
    ) -> None:
        self.id = uuid4()
        self.task = task
        self._parameters = parameters
        self._wait_for = list(wait_for) if wait_for else []
        self._dependencies = dependencies or {}
        self._context = copy_context()
        # A task that submits this one is not what this one's events are about.
        self._context.run(TaskRunContext.__var__.set, None)  # type: ignore[arg-type] # what its `get` returns without one
        self._told: dict[str, Event] = {}
        self._remote: TaskFuture[Any] | None = None
        self._is_cancelled = False
        self._is_over = False
        self._lock = threading.Lock()
        self.outcome: Future[State[Any]] = Future()
        self.outcome.set_running_or_notify_cancel()  # it always has a state
        self.future: IPClusterFuture[Any] = IPClusterFuture(self.id, self.outcome, self.cancel)

    # before it runs

    def upstream(self) -> list[PrefectFuture[Any]]:
        """Return the futures that it needs and that are not known to be done."""
        return pending((self._parameters, self._wait_for))

    def arguments(self) -> tuple[Any, ...] | None:
        """Prepare it for the cluster, when nothing upstream is pending.

        Returns
        -------
        tuple or None
            What `RemoteTask` takes. None if something upstream has failed: then Prefect's engine has been here, to say
            so, and the run is over.
        """
        return self._context.copy().run(self._arguments)

    def _arguments(self) -> tuple[Any, ...] | None:
        inputs: dict[str, set[Any]] = {
            name: collect_task_run_inputs_sync(value) for name, value in self._parameters.items()
        }
        for name, more in self._dependencies.items():
            inputs[name] = inputs.get(name, set()) | more
        waited_for = collect_task_run_inputs_sync(self._wait_for) if self._wait_for else set()
        try:
            if self._wait_for:
                context: dict[str, Any] = {}
                visit_collection(
                    self._wait_for,
                    visit_fn=resolve_to_final_result,
                    return_data=False,
                    remove_annotations=True,
                    context=context,
                )
            # Where there is nothing to resolve, annotations stay for the engine to see.
            taken = {name: self._parameters[name] for name in inputs if inputs[name] and name in self._parameters}
            parameters = {**self._parameters, **resolve_inputs_sync(taken)}
        except UpstreamTaskError:
            self._settle(self._not_ready())
            return None
        plain = {name: [one.model_dump(mode="json") for one in found] for name, found in inputs.items() if found}
        waited = [str(one.id) for one in waited_for if hasattr(one, "id")]
        return str(self.id), parameters, plain, waited, self._assets({**inputs, "wait_for": waited_for})

    def _not_ready(self) -> State[Any]:
        return run_task_sync(  # type: ignore[return-value] # as return_type says
            self.task,
            task_run_id=self.id,
            parameters=self._parameters,
            wait_for=self._wait_for or None,
            return_type="state",
            dependencies={name: more for name, more in self._dependencies.items() if name in self._parameters},
        )

    def _assets(self, inputs: dict[str, set[Any]]) -> dict[str, Any] | None:
        """Return the asset context, if there are assets: only here it is known what came of the tasks upstream."""
        flow = FlowRunContext.get()
        if flow is None or not (self.task.asset_deps or getattr(self.task, "assets", None) or flow.task_run_assets):
            return None
        return AssetContext.from_task_and_inputs(self.task, self.id, inputs, copy_to_child_ctx=True).serialize()

    # while it runs

    def sent(self, remote: TaskFuture[Any]) -> None:
        """Note that the cluster has it."""
        with self._lock:
            self._remote = remote
            is_cancelled = self._is_cancelled
        remote.add_done_callback(self._on_done)
        if is_cancelled:
            remote.cancel()

    @property
    def task_id(self) -> str | None:
        """Id by which the cluster knows it; None while it is not there."""
        return None if self._remote is None else self._remote.task_id

    def hear(self, kind: str, content: str) -> None:
        """Pass on what its engine tells."""
        if kind == "log":
            self._context.copy().run(handle_log, content)
        elif kind == "event":
            event = Event.model_validate_json(content)
            run = run_of(event)
            if run is not None:
                self._told[run] = event
                if is_over(event) and run != str(self.id):
                    del self._told[run]
            self._context.copy().run(_send_event, event)

    def cancel(self) -> bool:
        """Cancel it, wherever it is; return whether it is cancelled."""
        if self.withdraw():
            return self.outcome.result().is_cancelled()
        if self._remote is None or not self._remote.cancel():
            return False
        return self.outcome.result(_SETTLE_SECONDS).is_cancelled()

    def withdraw(self) -> bool:
        """Cancel it unless the cluster has it; return whether it is over."""
        with self._lock:
            self._is_cancelled = True
            is_there = self._remote is not None
        if not is_there:
            self.fail(CancelledError())
        return self._is_over

    # at its end

    def _on_done(self, remote: Future[Any]) -> None:
        try:
            packed = remote.result()
        except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt and SystemExit of a task are its outcome
            self.fail(error)
            return
        try:
            state = unpack(packed)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong when the other side has another Prefect
            self.fail(error)
            return
        self._settle(state)

    def fail(self, error: BaseException) -> None:
        """End it without a result, and tell Prefect so, unless the engine has told it by itself."""
        if not self._claim_end():
            return
        state = state_for(error)
        state.state_details.task_run_id = self.id
        last = self._told.get(str(self.id))
        # A task that was interrupted has told by itself that it crashed; one whose engine went, not why.
        if isinstance(error, CancelledError | ClusterError) or last is None or not is_crashed(last):
            level = logging.INFO if state.is_cancelled() else logging.ERROR
            logger.log(level, "task run of %r: %s", self.task.name, state.message)
            try:
                self._context.copy().run(report, self.task, self.id, state, list(self._told.values()))
            except Exception:
                # Whatever Prefect makes of it, those who wait for the future must not wait for ever.
                logger.exception("Prefect could not be told how the task run of %r ended", self.task.name)
        self.outcome.set_result(state)

    def _settle(self, state: State[Any]) -> None:
        if self._claim_end():
            self.outcome.set_result(state)

    def _claim_end(self) -> bool:
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        self._parameters, self._wait_for = {}, []
        return is_first


def _send_event(event: Event) -> None:
    EventsWorker.instance().send(event)
