"""Blocking twins of coroutine methods: ``scale_sync = synced(scale)``.

All twins of a process share one event loop on one background thread, so they work in plain scripts, in threads,
after a fork, and inside a running loop (notebooks). Ctrl-C in a twin cancels its coroutine and waits a bounded
time for its clean-up.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .guardian import heed_sigterm

__all__ = ["THREAD_NAME", "run", "stop", "synced", "synced_class"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

#: Name of the background thread.
THREAD_NAME = "ipcluster-loop"

#: Most threads that the loop hands blocking calls to.
_WORKERS = 4

#: Seconds after which a thread that waits looks whether it was interrupted.
_LOOK_SECONDS = 0.5

#: Seconds that an interrupted twin waits for its coroutine's clean-up.
_CLEANUP_TIMEOUT = 10.0


class _Background:
    """The event loop and its thread, made when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner = 0
        # A fork must not copy the lock while another thread holds it.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    @property
    def is_here(self) -> bool:
        """Whether this is its thread."""
        return self._owner == os.getpid() and threading.current_thread() is self._thread

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; it runs."""
        with self._lock:
            if self._loop is None or self._owner != os.getpid():
                # After a fork the thread is gone and the parent's loop must not be touched.
                self._loop, self._owner = asyncio.new_event_loop(), os.getpid()
                heed_sigterm()
                workers = concurrent.futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix=f"{THREAD_NAME}-worker")
                self._loop.set_default_executor(workers)
                self._thread = threading.Thread(target=self._loop.run_forever, name=THREAD_NAME, daemon=True)
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """Cancel what runs on the loop, and end it with its thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self._owner != os.getpid():
            return
        _result_despite_interrupts(asyncio.run_coroutine_threadsafe(_wind_up(loop), loop))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Do what `asyncio.run` does at its end."""
    # Whoever was cancelled before may wait for a clean-up, which is not to be cut short.
    await _wait_for_cancelled()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLEANUP_TIMEOUT)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


_background = _Background()


def stop() -> None:
    """End the background thread, if there is one; twins that wait are cancelled, the next one starts a new thread."""
    _background.stop()


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the background loop.

    Returns
    -------
    object
        The coroutine's result.

    Raises
    ------
    RuntimeError
        Called from a coroutine that runs there itself: it would wait for itself.
    """
    if _background.is_here:
        coroutine.close()
        raise RuntimeError("a blocking twin cannot be called on the loop of the twins: await the coroutine instead")
    future = asyncio.run_coroutine_threadsafe(coroutine, _background.loop())
    try:
        # Not in one wait without end: a signal that comes after the interpreter's last look and before the wait in C
        # begins, which takes a loaded machine long, is seen only when that wait is over.
        while not future.done():
            concurrent.futures.wait([future], _LOOK_SECONDS)
        return future.result()
    finally:
        # Not done: this thread was interrupted while the coroutine goes on.
        if not future.done():
            future.cancel()
            # The wrapped future is marked cancelled at once; the clean-up is over when the loop has run it.
            _result_despite_interrupts(asyncio.run_coroutine_threadsafe(_wait_for_cancelled(), _background.loop()))
        del future  # no cycle of an exception and this frame


async def _wait_for_cancelled() -> None:
    """Wait, for a bounded time, until the loop has worked off what was cancelled."""
    me = asyncio.current_task()
    cancelled = [task for task in asyncio.all_tasks() if task is not me and task.cancelling()]
    if cancelled:
        await asyncio.wait(cancelled, timeout=_CLEANUP_TIMEOUT)


def _result_despite_interrupts(future: concurrent.futures.Future[None]) -> None:
    """Wait for a clean-up, for a bounded time; whoever presses Ctrl-C again gets it no sooner, but whole."""
    deadline = time.monotonic() + 2 * _CLEANUP_TIMEOUT + 1
    while not future.done() and (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(KeyboardInterrupt, concurrent.futures.TimeoutError):
            future.result(left)


class synced(Generic[S, P, R]):  # noqa: N801 - reads as a decorator does
    """Descriptor: the blocking twin of a coroutine method."""

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method

    @overload
    def __get__(self, instance: None, owner: type[S]) -> Callable[Concatenate[S, P], R]: ...

    @overload
    def __get__(self, instance: S, owner: type[S] | None = None) -> Callable[P, R]: ...

    def __get__(self, instance: S | None, owner: type[S] | None = None) -> Callable[..., R]:
        return _twin(self._method if instance is None else MethodType(self._method, instance))


class synced_class(Generic[P, R]):  # noqa: N801 - reads as a decorator does
    """Descriptor: the blocking twin of a coroutine function that needs no instance."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]:
        return _twin(self._function)


def _twin(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    @functools.wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(function(*args, **kwargs))

    return twin
