"""Interrupts at random moments over many short tasks, and what they must not do."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from ipcluster_core import Client, Cluster

TASKS = 3000
INTERRUPTS = 100


def work_for(seconds: float) -> str:
    """Work; an interrupt is this task's own outcome."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            pass
    except KeyboardInterrupt:
        return "interrupted"
    return "done"


def check_interrupts(cluster: Cluster, client: Client, engines: Sequence[int], seed: int) -> None:
    """Check that as many tasks are interrupted as answers say, that each has an outcome, and that no engine ends."""
    dice = random.Random(seed)
    before = cluster.status_sync().engines
    view = client.options(engines=engines)
    futures = [view.submit(work_for, dice.uniform(0, 0.01)) for _ in range(TASKS)]
    told = 0
    for _ in range(INTERRUPTS):
        outcomes = cluster.interrupt_sync([dice.choice(engines)])
        told += sum(outcome == "interrupted" for outcome in outcomes.values())
        assert set(outcomes.values()) <= {"interrupted", "idle"}
    outcomes_of_tasks = []
    for future in futures:
        try:
            outcomes_of_tasks.append(future.result(30))
        except KeyboardInterrupt:  # it came before or behind the part of the task that handles it
            outcomes_of_tasks.append("interrupted")

    assert outcomes_of_tasks.count("interrupted") == told > 10
    assert outcomes_of_tasks.count("done") == TASKS - told
    after = cluster.status_sync().engines
    assert [(engine.pid, engine.incarnation) for engine in after] == [(e.pid, e.incarnation) for e in before]
