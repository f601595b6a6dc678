"""The future of a task run on a cluster."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect.futures import PrefectConcurrentFuture

if TYPE_CHECKING:
    from prefect import State

__all__ = ["IPClusterFuture"]

R = TypeVar("R")


class IPClusterFuture(PrefectConcurrentFuture[R]):
    """Result of a task run on an engine.

    Its state is pushed back by the cluster and nobody has to ask Prefect's API for it; an engine's death ends it as
    ``Crashed``, a cancellation as ``Cancelled``.
    """

    def __init__(
        self,
        task_run_id: UUID,
        wrapped_future: concurrent.futures.Future[Any],
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(task_run_id, wrapped_future)
        self._cancel = cancel

    @property
    def state(self) -> State[Any]:
        """State of the run: its last one when it is over, else what Prefect's API has."""
        if self._wrapped_future.done():
            return self._wrapped_future.result()  # type: ignore[return-value] # it holds the state, not its value
        return super().state

    def cancel(self) -> bool:
        """Cancel the run: it never begins, or its code is interrupted on the engine.

        Takes a round trip to the cluster; code that runs gets a second to come to its end. One that goes on (code in C,
        code that catches KeyboardInterrupt) may be cancelled later, or have a result.

        Returns
        -------
        bool
            Whether it is cancelled.
        """
        if self._cancel is None or self._wrapped_future.done():
            return self._wrapped_future.done() and self.state.is_cancelled()
        return self._cancel()
