"""How task runs end that their engine could not bring to an end: as states, and as events for Prefect's server."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import State
from prefect.client.schemas.objects import StateDetails, TaskRun
from prefect.context import FlowRunContext, TagsContext
from prefect.states import Cancelled, Crashed, Failed, Pending
from prefect.utilities.engine import emit_task_run_state_change_event

from ipcluster_core.errors import TaskTimeout

if TYPE_CHECKING:
    from prefect import Task
    from prefect.events.schemas.events import Event

__all__ = ["is_crashed", "is_over", "report", "run_of", "state_for"]

_OVER = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})

_PREFIX = "prefect.task-run."


def state_for(error: BaseException) -> State[Any]:
    """Return the state of a task run from which this came instead of a result."""
    if isinstance(error, CancelledError):
        return Cancelled(message="The task run was cancelled; its code, if it ran, was interrupted on the engine.")
    if isinstance(error, TaskTimeout):
        return Failed(name="TimedOut", message=str(error), data=error)
    if isinstance(error, KeyboardInterrupt):
        return Crashed(message="Execution was aborted by an interrupt signal.", data=error)
    return Crashed(message=f"Execution was interrupted: {type(error).__name__}: {error}", data=error)


def run_of(event: Event) -> str | None:
    """Return the id of the task run whose state an event tells; None if it tells none."""
    is_state = event.event.startswith(_PREFIX) and "validated_state" in event.payload
    return event.resource.id.removeprefix(_PREFIX) if is_state else None


def is_over(event: Event) -> bool:
    """Tell whether the state in an event is a last one."""
    return event.payload["validated_state"]["type"] in _OVER


def is_crashed(event: Event) -> bool:
    """Tell whether the state in an event is that of a crash."""
    return bool(event.payload["validated_state"]["type"] == "CRASHED")


def report(task: Task[..., Any], run_id: UUID, state: State[Any], told: Iterable[Event]) -> None:
    """Tell Prefect a state that the engine could not tell, for a run and those inside it. Called in the run's context.

    Parameters
    ----------
    task, run_id
        Which run.
    state
        The one in which it ends.
    told
        Last events about it, and about runs inside it that are not over.
    """
    events = {run_of(event): event for event in told}
    if str(run_id) not in events:
        _emit(_unknown_run(task, run_id), state, None)
    for event in events.values():
        _emit(_told_run(event), state, event)


def _emit(run: TaskRun, state: State[Any], follows: Event | None) -> None:
    """Emit the event of a change of state, as Prefect's task engine does it."""
    details = StateDetails(task_run_id=run.id, flow_run_id=run.flow_run_id)
    new: State[Any] = State(
        type=state.type, name=state.name, timestamp=state.timestamp, message=state.message, state_details=details
    )
    before, run.state = run.state, new
    run.end_time = new.timestamp  # type: ignore[assignment] # Prefect has two types for a time
    emit_task_run_state_change_event(run, before, new, follows=follows)


def _told_run(event: Event) -> TaskRun:
    """Rebuild a task run from what was told of it last."""
    before = dict(event.payload["validated_state"])
    before.pop("data", None)
    state = State.model_validate({**before, "id": event.id, "timestamp": event.occurred})
    run = {"id": event.resource.id.removeprefix(_PREFIX), "state": state, **event.payload["task_run"]}
    run["name"] = event.resource.name or run.get("name")
    return TaskRun.model_validate(run)


def _unknown_run(task: Task[..., Any], run_id: UUID) -> TaskRun:
    """Make a task run of which nothing was told yet."""
    context = FlowRunContext.get()
    flow_run = context.flow_run if context is not None else None
    state: State[Any] = Pending()
    return TaskRun(
        id=run_id,
        name=f"{task.name}-{str(run_id)[:3]}",
        flow_run_id=None if flow_run is None else flow_run.id,
        task_key=task.task_key,
        dynamic_key=str(run_id),
        task_version=task.version,
        tags=sorted(task.tags | TagsContext.get().current_tags),
        expected_start_time=state.timestamp,  # type: ignore[arg-type] # as above
        state=state,
    )
