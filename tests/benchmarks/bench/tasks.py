"""What engines are given to run. They can import it: this folder is on their `PYTHONPATH`."""

from __future__ import annotations

import os
import pathlib
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    #: numpy is not imported before it is needed.
    Array: TypeAlias = Any

#: Seconds after which tasks that wait for others give up.
PATIENCE = 60.0

#: Seconds that a task lasts which is to be ended, not awaited.
LONG = 600.0

#: One byte of each page: reading these is reading the array, as far as memory goes.
_STRIDE = 4096

_produced: dict[int, Array] = {}


def inc(number: int) -> int:
    """Do next to nothing."""
    return number + 1


def spend(seconds: float) -> float:
    """Take so long."""
    time.sleep(seconds)
    return seconds


def arrive(folder: str) -> int:
    """Leave a sign that this process runs a task; return its pid."""
    pid = os.getpid()
    with pathlib.Path(os.path.join(folder, str(pid))).open("w"):
        return pid


def wait_for(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something is so that nobody announces; TimeoutError if it does not become so in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.001)


def meet(folder: str, count: int) -> int:
    """Wait until so many processes are in this task at once; return this one's pid."""
    pid = arrive(folder)
    wait_for(lambda: len(os.listdir(folder)) >= count, f"{count} engines at work at once")
    return pid


def stall(folder: str) -> None:
    """Leave a sign, then work until this process is ended."""
    arrive(folder)
    time.sleep(LONG)


def touch(array: Array) -> float:
    """Read every page of an array."""
    return float(array.view("u1")[::_STRIDE].sum(dtype="u8"))


def meet_with(array: Array, folder: str, count: int) -> float:
    """Read an array on so many engines at once."""
    meet(folder, count)
    return touch(array)


def produce(size_bytes: int) -> Array:
    """Return an array that this engine made before, so that making it is not what is measured."""
    import numpy as np

    if size_bytes not in _produced:
        _produced[size_bytes] = np.ones(size_bytes // 8)
    return _produced[size_bytes]
