"""A user's DAG must pass type checkers: what one task returns is the argument of the next."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from airflow.sdk import DAG, XComArg, chain

from airflow_ipcluster import (
    ClusterEndedSensor,
    ClusterHook,
    ClusterReadySensor,
    CreateClusterOperator,
    GiveUpClaimsNotifier,
    ReapClustersOperator,
    RestartEnginesOperator,
    RunOnClusterOperator,
    ScaleClusterOperator,
    TeardownClusterOperator,
    WaitForClusterOperator,
    cluster,
)
from airflow_ipcluster.decorators import ipcluster_task
from ipcluster_core import Client


def work(value: int, factor: int = 1) -> int:
    """Work for an engine."""
    return value * factor


with DAG("typed", schedule=None):
    create = CreateClusterOperator(task_id="create", n=2, lifetime=None, labels={"team": "data"})
    with create.teardown(task_id="end", retries=1) as teardown:
        over = RunOnClusterOperator(task_id="over", cluster=create.output, python_callable=work, map_over=[1, 2])
        again = RunOnClusterOperator(task_id="again", cluster="shared", python_callable=work, map_over=over.output)
        scale = ScaleClusterOperator(task_id="scale", cluster=create.output, n=4)
        each = RunOnClusterOperator(task_id="each", cluster=scale.output, python_callable=work, op_args=[1], mode="all")
        chain(over, again, scale, each)
    TeardownClusterOperator(task_id="other", cluster="shared", claim=None, force=True, trigger_rule="all_done")

with DAG("scoped", on_failure_callback=GiveUpClaimsNotifier(), dagrun_timeout=timedelta(hours=1)):
    with cluster("nightly", n=2, task_id="study", retries=1) as scope:
        wait = WaitForClusterOperator(task_id="wait", cluster=scope.handle, n=1, deferrable=True)
        anew = RestartEnginesOperator(task_id="anew", cluster=wait.output, engines=[0])
        named = RunOnClusterOperator(task_id="named", cluster=anew.output, python_callable="os:getpid", mode="all")
        command = RunOnClusterOperator(task_id="command", cluster="nightly", command=["echo", "hello"], map_over=[1])

        @ipcluster_task(cluster=scope.handle)
        def fit(value: int) -> int:
            """Work for an engine."""
            return value

        chain(named, command, fit(1), fit.expand(value=[1, 2]))
    assert_type(scope.handle, XComArg)
    ready = ClusterReadySensor(task_id="ready", cluster="nightly", n=2, timeout=600)
    ended = ClusterEndedSensor(task_id="ended", cluster="nightly", deferrable=True)
    chain(ready, ended)
    ReapClustersOperator(task_id="reap", max_age=24 * 3600, labels={"team": "data"})

assert_type(create.teardown(), TeardownClusterOperator)
with ClusterHook().connect("shared") as client:
    assert_type(client, Client)
