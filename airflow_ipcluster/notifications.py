"""What a DAG run calls when it is over: the way to the end of its clusters that needs no teardown task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseNotifier

from .claims import claim_of, give_up_all
from .hooks import ClusterHook

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["GiveUpClaimsNotifier"]


class GiveUpClaimsNotifier(BaseNotifier):
    """Give up all claims of a DAG run: clusters that nobody else uses end.

    ``DAG(..., dagrun_timeout=…, on_failure_callback=GiveUpClaimsNotifier())``: Airflow skips the teardown of a run that
    exceeds its timeout, and runs none when the create task has failed; it calls this for both. Airflow runs it in the
    DAG processor, which must reach the store, and may run it twice: that is harmless.

    Parameters
    ----------
    ipcluster_conn_id
        Connection that names the store, see `ClusterHook`.
    timeout
        Seconds for each cluster.
    """

    def __init__(self, ipcluster_conn_id: str = ClusterHook.default_conn_name, *, timeout: float = 30.0) -> None:
        super().__init__()
        self.ipcluster_conn_id = ipcluster_conn_id
        self.timeout = timeout

    def notify(self, context: Context) -> None:
        """Give up the claims of the run that the context is of."""
        known: dict[str, Any] = dict(context)
        run = known.get("dag_run")
        dag_id = run.dag_id if run is not None else known["dag"].dag_id
        run_id = run.run_id if run is not None else known["run_id"]
        manager = ClusterHook(self.ipcluster_conn_id).get_conn()
        done = give_up_all(manager, claim_of(dag_id, run_id), self.log, timeout=self.timeout)
        self.log.info("%d clusters of run %s of DAG %s are given up", len(done), run_id, dag_id)
