"""A cluster that a task runner makes for its flow run, and ends with it."""

from __future__ import annotations

from uuid import uuid4

from prefect.logging import get_logger

from ipcluster_core import Cluster, ClusterSpec
from ipcluster_core.errors import ClusterError, ClusterExists

from .reports import AnyCluster, Logger, conclude, name_of
from .runs import current_name, plan

__all__ = ["create_own", "end_own"]

logger = get_logger("ipcluster")

#: What its engines import before they are forked.
_PRELOAD = "prefect_ipcluster._engine_side"

#: Seconds to end it; if the flow is being stopped, whoever stops it will not wait for long.
_END_SECONDS = 30.0
_STOPPED_SECONDS = 5.0


def create_own(cluster: AnyCluster | None, spec: ClusterSpec, store: str | None, timeout: float) -> Cluster | None:
    """Create a cluster that is watched by this process; None if it is to have the name of one that lives.

    Returns
    -------
    Cluster or None
        To be ended by `end_own`.

    Raises
    ------
    ClusterError
        It could not be made, or not in time.
    ClusterExists
        By an unlikely chance its random name is taken.
    """
    # It does not outlive the flow run, so it may be idle as long as that likes.
    defaults = {"preload": [_PRELOAD], "idle_timeout": None}
    changes = {field: value for field, value in defaults.items() if field not in spec.model_fields_set}
    wanted = plan(_new_name() if cluster is None else name_of(cluster), spec.model_copy(update=changes), None, {})
    scope = Cluster(wanted.name, wanted.spec, claim=wanted.claim, store=store, timeout=timeout)
    logger.info("creating cluster %r with %d engines for tasks", wanted.name, wanted.spec.total)
    try:
        return scope.__enter__()
    except ClusterExists:
        if cluster is None:
            raise
        return None


def end_own(cluster: Cluster, log: Logger, error: BaseException | None) -> None:
    """End it, for others too.

    Parameters
    ----------
    cluster
        From `create_own`.
    log
        Is told how it went.
    error
        Why the flow ends, if by an exception: then what goes wrong here is only logged.

    Raises
    ------
    ClusterError
        Something is left of it, and the flow has not failed already.
    """
    limit = _END_SECONDS if error is None or isinstance(error, Exception) else _STOPPED_SECONDS
    try:
        conclude(cluster.teardown_sync(force=True, timeout=limit), log)
    except ClusterError as failure:
        if error is None:
            raise
        log.error("%s", failure)  # noqa: TRY400 - the message says it all


def _new_name() -> str:
    """Return a name for a cluster of a task runner: the flow run's, with something to tell several apart."""
    try:
        return f"{current_name()[:57]}-{uuid4().hex[:5]}"
    except ValueError:
        return f"tasks-{uuid4().hex[:8]}"
