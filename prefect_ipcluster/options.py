"""How Prefect is to treat the tasks: what it calls their runs, by what it finds them, which failures it repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prefect.tasks import TaskRunNameCallbackWithParameters

from ipcluster_core.errors import ClusterInUse

from .reports import name_of

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

__all__ = ["PAUSES", "TAGS", "Calling", "Named", "function_name", "worth_repeating"]

#: By what the tasks are found, and limited in number, in Prefect.
TAGS = ("ipcluster",)

#: Seconds before each further attempt to tear down.
PAUSES = (1.0, 5.0, 20.0)


@dataclass(frozen=True)
class Named(TaskRunNameCallbackWithParameters):
    """Names task runs: what they do, and to which cluster, told by a parameter or else by a default."""

    verb: str
    parameter: str
    default: Callable[[], str] | None = None

    def __call__(self, parameters: dict[str, Any]) -> str:
        """Return the name of a run with these parameters."""
        cluster = parameters.get(self.parameter)
        if cluster is None and self.default is not None:
            cluster = self.default()
        known = cluster is not None and not isinstance(cluster, BaseException)
        return f"{self.verb} cluster {name_of(cluster)}" if known else f"{self.verb} cluster (none)"


@dataclass(frozen=True)
class Calling(TaskRunNameCallbackWithParameters):
    """Names task runs that run a function: what it is called, and on which cluster."""

    verb: str

    def __call__(self, parameters: dict[str, Any]) -> str:
        """Return the name of a run with these parameters."""
        return f"{self.verb} {function_name(parameters['fn'])} on cluster {name_of(parameters['cluster'])}"


def function_name(function: object) -> str:
    """Return what a function, or what stands for one, is called."""
    named = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(named, "__name__", type(named).__name__))


def worth_repeating(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Tell whether a failed teardown may succeed the next time: a refusal stays one."""
    return not isinstance(state.result(raise_on_failure=False), ClusterInUse | TypeError | ValueError)
