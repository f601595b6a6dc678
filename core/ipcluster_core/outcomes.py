"""What came of a task, and what it tells before, as its future has it: from the bytes that an engine has sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from . import errors, serialize
from .futures import TaskFuture
from .segments import Reader
from .wire import Buffer, Note, Status

__all__ = ["hear", "settle"]

logger = logging.getLogger("ipcluster.client")


def settle(future: TaskFuture[Any], status: int, payload: Buffer, buffers: Sequence[Buffer], reader: Reader) -> None:
    """Give a future its outcome, whatever it is; large buffers are read from shared memory, which is then free."""
    try:
        match status:
            case Status.OK:
                given = reader.load(buffers, release=True) if buffers else ()
                future.settle(serialize.load(payload, given), None)
            case Status.ERROR:
                future.settle(None, serialize.load_exception(payload))
            case Status.CANCELLED:
                future.settle_cancelled()
            case _:
                future.settle(None, _lost(json.loads(bytes(payload))))
    except Exception as error:  # noqa: BLE001 - a class unknown here, a user's __setstate__: that task's error
        failed = errors.TaskError(f"the result came, but cannot be rebuilt here: {error!r}", type(error).__name__)
        failed.__cause__ = error
        future.settle(None, failed)


def hear(futures: Mapping[int, TaskFuture[Any]], note: Note) -> None:
    """Hand over what a task tells to whoever submitted it."""
    future = futures.get(note.number)
    if future is None or future.on_note is None:
        return
    try:
        future.on_note(serialize.load(note.body))
    except Exception:
        # A callback of the user's may raise anything; results must not wait for it.
        logger.exception("the callback for notes of task %s failed", future.task_id)


def _lost(content: Mapping[str, Any]) -> errors.ClusterError:
    if "error" in content:
        kind: type[errors.ClusterError] = getattr(errors, str(content["error"]))
        return kind(str(content["message"]))
    return errors.EngineLost(
        str(content["message"]),
        engine=content.get("engine"),
        cause=str(content.get("cause", "")),
        output=str(content.get("output", "")),
    )
