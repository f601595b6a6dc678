"""A user's DAG must pass type checkers: what one task returns is the argument of the next."""

from __future__ import annotations

from typing import assert_type

from airflow.sdk import DAG, chain

from airflow_ipcluster import (
    ClusterHook,
    CreateClusterOperator,
    RunOnClusterOperator,
    ScaleClusterOperator,
    TeardownClusterOperator,
)
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

assert_type(create.teardown(), TeardownClusterOperator)
with ClusterHook().connect("shared") as client:
    assert_type(client, Client)
