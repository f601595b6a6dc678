"""A Prefect task runner: ordinary tasks, submitted or mapped, run on the engines of a cluster.

::

    submit --> futures upstream done? --> RemoteTask on an engine --> state, value --> IPClusterFuture
                     (no thread waits)        |  states, logs, prints
                                              '--------------> Prefect, through this process

The runner is a setting until the first task is submitted: then it connects, or creates the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from ipcluster_core import ClusterSpec

from ._inline import on_engine, run_inline
from ._link import Link
from ._submission import Submission
from .futures import IPClusterFuture
from .reports import AnyCluster, name_of

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import RunInput

__all__ = ["IPClusterTaskRunner"]


# Of futures as `flow` declares it: a runner of other ones is of another type.
class IPClusterTaskRunner(TaskRunner[PrefectFuture[Any]]):
    """Runs the tasks of a flow on a cluster.

    Task runs end as they would in the flow's own process: with states, logs, prints, retries, timeouts, caching. In
    addition an engine's death makes a run ``Crashed`` at once, with the reason, and `IPClusterFuture.cancel` and
    ``timeout_seconds`` stop the code on the engine. Tasks that a task submits on an engine run there and then.

    Parameters
    ----------
    cluster
        A cluster to use: name, handle, dict or JSON of a handle. It is found when the first task is submitted, and
        never ended.
    spec
        Instead: a cluster to create when the first task is submitted, and to end with the flow run, in any outcome.
        Its process is watched as `cluster` does it. With `cluster`, a name, the one of that name is used if it lives.
    n
        Short for a spec of so many engines. Without anything, two.
    store
        URL of the store; default: the handle's, else as `ipcluster_core.open_store` has it.
    timeout
        Seconds until the cluster must answer, or be there.
    retries_on_engine_loss
        How often a task run is begun again when its engine died with it. Default: never, the run is ``Crashed``.

    Notes
    -----
    A task travels when it is first submitted in a flow run, so what its code closes over is seen as it is then. At its
    end a flow waits for what it has submitted; if it has failed, for what runs, and the rest is cancelled.
    """

    def __init__(
        self,
        cluster: AnyCluster | None = None,
        *,
        spec: ClusterSpec | None = None,
        n: int | None = None,
        store: str | None = None,
        timeout: float = 60.0,
        retries_on_engine_loss: int = 0,
    ) -> None:
        if spec is not None and n is not None:
            raise ValueError("give a spec or a number of engines, not both")
        super().__init__()  # type: ignore[no-untyped-call] # Prefect's has no types
        self._cluster = cluster
        self._spec = spec
        self._n = n
        self._store = store
        self._timeout = timeout
        self._retries = retries_on_engine_loss
        self._link: Link | None = None

    def _settings(self) -> dict[str, Any]:
        return {
            "cluster": self._cluster,
            "spec": self._spec,
            "n": self._n,
            "store": self._store,
            "timeout": self._timeout,
            "retries_on_engine_loss": self._retries,
        }

    def duplicate(self) -> Self:
        """Return a runner with the same settings that is not started."""
        return type(self)(**self._settings())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IPClusterTaskRunner):
            return NotImplemented
        return self._settings() == other._settings()

    __hash__ = None  # type: ignore[assignment] # as in Prefect's runners: settings may be unhashable

    def __getstate__(self) -> dict[str, Any]:
        return self._settings()

    def __setstate__(self, settings: dict[str, Any]) -> None:
        vars(self).update(vars(type(self)(**settings)))

    def __repr__(self) -> str:
        given = {name: value for name, value in self._settings().items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __enter__(self) -> Self:
        super().__enter__()
        self._link = Link(self._cluster, self._spec, self._n, store=self._store, timeout=self._timeout)
        return self

    def submit(
        self,
        task: Task[..., Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> IPClusterFuture[Any]:
        """Have a task run on an engine, as soon as the futures are done that it needs.

        Parameters
        ----------
        task
            The task.
        parameters
            Of its function; futures among them are resolved here, and their values sent.
        wait_for
            Futures that must be done before.
        dependencies
            By parameter, further runs from which its value comes.

        Returns
        -------
        IPClusterFuture
            Of the task run.

        Raises
        ------
        RuntimeError
            The runner was not started (it is a context manager).
        ClusterError
            There is no such cluster, it cannot be reached or created, or is gone.
        """
        if not self._started or self._link is None:
            raise RuntimeError("Task runner is not started")
        if on_engine(None if self._cluster is None else name_of(self._cluster)):
            return run_inline(task, parameters, wait_for, dependencies)
        submission = Submission(task, parameters, wait_for, dependencies)
        self._link.take(submission, self._retries)
        return submission.future

    def wait(self) -> None:
        """Wait until all task runs that were submitted here are over."""
        if self._link is not None:
            self._link.wait()

    def cancel_all(self) -> None:
        """Cancel what was submitted: what runs is interrupted on its engine. Waits for that at most two seconds."""
        if self._link is not None:
            self._link.cancel()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        link, self._link = self._link, None
        try:
            if link is not None:
                link.close(self.logger, exc_value)
        finally:
            super().__exit__(exc_type, exc_value, traceback)
