"""Sensors for clusters that somebody else creates and ends."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    XComArg,
)

from .hooks import AnyCluster, ClusterHook
from .operators.waiting import DEFERRABLE
from .watching import Event, Look, Seen, Wanted, is_name, look

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["ClusterEndedSensor", "ClusterReadySensor"]


class ClusterSensor(BaseSensorOperator):
    """Waits for a cluster; subclasses say for what.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated.
    deferrable
        Whether the triggerer waits, after one look. Default: as Airflow's configuration has it.
    start_from_trigger
        Whether the triggerer does the first look too, so that no worker has the task before there is something to tell.
        For a cluster that is given by name or handle, since what another task returns is not known there. A mapped
        sensor begins in a worker, and so does each on Airflow 3.2.
    ipcluster_conn_id
        Connection that names the store of a name; templated.
    """

    template_fields: Collection[str] = ("ipcluster_conn_id", "cluster")
    template_fields_renderers: ClassVar[dict[str, str]] = {"cluster": "json"}
    ui_color = "#dcecf7"

    wanted: ClassVar[Wanted]
    n: int | None = None

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        deferrable: bool = DEFERRABLE,
        ipcluster_conn_id: str = ClusterHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cast("AnyCluster", cluster)
        self.deferrable = deferrable
        self.ipcluster_conn_id = ipcluster_conn_id

    def _start_in_triggerer(self) -> None:
        """Have Airflow's scheduler do what `execute` does when it defers.

        Raises
        ------
        ValueError
            The sensor may not be deferred.
        TypeError
            An argument is what another task returns.
        """
        if not self.deferrable:
            raise ValueError(f"task {self.task_id!r} starts from its trigger only with deferrable=True")
        arguments = {"cluster": self.cluster, "n": self.n, "ipcluster_conn_id": self.ipcluster_conn_id}
        for name, value in arguments.items():
            if isinstance(value, XComArg):
                raise TypeError(
                    f"{name} of task {self.task_id!r} is what another task returns, so it cannot start from its trigger"
                )
        from airflow.triggers.base import StartTriggerArgs

        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls="airflow_ipcluster.triggers.ClusterTrigger",
            trigger_kwargs={**arguments, "wanted": str(self.wanted), "poll_interval": self.poke_interval},
            next_method="resume",
            timeout=timedelta(seconds=self.timeout),
        )

    def poke(self, context: Context) -> PokeReturnValue:  # noqa: ARG002 - as Airflow calls it
        """Look once.

        Returns
        -------
        PokeReturnValue
            With the cluster's handle, or how it ended, when it is done.

        Raises
        ------
        AirflowException
            It will certainly not come.
        """
        found = self._look()
        self.log.info("%s", found.message)
        if found.seen is Seen.NOT_YET:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._value(found.event()))

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - as in the base class
        """Wait: here, by rescheduling, or in the triggerer.

        Returns
        -------
        object
            As for `poke`.
        """
        if not self.deferrable:
            return super().execute(context)
        found = self._look()
        if found.seen is not Seen.NOT_YET:
            return self.resume(context, found.event())
        from .triggers import ClusterTrigger

        self.log.info("%s; the triggerer waits on", found.message)
        trigger = ClusterTrigger(
            self.cluster,
            self.wanted,
            n=self._wanted_engines(),
            store=self._store(),
            deadline=time.time() + self.timeout,
            poll_interval=self.poke_interval,
        )
        return self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: Event) -> object:  # noqa: ARG002 - as Airflow calls it
        """Go on when the triggerer has waited.

        Returns
        -------
        object
            As for `poke`.

        Raises
        ------
        AirflowSensorTimeout
            Nothing came in time.
        AirflowSkipException
            The same, with ``soft_fail``.
        """
        self.log.info("%s", event["message"])
        if event["seen"] != "timeout":
            return self._value(event)
        why = f"not {self.wanted} within {self.timeout:g} s: {event['message']}"
        raise AirflowSkipException(why) if self.soft_fail else AirflowSensorTimeout(why)

    def _look(self) -> Look:
        return look(self.cluster, self.wanted, n=self._wanted_engines(), store=self._store())

    def _wanted_engines(self) -> int | None:
        return None if self.n is None else int(self.n)

    def _store(self) -> str | None:
        return ClusterHook(self.ipcluster_conn_id).store.url if is_name(self.cluster) else None

    def _value(self, event: Event) -> object:
        if event["seen"] == "failed":
            raise AirflowException(f"task {self.task_id!r} waits for what will not come: {event['message']}")
        return event["handle"] if event["handle"] is not None else event["message"]


class ClusterReadySensor(ClusterSensor):
    """Wait until a cluster is there and its engines are up; returns its handle.

    One that is given by its name may be created later, also when the last of that name has ended.

    Parameters
    ----------
    n
        Engines that must be up; templated. Default: all that were asked for.
    cluster, deferrable, start_from_trigger, ipcluster_conn_id
        See `ClusterSensor`.
    """

    template_fields: Collection[str] = (*ClusterSensor.template_fields, "n")
    wanted = Wanted.READY

    def __init__(self, *, n: int | XComArg | None = None, start_from_trigger: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = cast("int | None", n)
        if start_from_trigger:
            self._start_in_triggerer()


class ClusterEndedSensor(ClusterSensor):
    """Wait until a cluster has ended, in whatever way; returns how, in words.

    One that is given by its handle is over also when its name has a newer cluster; one that is given by its name and
    was never created is waited for.
    """

    wanted = Wanted.ENDED

    def __init__(self, *, start_from_trigger: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if start_from_trigger:
            self._start_in_triggerer()
