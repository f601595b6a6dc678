"""How what a task makes is called: pure functions of the task instance's identity."""

from __future__ import annotations

import hashlib
import json
import re

__all__ = ["RUN_CLAIM", "cluster_name", "run_labels"]

#: Template of the claim that stands for a DAG run; `claims.claim_of` as Airflow renders it.
RUN_CLAIM = "airflow/{{ dag.dag_id }}/{{ run_id }}"

#: Longest name of a cluster: a DNS label.
_LONGEST_NAME = 63


def cluster_name(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """Name the cluster that a task instance makes.

    All tries of a task instance have the same name, so a later try finds what an earlier one has made; no two task
    instances share one.

    Returns
    -------
    str
        Such as ``airflow-flights-1f3c9a02``.
    """
    identity = json.dumps([dag_id, run_id, task_id, map_index])
    digest = hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", dag_id.lower())
    room = _LONGEST_NAME - len("airflow--") - len(digest)
    return "-".join(part for part in ("airflow", slug[:room].strip("-"), digest) if part)


def run_labels(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str]:
    """Return the labels by which a cluster is found from the task instance that made it."""
    labels = {"airflow-dag": dag_id, "airflow-run": run_id, "airflow-task": task_id}
    return labels if map_index < 0 else {**labels, "airflow-map-index": str(map_index)}
