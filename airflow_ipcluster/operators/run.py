"""The task that runs something on a cluster."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from ..hooks import AnyCluster, ClusterHook
from ..on_engine import call_named, run_command
from ..results import require_fitting, write
from ..working import Work
from .base import ClusterOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, XComArg

__all__ = ["RunOnClusterOperator"]

#: Most bytes of JSON that a result may have in XCom.
MOST_XCOM_BYTES = 1 << 20

#: Key of the calls in Airflow's store of a task's state (3.3): what an earlier try has left running.
_CALLS = "ipcluster_calls"

#: Most calls that are noted there: what Airflow stores without a warning.
_MOST_NOTED = 8000


class RunOnClusterOperator(ClusterOperator):
    """Run a function or a command on the engines of a cluster.

    A function may be defined in the DAG file or in a module beside it: it travels to the engines, which need not have
    it. It runs without the task's context. Returns what it returns; with `map_over` the list of that, in the order of
    the items; with ``mode="all"`` a dict by engine id (a string: XComs have no other keys). What engines write goes to
    the task's log, line by line, also that of other tasks on the same cluster.

    Results go through XCom, so they are plain data or what Airflow serializes by itself. The first failure fails the
    task. When it fails, takes too long or is killed, what waits and what runs on the engines is cancelled; after a
    SIGKILL the next try does that (Airflow 3.3).

    Parameters
    ----------
    cluster
        The cluster: ``create.output``, a handle or a name; templated.
    python_callable
        The function, or ``"module:function"`` which the engines import.
    command
        Instead of a function: program and arguments, as a list or in one string that is split as a shell does. No
        shell runs; it returns the last line of the command's output, and fails by its exit code. Templated.
    op_args, op_kwargs
        Arguments of the function; templated.
    map_over
        Items, for each of which it is called with ``(item, *op_args, **op_kwargs)``, a command with the item as its
        last argument; templated.
    mode
        "one" call on any engine (one for each item with `map_over`), or one call on each of "all" engines.
    engines
        Those for ``mode="all"``: ids or the name of a set, whose ranks are called together. Default: all.
    engine_retries
        How often a call is repeated that was lost with its engine.
    timeout
        Seconds for all results. Default: no limit but the cluster's end and the task's ``execution_timeout``.
    result_path
        File on the worker for the results, as JSON; then XCom has ``path``, ``bytes`` and ``count``. Templated.
    most_xcom_bytes
        A result that is larger fails the task.
    log_output
        Whether what engines write goes to the task's log.
    """

    template_fields: Collection[str] = (
        *ClusterOperator.template_fields,
        "cluster",
        "command",
        "op_args",
        "op_kwargs",
        "map_over",
        "result_path",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "cluster": "json",
        "op_args": "py",
        "op_kwargs": "py",
        "map_over": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    _work: Work | None = None

    def __init__(
        self,
        *,
        cluster: AnyCluster | XComArg,
        python_callable: Callable[..., Any] | str | None = None,
        command: str | Sequence[str] | None = None,
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        map_over: Iterable[Any] | XComArg | None = None,
        mode: Literal["one", "all"] = "one",
        engines: str | Sequence[int] = "all",
        engine_retries: int = 0,
        timeout: float | None = None,
        result_path: str | None = None,
        most_xcom_bytes: int = MOST_XCOM_BYTES,
        log_output: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (python_callable is None) is (command is None):
            raise ValueError(f"task {self.task_id!r} takes either python_callable or command")
        named = isinstance(python_callable, str) and all(python_callable.partition(":"))
        if python_callable is not None and not named and not callable(python_callable):
            raise TypeError(
                f"python_callable of task {self.task_id!r} cannot be called, and is no 'module:function': "
                f"{python_callable!r}"
            )
        if mode not in ("one", "all"):
            raise ValueError(f"mode of task {self.task_id!r} is 'one' or 'all', not {mode!r}")
        if mode == "all" and map_over is not None:
            raise ValueError(f"task {self.task_id!r} runs on each engine or over items, not both")
        self.cluster = cast("AnyCluster", cluster)
        self.python_callable: Callable[..., Any] | str | None = python_callable
        self.command = command
        self.op_args = op_args
        self.op_kwargs = op_kwargs
        self.map_over = cast("Iterable[Any] | None", map_over)
        self.mode = mode
        self.engines = engines
        self.engine_retries = engine_retries
        self.timeout = timeout
        self.result_path = result_path
        self.most_xcom_bytes = most_xcom_bytes
        self.log_output = log_output

    def prepare(self) -> None:
        """Get the items: where they are the results of a mapped task, each is asked for.

        Raises
        ------
        TypeError
            A template has made a text of them.
        """
        if isinstance(self.map_over, str):
            raise TypeError(
                f"map_over of task {self.task_id!r} is a text, {self.map_over!r}: to have a list from a template, make "
                "the DAG with render_template_as_native_obj=True"
            )
        if self.map_over is not None:
            self.map_over = list(self.map_over)

    def work(self, hook: ClusterHook, context: Context) -> object:
        """Run it and return its results."""
        with self.explained():
            client = hook.connect(self.cluster)
            self.links = hook.links_of(self.cluster)
        self._work = work = Work(client.options(retries=self.engine_retries), self.log, output=self.log_output)
        with self.talking():
            left = noted_calls(context)
        work.cancel_others(left)
        self._start(work, client.name)
        with self.talking():
            note_calls(context, work.task_ids)
        result = self._shaped(work.results(self.timeout), work.engines)
        work.close()
        if self.result_path is not None:
            result = write(result, self.result_path, self.task_id)
        if self.do_xcom_push:
            require_fitting(result, self.task_id, self.most_xcom_bytes)
        return result

    def _call(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return what an engine calls, and its arguments behind the item."""
        if self.command is not None:
            argv = shlex.split(self.command) if isinstance(self.command, str) else list(self.command)
            return functools.partial(run_command, argv), ()
        kwargs = dict(self.op_kwargs or {})
        if isinstance(self.python_callable, str):
            return functools.partial(call_named, self.python_callable, **kwargs), tuple(self.op_args)
        function = cast("Callable[..., Any]", self.python_callable)
        return functools.partial(function, **kwargs) if kwargs else function, tuple(self.op_args)

    def _start(self, work: Work, name: str) -> None:
        call, args = self._call()
        if self.mode == "all":
            work.on_each(self.engines, call, args)
            self.log.info("running on engines %s of cluster %r", ", ".join(map(str, work.engines)), name)
        elif self.map_over is None:
            self.log.info("running on cluster %r", name)
            work.once(call, args)
        else:
            items = list(self.map_over)
            self.log.info("running over %d items on cluster %r", len(items), name)
            work.over(items, call, args)

    def _shaped(self, found: list[Any], engines: Sequence[int]) -> object:
        if self.mode == "all":
            return {str(engine): value for engine, value in zip(engines, found, strict=True)}
        return found[0] if self.map_over is None else found

    def undo(self) -> None:
        """Cancel what waits and what runs, and disconnect."""
        work, self._work = self._work, None
        if work is not None:
            work.abandon()


def noted_calls(context: Context) -> list[str]:
    """Return the calls that an earlier try has noted; they may go on if it was killed at once."""
    state, ti = context.get("task_state_store"), context.get("ti")
    found = None if state is None or ti is None or ti.try_number < 2 else state.get(_CALLS)
    prefix, *rest = found.split(" ") if isinstance(found, str) else [""]
    return [f"{prefix}{end}" for end in rest]


def note_calls(context: Context, calls: Sequence[str]) -> None:
    """Note calls where a later try finds them: XComs are gone by then. Airflow 3.2 has no such place."""
    state = context.get("task_state_store")
    if state is not None:
        # The ids of one client begin alike, which is noted once.
        prefix = os.path.commonprefix(calls)  # noqa: RUF071 - they are no paths
        state.set(_CALLS, " ".join([prefix, *(call[len(prefix) :] for call in calls[:_MOST_NOTED])]))
