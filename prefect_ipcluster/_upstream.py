"""The futures that a task waits for: found wherever they are in its arguments, and waited for without a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from prefect.futures import PrefectFuture, PrefectWrappedFuture
from prefect.utilities.annotations import quote
from prefect.utilities.collections import StopVisiting, visit_collection

__all__ = ["pending", "when_done"]


def pending(values: object) -> list[PrefectFuture[Any]]:
    """Return the futures in some values, however deep, that are not known to be done; what is quoted is left alone."""
    found: list[PrefectFuture[Any]] = []

    def look(value: object) -> None:
        if isinstance(value, quote):
            raise StopVisiting
        if isinstance(value, PrefectFuture):
            found.append(value)

    visit_collection(values, visit_fn=look, return_data=False)
    return [future for future in found if not _is_done(future)]


def _is_done(future: PrefectFuture[Any]) -> bool:
    return isinstance(future, PrefectWrappedFuture) and future.wrapped_future.done()


def when_done(futures: Sequence[PrefectFuture[Any]], action: Callable[[], object]) -> None:
    """Have something done when the last of some futures is done, in whichever thread ends that."""
    left = len(futures)
    lock = threading.Lock()

    def count(_: PrefectFuture[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            action()

    for future in futures:
        future.add_done_callback(count)
