"""The task that creates a cluster, and the teardown that belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from airflow.providers.common.compat.sdk import XComArg

from ..hooks import ClusterHook
from ..naming import RUN_CLAIM, cluster_name, run_labels
from .base import ClusterOperator
from .teardown import TeardownClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from ipcluster_core import Cluster

__all__ = ["CreateClusterOperator"]

#: Seconds without work after which a cluster ends; the default of the core.
DEFAULT_IDLE_TIMEOUT = 1800.0

#: Seconds from ready after which a cluster ends in any case.
DEFAULT_LIFETIME = 24 * 3600.0


class CreateClusterOperator(ClusterOperator):
    """Create a cluster that outlives the task, or attach to the one of that name.

    Returns the cluster's handle: a plain dict of less than 1 KiB without any secret, which the other operators take as
    ``cluster=create.output``. A task that fails leaves nothing; a later try attaches to what an earlier one has made.

    Airflow runs no teardown when a run exceeds its ``dagrun_timeout``, or when this task has failed or was marked so.
    Then `idle_timeout` and `lifetime` end the cluster, from inside; sooner `GiveUpClaimsNotifier` or
    `ReapClustersOperator`.

    Parameters
    ----------
    name
        Name of the cluster: 1 to 63 lower-case letters, digits and dashes; templated. Default: made from the DAG's id
        and the task instance's identity, the same for all tries.
    n
        Number of engines; templated. Default: as the spec has it, else two.
    spec
        Further fields of `ipcluster_core.ClusterSpec`, such as ``{"env": {"OMP_NUM_THREADS": "1"}}``; templated. The
        user interface shows it; Airflow masks what is a known secret, or under a name such as ``token``.
    if_exists
        What to do when a cluster of that name lives: "attach" to it as it is, "fail", or "replace" it. What an earlier
        try of the same task has made is never a failure.
    claim
        Declared use of the cluster, see `TeardownClusterOperator`; templated. Default: the DAG run. None for no claim.
    idle_timeout
        Seconds without work after which the cluster ends by itself; None means never. Where the task leaves the
        default, spec and connection are asked first; so for the lifetime.
    lifetime
        Seconds after which the cluster ends by itself in any case; None means no limit.
    labels
        Labels to find the cluster by, beside ``airflow-dag``, ``airflow-run`` and ``airflow-task``; templated.
    timeout
        Seconds until the engines must be up.
    """

    template_fields: Collection[str] = (*ClusterOperator.template_fields, "name", "n", "spec", "claim", "labels")
    template_fields_renderers: ClassVar[dict[str, str]] = {"labels": "json", "spec": "json"}

    _cluster: Cluster | None = None

    def __init__(
        self,
        *,
        name: str | None = None,
        n: int | XComArg | None = None,
        spec: Mapping[str, Any] | None = None,
        if_exists: Literal["attach", "fail", "replace"] = "attach",
        claim: str | None = RUN_CLAIM,
        idle_timeout: float | None = DEFAULT_IDLE_TIMEOUT,
        lifetime: float | None = DEFAULT_LIFETIME,
        labels: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.n = cast("int | None", n)
        self.spec = spec
        self.if_exists = if_exists
        self.claim = claim
        self.idle_timeout = idle_timeout
        self.lifetime = lifetime
        self.labels = labels
        self.timeout = timeout

    def work(self, hook: ClusterHook, context: Context) -> dict[str, Any]:
        """Create the cluster and return its handle."""
        ti = context["ti"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - it is there while a task runs
        name = self.name or cluster_name(ti.dag_id, ti.run_id, ti.task_id, ti.map_index or 0)
        labels = run_labels(ti.dag_id, ti.run_id, ti.task_id, ti.map_index or 0)
        fields = {**self._fields(hook.defaults), "labels": {**labels, **(self.labels or {})}}
        self._cluster = self._create(hook, name, labels, fields)
        found = hook.get_conn().get_sync(name)
        made = "created" if self._cluster.made_here else "attached to"
        limits = found.ends or "never"
        self.log.info("%s %r #%d, %s engines; ends by itself: %s", made, name, found.incarnation, found.size, limits)
        handle = self._cluster.handle.model_dump(mode="json")
        self.links = hook.links(handle)
        return handle

    def _fields(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the spec: the task's own, then the connection's, then the defaults of this module."""
        limits = {
            "idle_timeout": (self.idle_timeout, DEFAULT_IDLE_TIMEOUT),
            "lifetime": (self.lifetime, DEFAULT_LIFETIME),
        }
        asked = {name: value for name, (value, default) in limits.items() if value != default}
        if self.n is not None:
            asked["n"] = int(self.n)
        return {**{name: default for name, (_, default) in limits.items()}, **defaults, **(self.spec or {}), **asked}

    def _create(self, hook: ClusterHook, name: str, mine: Mapping[str, str], fields: Mapping[str, Any]) -> Cluster:
        from ipcluster_core.errors import ClusterExists

        try:
            return hook.create(name, if_exists=self.if_exists, claim=self.claim, timeout=self.timeout, **fields)
        except ClusterExists:
            # What an earlier try of this task has made, before it was killed, is its own.
            if not mine.items() <= hook.get_conn().get_sync(name).labels.items():
                raise
        return hook.create(name, if_exists="attach", claim=self.claim, timeout=self.timeout, **fields)

    def announce(self, context: Context) -> None:
        """Push the counter of the claim, which guards its giving up by the teardown."""
        ti = context["ti"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - as above
        if self._cluster is not None and self._cluster.claim_counter is not None:
            ti.xcom_push(key="claim_counter", value=self._cluster.claim_counter)

    def undo(self) -> None:
        """Give up the cluster: it ends unless others hold claims on it, or it was only attached to, without a claim."""
        from ipcluster_core.errors import ClusterError

        cluster, self._cluster = self._cluster, None
        if cluster is None or not (cluster.made_here or cluster.claim_counter is not None):
            return
        try:
            report = cluster.teardown_sync(timeout=4.0)
        except ClusterError as error:
            self.log.warning("%r could not be given up, and ends by its limits: %s", cluster.name, error)
        else:
            self.log.info("%r is given up: %s", cluster.name, report.message)

    def teardown(self, *, task_id: str | None = None, **kwargs: Any) -> TeardownClusterOperator:
        """Make the task that ends this cluster in every outcome, set up as this task's teardown.

        ``with create.teardown():`` around the tasks that use the cluster sets their order as well.

        An empty task behind it, ``<task id>_done``, has a failed teardown fail the run. Airflow's own option for that,
        ``on_failure_fail_dagrun``, makes the teardown the only task that counts, and a run whose work has failed a
        success.

        Parameters
        ----------
        task_id
            Default: this task's, with ``_teardown`` behind it.
        kwargs
            As for `TeardownClusterOperator`.

        Returns
        -------
        TeardownClusterOperator
            Belongs behind every task that uses the cluster.
        """
        from airflow.providers.standard.operators.empty import EmptyOperator

        options: dict[str, Any] = {
            "claim": self.claim,
            "counter": None if self.claim is None else XComArg(self, key="claim_counter"),
            "ipcluster_conn_id": self.ipcluster_conn_id,
            **kwargs,
        }
        task = TeardownClusterOperator(task_id=task_id or f"{self.label}_teardown", cluster=self.output, **options)
        task.as_teardown(setups=self)
        # Outside of any task group: what follows a group must not take this for the outcome of the group's work.
        done = EmptyOperator(task_id=f"{task.task_id}_done".replace(".", "_"), task_group=self.dag.task_group)
        task.set_downstream(done)
        return task
