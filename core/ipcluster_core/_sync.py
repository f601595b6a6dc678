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
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

__all__ = ["THREAD_NAME", "run", "stop", "synced", "synced_class"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

#: Name of the background thread.
THREAD_NAME = "ipcluster-loop"

#: Most threads that the loop hands blocking calls to.
_WORKERS = 4

#: Seconds that an interrupted twin waits for its coroutine's clean-up.
_CLEANUP_TIMEOUT = 10.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_owner = 0


def _background() -> asyncio.AbstractEventLoop:
    global _loop, _thread, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():
            # After a fork the thread is gone and the parent's loop must not be touched.
            _loop, _owner = asyncio.new_event_loop(), os.getpid()
            workers = concurrent.futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix=f"{THREAD_NAME}-worker")
            _loop.set_default_executor(workers)
            _thread = threading.Thread(target=_loop.run_forever, name=THREAD_NAME, daemon=True)
            _thread.start()
        return _loop


def stop() -> None:
    """End the background thread, if there is one; the next twin starts a new one."""
    global _loop, _thread
    with _lock:
        loop, thread, _loop, _thread = _loop, _thread, None, None
        if loop is None or thread is None or _owner != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the background loop and return its result."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _background())
    try:
        return future.result()
    except BaseException:
        # Either the coroutine's own exception, or an interrupt in this thread while it goes on.
        if not future.done():
            future.cancel()
            # The wrapped future is marked cancelled at once; the clean-up is over when the loop has run it.
            _drain()
        raise


def _drain() -> None:
    """Wait, for a bounded time, until the loop has worked off what was just cancelled."""

    async def settled() -> None:
        me = asyncio.current_task()
        cancelled = [task for task in asyncio.all_tasks() if task is not me and task.cancelling()]
        if cancelled:
            await asyncio.wait(cancelled, timeout=_CLEANUP_TIMEOUT)

    with contextlib.suppress(concurrent.futures.TimeoutError):
        asyncio.run_coroutine_threadsafe(settled(), _background()).result(_CLEANUP_TIMEOUT + 1)


class synced(Generic[S, P, R]):  # noqa: N801 - reads as a decorator does
    """Descriptor: the blocking twin of a coroutine method."""

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        functools.update_wrapper(self, method)
        self.__doc__ = f"Blocking twin of `{method.__name__}`."

    def __get__(self, instance: S, owner: type[S] | None = None) -> Callable[P, R]:
        method = self._method

        @functools.wraps(method)
        def twin(*args: P.args, **kwargs: P.kwargs) -> R:
            return run(method(instance, *args, **kwargs))

        return twin


class synced_class(Generic[P, R]):  # noqa: N801 - reads as a decorator does
    """Descriptor: the blocking twin of a coroutine function that needs no instance."""

    def __init__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> None:
        self._function = function
        self.__doc__ = f"Blocking twin of `{getattr(function, '__name__', 'it')}`."

    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R]:
        function = self._function

        @functools.wraps(function)
        def twin(*args: P.args, **kwargs: P.kwargs) -> R:
            return run(function(*args, **kwargs))

        return twin
