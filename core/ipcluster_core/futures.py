"""A `concurrent.futures.Future` that costs next to nothing until somebody waits for it.

The standard future makes a lock and a condition at birth. Here they are made when something first waits, looks or
adds a callback. One lock, shared by all futures and held for an assignment, orders "make the condition" and "set the
outcome": whoever comes second sees what the first has done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures._base import (  # the state names are what `wait` and `as_completed` look at
    CANCELLED,
    CANCELLED_AND_NOTIFIED,
    FINISHED,
    RUNNING,
)
from typing import Any, Protocol, TypeVar

__all__ = ["TaskFuture"]

T = TypeVar("T")

_OVER = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})

# Reentrant: a signal handler or a finaliser may look at a future while this thread holds it.
_making = threading.RLock()
# A fork must not copy it while another thread holds it.
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


class _Home(Protocol):
    """The connection that a future belongs to."""

    uid: str

    def cancel(self, future: TaskFuture[Any]) -> bool: ...


class TaskFuture(Future[T]):
    """Result of one task. Works with `wait`, `as_completed` and ``asyncio.wrap_future``.

    Attributes
    ----------
    number : int
        The task's number with its client; 0 until it is sent.
    on_note : callable or None
        Gets what the task tells while it runs.
    """

    def __init__(self, home: _Home, number: int, on_note: Callable[[Any], object] | None = None) -> None:
        # Deliberately not the parent's: it would make the condition.
        self._lazy: threading.Condition | None = None
        self._state = RUNNING
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self._home = home
        self.number = number
        self.on_note = on_note

    @property
    def _condition(self) -> threading.Condition:
        condition = self._lazy
        if condition is None:
            with _making:
                condition = self._lazy = self._lazy or threading.Condition()
        return condition

    # The parent has an attribute there, and never asks what kind.
    @_condition.setter
    def _condition(self, value: threading.Condition) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._lazy = value

    def cancel(self) -> bool:
        """Cancel the task: it never runs, or is interrupted if it does.

        Asks the broker, so it takes a round trip; a running task gets a second to come to its end. One that goes on
        (code in C, code that catches KeyboardInterrupt) may be cancelled later, or have a result.

        Returns
        -------
        bool
            Whether it is cancelled.
        """
        if self._state in _OVER:
            return self.cancelled()
        return self._home.cancel(self)

    @property
    def task_id(self) -> str:
        """Id of the task, by which other steps get its result: see `Client.result`."""
        return f"{self._home.uid}-{self.number}"

    def settle(self, value: T | None, exception: BaseException | None) -> None:
        """Set the outcome; called by the client's I/O thread only. A settled future stays as it is."""
        self._set(FINISHED, value, exception)

    def settle_cancelled(self) -> None:
        """Note that the task was cancelled in time."""
        self._set(CANCELLED_AND_NOTIFIED, None, None)

    def _set(self, state: str, value: T | None, exception: BaseException | None) -> None:
        with _making:
            condition = self._lazy
            if condition is None:
                if self._state not in _OVER:
                    self._result, self._exception, self._state = value, exception, state
                return
        with condition:
            if self._state in _OVER:
                return
            self._result, self._exception, self._state = value, exception, state
            for waiter in self._waiters:
                if state != FINISHED:
                    waiter.add_cancelled(self)
                elif exception is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            condition.notify_all()
        self._invoke_callbacks()  # type: ignore[attr-defined]

    def result(self, timeout: float | None = None) -> T:
        """Return the task's value, waiting for it.

        Returns
        -------
        object
            What the task returned.

        Raises
        ------
        concurrent.futures.CancelledError
            The task was cancelled.
        TimeoutError
            It took longer than `timeout` seconds.
        Exception
            Whatever the task raised, with the engine's traceback as ``__cause__``.
        """
        if self._state == FINISHED:
            if self._exception is not None:
                try:
                    raise self._exception
                finally:
                    del self  # the traceback holds this frame: no cycle of future, exception and frame
            return self._result  # type: ignore[return-value]
        if self._state in _OVER:
            raise CancelledError
        return super().result(timeout)
