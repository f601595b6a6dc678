"""The task that ends what DAG runs have left: the net below the teardowns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException

from .. import claims
from ..hooks import ClusterHook
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from ipcluster_core import ClusterManager, ReapResult

__all__ = ["ReapClustersOperator"]

#: States of a DAG run that may go on.
_LIVING = ["queued", "running"]


class ReapClustersOperator(ClusterOperator):
    """Give up the claims of DAG runs that are over, and end what is broken, old or idle. For a DAG on a schedule.

    Airflow is asked about each run that holds a claim (``airflow/<dag id>/<run id>``); a cluster ends when no claim is
    left on it. A run that Airflow does not know may be that of another Airflow on the same store, and is left alone.
    So is any other claim, and a cluster that has none: give a cluster that outlives its run a claim of its own name.

    Returns a list of dicts with ``name``, ``incarnation``, ``why`` and ``outcome``.

    Parameters
    ----------
    ended_runs
        Whether to give up the claims of runs that are over.
    max_age, idle_for, labels, broken
        What else to end, whatever claims it has, and whoever made it: see `ipcluster_core.ClusterManager.reap`. By
        default what is broken. Labels are templated.
    unknown_runs
        Whether runs that Airflow does not know, since they were deleted, are over too.
    dry_run
        Only say what would be ended.
    timeout
        Seconds for each cluster.
    """

    template_fields: Collection[str] = (*ClusterOperator.template_fields, "labels")
    template_fields_renderers: ClassVar[dict[str, str]] = {"labels": "json"}

    def __init__(
        self,
        *,
        ended_runs: bool = True,
        max_age: float | None = None,
        idle_for: float | None = None,
        labels: Mapping[str, str] | None = None,
        broken: bool = True,
        unknown_runs: bool = False,
        dry_run: bool = False,
        timeout: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ended_runs = ended_runs
        self.max_age = max_age
        self.idle_for = idle_for
        self.labels = labels
        self.broken = broken
        self.unknown_runs = unknown_runs
        self.only_tell = dry_run
        self.timeout = timeout

    def work(self, hook: ClusterHook, context: Context) -> list[dict[str, Any]]:
        """Give up claims, then reap.

        Returns
        -------
        list of dict
            What was done, by cluster.

        Raises
        ------
        AirflowException
            Something of it failed, when all else is done.
        """
        manager = hook.get_conn()
        done = self._give_up_ended(manager, context) if self.ended_runs else []
        results = manager.reap_sync(
            self.max_age, self.idle_for, self.labels, broken=self.broken, dry_run=self.only_tell, timeout=self.timeout
        )
        done += [plain(result) for result in results]
        for row in done:
            self.log.info("%(name)s #%(incarnation)s, %(why)s: %(outcome)s", row)
        failed = [row for row in done if row["outcome"].startswith("failed") or row["leftovers"]]
        if failed:
            raise AirflowException(f"could not be ended: {failed}")
        return done

    def _give_up_ended(self, manager: ClusterManager, context: Context) -> list[dict[str, Any]]:
        from ipcluster_core.errors import ClusterError

        found = claims.find(manager)
        with self.talking():
            over = {claim for claim in {seen.claim for seen in found} if self._is_over(claim, context)}
        ended = [seen for seen in found if seen.claim in over]
        done = []
        for seen in ended:
            row = {"name": seen.name, "incarnation": seen.incarnation, "why": f"{seen.claim} is over", "leftovers": []}
            try:
                report = None if self.only_tell else claims.give_up(manager, seen, timeout=self.timeout)
            except ClusterError as error:
                done.append({**row, "outcome": f"failed: {error}"})
                continue
            if report is not None:
                done.append({**row, "outcome": report.outcome, "leftovers": list(report.leftovers)})
            elif self.only_tell:
                done.append({**row, "outcome": "would be given up"})
        return done

    def _is_over(self, claim: str, context: Context) -> bool:
        run = claims.run_of(claim)
        if run is None:
            return False
        ti: Any = context["ti"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - it is there while a task runs
        dag_id, run_id = run
        if ti.get_dr_count(dag_id=dag_id, run_ids=[run_id], states=_LIVING):
            return False
        return bool(self.unknown_runs or ti.get_dr_count(dag_id=dag_id, run_ids=[run_id]))


def plain(result: ReapResult) -> dict[str, Any]:
    """Return a result of the core as what goes through XCom."""
    row = {name: getattr(result, name) for name in ("name", "incarnation", "why", "outcome")}
    return {**row, "leftovers": list(result.leftovers)}
