"""Names, claims and labels of what a task makes."""

from __future__ import annotations

import re

import pytest

from airflow_ipcluster.naming import cluster_name

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.mark.parametrize("dag_id", ["flights", "Nightly_Features.v2", "__", "x" * 200, "a" * 45 + "_b", "übung", "1"])
def test_the_name_is_a_dns_label_whatever_the_dag_is_called(dag_id: str) -> None:
    """DAG ids allow more characters than names of clusters do, and more of them."""
    assert DNS_LABEL.fullmatch(cluster_name(dag_id, "manual__2026-01-01T00:00:00+00:00", "create", -1))


def test_the_name_tells_the_dag() -> None:
    """A person who lists clusters sees where they come from."""
    assert re.fullmatch("airflow-nightly-features-[0-9a-f]{8}", cluster_name("nightly_features", "run", "create", -1))


def test_all_tries_of_a_task_instance_have_one_name_and_no_two_instances_share_one() -> None:
    """The name is the memory between tries."""
    identity = ("flights", "run", "create", -1)
    others = [("flights", "run", "create", 0), ("flights", "run", "other", -1), ("flights", "run2", "create", -1)]

    assert cluster_name(*identity) == cluster_name(*identity)
    assert len({cluster_name(*who) for who in [identity, *others]}) == 4
    assert cluster_name("a.b", "run", "create", -1) != cluster_name("a-b", "run", "create", -1)
