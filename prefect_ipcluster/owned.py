"""What a flow run leaves behind: the clusters that it has created, and those that it has claimed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ipcluster_core import ClusterManager, ClusterSummary, TeardownReport
from ipcluster_core.errors import ClusterError, ClusterNotFound

from .reports import Logger, conclude
from .runs import CLAIM_LABEL, RUN_LABEL, claim_of, run_of, suspended

__all__ = ["Left", "give_up", "give_up_one", "left_by", "runs_with_claims"]


@dataclass(frozen=True, slots=True)
class Left:
    """A cluster, and the claims on it that a run gives up. `created` tells that the run has made it."""

    name: str
    claims: tuple[str, ...]
    created: bool


def left_by(run_id: str, clusters: Iterable[ClusterSummary]) -> list[Left]:
    """Decide which claims a flow run that is over has to give up.

    A root's claim stands for its subflows too. A subflow gives up what stands for it on the clusters that it has made
    itself, and on no other.

    Returns
    -------
    list of Left
        Those that it has made, or has claims on.
    """
    own = claim_of(run_id)
    found = []
    for one in clusters:
        created = one.labels.get(RUN_LABEL) == run_id
        wanted = [suspended(own), own]
        if created and one.labels.get(CLAIM_LABEL):
            made_with = one.labels[CLAIM_LABEL]
            wanted = list(dict.fromkeys([*wanted, suspended(made_with), made_with]))
        held = tuple(claim for claim in wanted if claim in one.claims)
        if held or (created and not one.claims):
            found.append(Left(one.name, held, created))
    return found


def give_up(
    run_id: str, log: Logger, *, force: bool = False, store: str | None = None, timeout: float = 30.0
) -> list[TeardownReport]:
    """Give up what a flow run that is over has left; a cluster ends when nobody else uses it. Safe to repeat.

    Parameters
    ----------
    run_id
        Id of the flow run. Nothing else is asked of Prefect.
    log
        Where to tell what became of each.
    force
        End the clusters that the run has created although others use them.
    store
        URL of the store; default as `ipcluster_core.open_store` has it.
    timeout
        Seconds for each cluster.

    Returns
    -------
    list of TeardownReport
        One for each cluster.

    Raises
    ------
    ClusterError
        Something is left that could not be ended; the others are ended all the same.
    """
    manager = ClusterManager(store)
    reports: list[TeardownReport] = []
    failed: list[ClusterError] = []
    for left in left_by(run_id, manager.list_sync()):
        try:
            reports.append(conclude(give_up_one(manager, left, force=force and left.created, timeout=timeout), log))
        except ClusterNotFound:
            continue  # it has ended, and its record was removed, meanwhile
        except ClusterError as error:
            log.error("%s", error)  # noqa: TRY400 - its text tells all; the other clusters are next
            failed.append(error)
    if failed:
        raise failed[0]
    return reports


def give_up_one(manager: ClusterManager, left: Left, *, force: bool = False, timeout: float = 30.0) -> TeardownReport:
    """Give up what a run has left of one cluster; see `ClusterManager.teardown`."""
    *before, last = left.claims or (None,)
    for claim in before:
        manager.teardown_sync(left.name, claim=claim)
    return manager.teardown_sync(left.name, claim=last, force=force, timeout=timeout)


def runs_with_claims(clusters: Iterable[ClusterSummary]) -> set[str]:
    """Return the ids of the flow runs that hold claims."""
    ids = (run_of(claim) for one in clusters for claim in one.claims)
    return {run_id for run_id in ids if run_id is not None}
