"""The end of a flow run's clusters by hooks of the flow: also where its process could not do it any more.

Prefect runs the hooks of a flow whose process was killed, or cancelled, in the process of its runner or worker. There
nothing is known but the id of the flow run; clusters are found by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

from prefect.logging.loggers import flow_run_logger

from .owned import give_up
from .stopping import end_when_stopped

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

__all__ = ["Ending", "teardown_owned", "with_teardown"]

P = ParamSpec("P")
R = TypeVar("R")

#: How a flow run may end.
Ending: TypeAlias = Literal["completion", "failure", "crashed", "cancellation"]

_ALL: tuple[Ending, ...] = ("completion", "failure", "crashed", "cancellation")

#: What a flow that is stopped may come to; which one it is, is not known while it is.
_STOPS: frozenset[Ending] = frozenset({"failure", "crashed", "cancellation"})


def teardown_owned(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Give up what a flow run that is over has left: a hook, for ``on_failure=[teardown_owned]`` and its like.

    Parameters
    ----------
    flow, flow_run, state
        As Prefect gives them to its hooks; by these names where the flow's process is gone.
    """
    _end(flow, flow_run, state, force=False, store=None)


@overload
def with_teardown(flow: Flow[P, R], /) -> Flow[P, R]: ...
@overload
def with_teardown(
    *, on: Sequence[Ending] = ..., force: bool = ..., store: str | None = ...
) -> Callable[[Flow[P, R]], Flow[P, R]]: ...
def with_teardown(
    flow: Flow[P, R] | None = None, /, *, on: Sequence[Ending] = _ALL, force: bool = False, store: str | None = None
) -> Flow[P, R] | Callable[[Flow[P, R]], Flow[P, R]]:
    """Have a flow give up, at its end, the clusters that its run has created or claimed; a decorator above ``@flow``.

    A flow that is stopped (timeout, SIGTERM, Ctrl-C) gives them up at once: its hooks come when its threads are over,
    and those may be waiting for the cluster.

    At module level, because runners and workers import the flow to find its hooks. A flow that leaves its cluster to
    others does without it.

    Parameters
    ----------
    flow
        The flow, which is returned.
    on
        Ends of a run that count: "completion", "failure", "crashed", "cancellation". Default: all.
    force
        End the clusters that the run has created although others use them. Default: they live on for those.
    store
        URL of the store; default as `ipcluster_core.open_store` has it in the process that runs the hook.

    Returns
    -------
    Flow
        The same one; without a flow, a decorator that does so.

    Raises
    ------
    ValueError
        There is no such end of a run.
    """
    unknown = sorted(set(on) - set(_ALL))
    if unknown:
        raise ValueError(f"a flow run does not end by {', '.join(unknown)}, but by {', '.join(_ALL)}")

    # The names are fixed: Prefect's engine gives these by position, its runner by name.
    def teardown_owned(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
        _end(flow, flow_run, state, force=force, store=store)

    def attach(flow: Flow[P, R]) -> Flow[P, R]:
        for ending in on:
            getattr(flow, f"on_{ending}")(teardown_owned)
        if _STOPS.issubset(on):
            end_when_stopped(flow, force=force, store=store)
        return flow

    return attach if flow is None else attach(flow)


def _end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any], *, force: bool, store: str | None) -> None:
    log = flow_run_logger(flow_run, flow)
    log.debug("giving up the clusters of flow run %s, which is %s", flow_run.id, state.name)
    give_up(str(flow_run.id), log, force=force, store=store)
