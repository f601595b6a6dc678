"""The task that runs a function on a cluster."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from ..hooks import AnyCluster, ClusterHook
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

    from ipcluster_core import Client

__all__ = ["RunOnClusterOperator"]


class RunOnClusterOperator(ClusterOperator):
    """Run a function on the engines of a cluster.

    The function may be defined in the DAG file or in a module beside it: it travels to the engines, which need not have
    it. It runs without the task's context. Returns what it returns; with `map_over` the list of that, in the order of
    the items; with ``mode="all"`` a dict by engine id (a string: XComs have no other keys).

    Results go through XCom, so they are plain data or what Airflow serializes by itself. The first failure fails the
    task, and what no engine has begun is cancelled.

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated.
    python_callable
        The function.
    op_args, op_kwargs
        Its arguments; templated.
    map_over
        Items, for each of which it is called with ``(item, *op_args, **op_kwargs)``; templated.
    mode
        "one" call on any engine (one for each item with `map_over`), or one call on each of "all" engines.
    timeout
        Seconds for all results. Default: no limit but the cluster's end and the task's ``execution_timeout``.
    """

    template_fields: Collection[str] = (*ClusterOperator.template_fields, "cluster", "op_args", "op_kwargs", "map_over")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "cluster": "json",
        "op_args": "py",
        "op_kwargs": "py",
        "map_over": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    _client: Client | None = None

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        map_over: Iterable[Any] | XComArg | None = None,
        mode: Literal["one", "all"] = "one",
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(python_callable):
            raise TypeError(f"python_callable of task {self.task_id!r} cannot be called: {python_callable!r}")
        if mode not in ("one", "all"):
            raise ValueError(f"mode of task {self.task_id!r} is 'one' or 'all', not {mode!r}")
        if mode == "all" and map_over is not None:
            raise ValueError(f"task {self.task_id!r} runs on each engine or over items, not both")
        self.cluster = cast("AnyCluster", cluster)
        self.python_callable = python_callable
        self.op_args = op_args
        self.op_kwargs = op_kwargs
        self.map_over = cast("Iterable[Any] | None", map_over)
        self.mode = mode
        self.timeout = timeout

    def prepare(self) -> None:
        """Get the items: where they are the results of a mapped task, each is asked for."""
        if self.map_over is not None:
            self.map_over = list(self.map_over)

    def work(self, hook: ClusterHook, context: Context) -> object:  # noqa: ARG002 - the shape of all operators
        """Run the function and return its results."""
        with self.explained():
            self._client = hook.connect(self.cluster)
        result = self._run(self._client)
        self._client.shutdown()
        if self.do_xcom_push:
            require_plain(result, self.task_id)
        return result

    def _run(self, client: Client) -> object:
        args, kwargs = tuple(self.op_args), dict(self.op_kwargs or {})
        if self.mode == "all":
            self.log.info("running on each engine of cluster %r", client.name)
            # A partial, since keywords of the function may be called as those of `run`.
            found = client.run(functools.partial(self.python_callable, *args, **kwargs), timeout=self.timeout)
            return {str(engine): value for engine, value in found.items()}
        if self.map_over is None:
            self.log.info("running on cluster %r", client.name)
            return self._gather(client, [client.submit(self.python_callable, *args, **kwargs)])[0]
        items = list(self.map_over)
        self.log.info("running over %d items on cluster %r", len(items), client.name)
        return self._gather(client, [client.submit(self.python_callable, item, *args, **kwargs) for item in items])

    def _gather(self, client: Client, futures: Sequence[concurrent.futures.Future[Any]]) -> list[Any]:
        from ipcluster_core.errors import ClusterTimeout

        waited = concurrent.futures.wait(futures, self.timeout, concurrent.futures.FIRST_EXCEPTION)
        for number, future in enumerate(futures):
            if future in waited.done and future.exception() is not None:
                self.log.error("call %d of %d failed", number + 1, len(futures))
                future.result()
        if waited.not_done:
            raise ClusterTimeout(
                f"{len(waited.not_done)} of {len(futures)} results of cluster {client.name!r} "
                f"did not come within {self.timeout:g} s"
            )
        return [future.result() for future in futures]

    def undo(self) -> None:
        """Cancel what no engine has begun, and disconnect."""
        client, self._client = self._client, None
        if client is not None:
            client.shutdown(wait=False, cancel_futures=True)


def require_plain(result: object, task_id: str) -> None:
    """Raise unless Airflow can hand a result to another task.

    Airflow pushes more than it can pull under its default settings: a dataclass, a pydantic model. A task should fail
    where the value comes from, not where it is needed.

    Raises
    ------
    TypeError
        It cannot; the message says why.
    """
    from airflow.sdk.serde import deserialize, serialize

    try:
        pushed: Any = serialize(result)
        deserialize(pushed)
    except Exception as error:
        raise TypeError(
            f"the result of task {task_id!r} ({type(result).__name__}) cannot go through XCom: {error}\n"
            "Return plain data, write large results to a file and return its path, or set do_xcom_push=False."
        ) from error
