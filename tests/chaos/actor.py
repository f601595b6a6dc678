"""Another process of a round: ``actor.py create|client|leave`` with a JSON object of what it needs; prints JSON.

It waits for a line on its standard input before it acts, so that several act at once.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos.plan import TaskPlan
from chaos.work import outcome_of, submit
from ipcluster_core import Client, Cluster, errors


def wait_for_line() -> None:
    """Say that this process is ready, and wait until it may act."""
    print("ready", flush=True)  # noqa: T201 - read by the performer
    sys.stdin.readline()


def create(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Create the cluster, or attach to it."""
    wait_for_line()
    made = Cluster.create_sync(wanted["name"], n=wanted["n"], if_exists=wanted["if_exists"], **wanted["spec"])
    return {"incarnation": made.handle.incarnation}


def leave(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Tear the cluster down that was found before the line came: with a claim of its own, or by force."""
    cluster = Cluster.connect_sync(wanted["name"], claim=wanted["claim"])
    wait_for_line()
    report = cluster.teardown_sync(force=wanted["claim"] is None)
    return {"outcome": report.outcome, "leftovers": report.leftovers}


def client(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Submit tasks, write down their ids after each burst, and wait for what comes of them."""
    tasks = [TaskPlan(**task) for task in wanted["tasks"]]
    client = Client.connect(wanted["name"])
    wait_for_line()
    start, futures, ids = time.monotonic(), [], {}
    for at, burst in itertools.groupby(tasks, key=lambda task: task.at):
        time.sleep(max(0.0, start + at - time.monotonic()))  # the plan's moment
        for task in burst:
            futures.append(submit(client, wanted["log"], task))
            ids[task.number] = getattr(futures[-1], "task_id", None)
        Path(wanted["ids"]).write_text(json.dumps(ids))
    concurrent.futures.wait(futures, wanted["patience"])
    outcomes = [asdict(outcome_of(future, task)) for future, task in zip(futures, tasks, strict=True)]
    client.shutdown(wait=False)
    return {"outcomes": outcomes}


ROLES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "create": create,
    "leave": leave,
    "client": client,
}

if __name__ == "__main__":
    try:
        said = ROLES[sys.argv[1]](json.loads(sys.argv[2]))
    except errors.ClusterError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(said), flush=True)  # noqa: T201 - read by the performer
