"""What becomes of the results of a task: plain data of a bounded size in XCom, or a file and its path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["require_fitting", "write"]


def require_fitting(result: object, task_id: str, most_bytes: int) -> None:
    """Raise unless Airflow can hand a result to another task, and it is not too large for that.

    Airflow pushes more than it can pull under its default settings: a dataclass, a pydantic model. A task should fail
    where the value comes from, not where it is needed.

    Raises
    ------
    TypeError
        It cannot; the message says why.
    ValueError
        It is too large.
    """
    from airflow.sdk.serde import deserialize, serialize

    way_out = "write results to a file (result_path), return less, or set do_xcom_push=False"
    try:
        pushed: Any = serialize(result)
        deserialize(pushed)
        size = len(json.dumps(pushed))
    except Exception as error:
        raise TypeError(
            f"the result of task {task_id!r} ({type(result).__name__}) cannot go through XCom: {error}\n"
            f"Return plain data, {way_out}."
        ) from error
    if size > most_bytes:
        raise ValueError(f"the result of task {task_id!r} has {size} bytes, for XCom at most {most_bytes}: {way_out}")


def write(result: object, path: str, task_id: str) -> dict[str, Any]:
    """Write a result to a JSON file, in one step, so that nobody reads half of it.

    Returns
    -------
    dict
        Its ``path``, ``bytes``, and ``count`` of items, which goes through XCom.

    Raises
    ------
    TypeError
        It is not plain data.
    OSError
        It cannot be written.
    """
    try:
        text = json.dumps(result)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the result of task {task_id!r} cannot be written as JSON: {error}") from error
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    count = len(result) if isinstance(result, list | dict) else 1
    return {"path": str(target), "bytes": len(text.encode()), "count": count}
