"""A flow that is being stopped gives up its clusters as soon as its body is left.

Prefect runs hooks when the threads of the flow's tasks are over. One that waits for a task on an engine would hold them
up, for as long as that takes; the end of the cluster frees it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect.exceptions import Abort, Pause
from prefect.runtime import flow_run

from ipcluster_core.errors import ClusterError

from .owned import give_up
from .reports import run_logger

if TYPE_CHECKING:
    from prefect import Flow

__all__ = ["end_when_stopped"]

#: Seconds for each cluster: whoever stops a flow will not wait for long.
_SECONDS = 5.0


def end_when_stopped(flow: Flow[..., Any], *, force: bool, store: str | None) -> None:
    """Have a flow give up its clusters when its body is left by anything but success or an ordinary exception."""
    inner: Callable[..., Any] = flow.fn

    @functools.wraps(inner)
    def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's function
        try:
            return inner(*args, **kwargs)
        except BaseException as error:
            if _is_stop(error):
                _give_up(force=force, store=store)
            raise

    @functools.wraps(inner)
    async def async_body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's function
        try:
            return await inner(*args, **kwargs)
        except BaseException as error:
            if _is_stop(error):
                await asyncio.shield(asyncio.to_thread(_give_up, force=force, store=store))
            raise

    if not flow.isgenerator:
        flow.fn = async_body if flow.isasync else body


def _is_stop(error: BaseException) -> bool:
    """Tell whether a flow is being stopped; one that is suspended is not."""
    return not isinstance(error, Exception | Pause | Abort | GeneratorExit)


def _give_up(*, force: bool, store: str | None) -> None:
    run_id = flow_run.id
    if run_id is None:
        return
    try:
        give_up(run_id, run_logger(), force=force, store=store, timeout=_SECONDS)
    except ClusterError as error:
        run_logger().warning("the flow's hooks are to try again: %s", error)
