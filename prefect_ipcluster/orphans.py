"""Clusters of flow runs that are over without having ended them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, StateType

from ipcluster_core import ClusterManager, ReapResult
from ipcluster_core.errors import ClusterError

from .artifacts import show_reaped
from .options import TAGS
from .owned import Left, give_up_one, left_by, runs_with_claims
from .reports import run_logger

__all__ = ["DEAD", "give_up_orphans", "states_of"]

#: Ends of a run that has left its clusters without meaning to.
DEAD = frozenset({StateType.FAILED, StateType.CRASHED, StateType.CANCELLED})

#: Flow runs that are asked for at one time: the most that the API answers.
_AT_ONCE = 200


@task(cache_policy=NO_CACHE, tags=TAGS, task_run_name="give up claims of runs that are over")
def give_up_orphans(
    runs: Sequence[str] | None = None, *, dry_run: bool = False, store: str | None = None
) -> list[ReapResult]:
    """Give up the claims of flow runs that have failed, crashed, or were cancelled; what nobody else uses ends.

    Parameters
    ----------
    runs
        Ids of the flow runs to look at; default: all that hold claims. One that is not known here is left alone.
    dry_run
        Only say what would be given up.
    store
        URL of the store; default as `ipcluster_core.open_store` has it.

    Returns
    -------
    list of ReapResult
        One for each cluster of theirs.
    """
    manager = ClusterManager(store)
    clusters = manager.list_sync()
    numbers = {one.name: one.incarnation for one in clusters}
    asked = runs_with_claims(clusters) if runs is None else runs
    results: list[ReapResult] = []
    for run_id, state in sorted(states_of(asked).items()):
        if state in DEAD:
            why = f"flow run {run_id} is {state.value.lower()}"
            lefts = left_by(run_id, clusters)
            results += [
                ReapResult(one.name, numbers[one.name], why, *_end(manager, one, dry_run=dry_run)) for one in lefts
            ]
    show_reaped(results)
    return results


def states_of(run_ids: Iterable[str]) -> dict[str, StateType]:
    """Ask Prefect for the states of flow runs; those that it does not know, or that have none, are left out."""
    ids = [UUID(run_id) for run_id in sorted(run_ids)]
    found: list[FlowRun] = []
    with get_client(sync_client=True) as client:
        for start in range(0, len(ids), _AT_ONCE):
            some = FlowRunFilter(id=FlowRunFilterId(any_=ids[start : start + _AT_ONCE]))
            found += client.read_flow_runs(flow_run_filter=some, limit=_AT_ONCE)
    return {str(run.id): run.state_type for run in found if run.state_type is not None}


def _end(manager: ClusterManager, left: Left, *, dry_run: bool) -> tuple[str, tuple[str, ...]]:
    """Give up what a run has left of one cluster; return what became of it, and what could not be ended."""
    if dry_run:
        return "would be given up", ()
    try:
        report = give_up_one(manager, left)
    except ClusterError as error:
        run_logger().warning("cluster %r: %s", left.name, error)
        return f"failed: {error}", ()
    run_logger().info("%s", report.message)
    return report.outcome, report.leftovers
