"""What a task has running on a cluster: calls, their progress and output in the task's log, and their cancellation.

Nothing here asks Airflow.
"""

from __future__ import annotations

import concurrent.futures
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .logs import Log

if TYPE_CHECKING:
    from ipcluster_core import Client

__all__ = ["Work"]

#: Seconds between two lines about progress.
PROGRESS_SECONDS = 10.0

#: Seconds for running calls to be cancelled: of the 5 s that Airflow leaves to a task that is killed.
_CANCEL_SECONDS = 2.5

#: Seconds for the last lines of engines to come.
_OUTPUT_SECONDS = 10.0
_KILLED_OUTPUT_SECONDS = 0.5


class Work:
    """The calls of one task on one cluster.

    Parameters
    ----------
    client
        Connected; it is closed by `close`.
    log
        The task's log.
    output
        Whether what engines write goes to it.
    """

    def __init__(self, client: Client, log: Log, *, output: bool) -> None:
        self._client = client
        self._log = log
        self._futures: list[concurrent.futures.Future[Any]] = []
        self._engines: list[int] = []
        self._stream = self._open_stream() if output else None

    def _open_stream(self) -> Any:  # noqa: ANN401 - its class is not a public name of the core
        from ipcluster_core.errors import ClusterError

        try:
            return self._client.stream_output(lambda engine, line: self._log.info("[engine %d] %s", engine, line))
        except ClusterError as error:  # of a cluster that has ended the calls will tell it
            self._log.warning("the output of engines is not shown here: %s", error)
            return None

    def cancel_others(self, task_ids: Sequence[str]) -> None:
        """Cancel calls of an earlier try, which may still run."""
        if task_ids:
            cancelled = sum(self._client.cancel(task_ids, timeout=_CANCEL_SECONDS).values())
            if cancelled:
                self._log.info("%d calls that an earlier try left are cancelled", cancelled)

    def once(self, call: Callable[..., Any], args: Sequence[Any]) -> None:
        """Start one call, on any engine."""
        self._futures = [self._client.submit(call, *args)]

    def over(self, items: Iterable[Any], call: Callable[..., Any], args: Sequence[Any]) -> None:
        """Start one call for each item."""
        for item in items:
            self._futures.append(self._client.submit(call, item, *args))

    def on_each(self, engines: str | Sequence[int], call: Callable[..., Any], args: Sequence[Any]) -> None:
        """Start one call on each engine."""
        # A partial, since keywords of the function may be called as those of `spread`.
        found = self._client.spread(functools.partial(call, *args), engines=engines)
        self._engines, self._futures = list(found), list(found.values())

    @property
    def engines(self) -> list[int]:
        """The engines of `on_each`, in the order of `results`."""
        return self._engines

    @property
    def task_ids(self) -> list[str]:
        """By what another process finds the calls."""
        return [future.task_id for future in self._futures]  # type: ignore[attr-defined]

    def results(self, timeout: float | None) -> list[Any]:
        """Wait for the results.

        Returns
        -------
        list
            In the order of the calls.

        Raises
        ------
        ClusterTimeout
            Some did not come in time.
        Exception
            What the first call to fail raised.
        """
        from ipcluster_core.errors import ClusterTimeout

        futures, started = self._futures, time.monotonic()
        until = None if timeout is None else started + timeout
        told = 0
        while True:
            left = PROGRESS_SECONDS if until is None else min(PROGRESS_SECONDS, until - time.monotonic())
            waited = concurrent.futures.wait(futures, max(0.0, left), concurrent.futures.FIRST_EXCEPTION)
            self._raise_first_failure(waited.done)
            if not waited.not_done:
                self._log.info("%d of %d calls are done", len(futures), len(futures))
                return [future.result() for future in futures]
            if len(waited.done) != told:
                told = len(waited.done)
                self._log.info("%d of %d calls are done", told, len(futures))
            if until is not None and time.monotonic() >= until:
                raise ClusterTimeout(
                    f"{len(waited.not_done)} of {len(futures)} results of cluster {self._client.name!r} "
                    f"did not come within {timeout:g} s"
                )

    def _raise_first_failure(self, done: set[concurrent.futures.Future[Any]]) -> None:
        for number, future in enumerate(self._futures):
            if future in done and (future.cancelled() or future.exception() is not None):
                where = f"on engine {self._engines[number]}" if self._engines else f"{number + 1}"
                self._log.error("call %s of %d failed", where, len(self._futures))
                future.result()

    def close(self) -> None:
        """Take the last output and disconnect; nothing runs any more."""
        if self._stream is not None:
            self._stream.close(_OUTPUT_SECONDS)
        self._client.shutdown()

    def abandon(self) -> None:
        """Cancel what waits and what runs, and disconnect; within 5 s."""
        from ipcluster_core.errors import ClusterError

        left = [future.task_id for future in self._futures if not future.done()]  # type: ignore[attr-defined]
        try:
            if left:
                outcomes = self._client.cancel(left, timeout=_CANCEL_SECONDS)
                going_on = sum(not cancelled for cancelled in outcomes.values())
                self._log.info("%d calls are cancelled, %d are over or go on", len(left) - going_on, going_on)
        except ClusterError as error:
            self._log.info("nothing is cancelled: %s", error)
        finally:
            if self._stream is not None:
                self._stream.close(_KILLED_OUTPUT_SECONDS)
            self._client.shutdown(wait=False, cancel_futures=True)
