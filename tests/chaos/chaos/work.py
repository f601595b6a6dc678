"""What runs on the engines, and what a client says came of it."""

from __future__ import annotations

import concurrent.futures
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipcluster_core import Client, errors

from .plan import TaskPlan

__all__ = ["Outcome", "outcome_of", "submit"]

#: Bytes of a large argument, and of a large result: beyond what travels in messages.
LARGE_BYTES = 2 << 20


@dataclass(frozen=True)
class Outcome:
    """How a task came out, as plain data."""

    number: int
    #: "value", "wrong", "raised", "interrupted", "cancelled", "hang", or the name of an error of ours.
    kind: str
    text: str = ""


def work(log: str, number: int, seconds: float, how: str, block: Any) -> Any:  # noqa: ANN401 - a buffer, or nothing
    """Leave a line that this ran, take some time, and return the square of the number, or raise it."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    time.sleep(seconds)
    if how == "raise":
        raise ValueError(f"task {number}")
    if block is not None:
        view = memoryview(block)
        if len(view) != LARGE_BYTES or not view[0] == view[-1] == number % 256:
            return b"damaged argument"
    if how == "large":
        return pickle.PickleBuffer(bytes((number * number % 251,)) * LARGE_BYTES)
    return number * number


def submit(client: Client, log: str, task: TaskPlan) -> concurrent.futures.Future[Any]:
    """Submit a task; a cluster that is over already is the outcome of its future."""
    large = task.how in ("large", "put")
    block: Any = pickle.PickleBuffer(bytes((task.number % 256,)) * LARGE_BYTES) if large else None
    chosen = client.options(retries=task.retries, timeout=task.limit)
    try:
        if task.how == "put":
            block = client.put(block)
        return chosen.submit(work, log, task.number, task.seconds, task.how, block)
    except errors.ClusterError as error:
        failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
        failed.set_exception(error)
        return failed


def outcome_of(future: concurrent.futures.Future[Any], task: TaskPlan) -> Outcome:
    """Say how a task came out; one that is not settled hangs."""
    if not future.done():
        return Outcome(task.number, "hang")
    if future.cancelled():
        return Outcome(task.number, "cancelled")
    error = future.exception()
    if error is None:
        right = _is_right(future.result(), task)
        return Outcome(task.number, "value" if right else "wrong", "" if right else f"{future.result()!r:.100}")
    if isinstance(error, KeyboardInterrupt):
        return Outcome(task.number, "interrupted")
    if isinstance(error, errors.ClusterError):
        return Outcome(task.number, type(error).__name__, str(error))
    right = task.how == "raise" and type(error) is ValueError and str(error) == f"task {task.number}"
    return Outcome(task.number, "raised" if right else "wrong", "" if right else repr(error))


def _is_right(value: Any, task: TaskPlan) -> bool:  # noqa: ANN401 - whatever came
    if task.how == "raise":
        return False
    if task.how in ("value", "put"):
        return bool(value == task.number**2)
    view: Sequence[int] = memoryview(value)
    return len(view) == LARGE_BYTES and view[0] == view[-1] == task.number**2 % 251
