"""Gives up the claims of a DAG run at the moment at which it is over, whoever has said so.

Airflow calls this in the scheduler (a run has ended, or exceeded its timeout), and in the API server (a person has
marked it failed or success). Neither is held up: a thread does it, and what fails is logged, for the reaper to find.
A run that is cleared takes its claim again, with a greater counter, which protects it from whatever is still at work.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import hookimpl

from .claims import claim_of, give_up_all

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

__all__ = ["on_dag_run_failed", "on_dag_run_success"]

logger = logging.getLogger(__name__)


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    """Give up the claims of a run that has succeeded."""
    _begin(dag_run.dag_id, dag_run.run_id)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - as above
    """Give up the claims of a run that has failed."""
    _begin(dag_run.dag_id, dag_run.run_id)


def _begin(dag_id: str, run_id: str) -> None:
    threading.Thread(target=_give_up, args=(claim_of(dag_id, run_id),), name=f"ipcluster-{dag_id}", daemon=True).start()


def _give_up(claim: str) -> None:
    from .hooks import ClusterHook

    try:
        give_up_all(ClusterHook().get_conn(), claim, logger)
    except Exception:
        # The top of a thread: what is left is the reaper's, and the scheduler goes on.
        logger.exception("the claims %r could not be given up", claim)
