"""What a started task runner has: a connection, the task runs under way, and perhaps a cluster of its own."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from typing import TYPE_CHECKING, Any

from prefect.context import FlowRunContext
from prefect.logging import get_logger

from ipcluster_core import Client, Cluster, ClusterSpec
from ipcluster_core.errors import ClusterError

from . import _relay
from ._context import Contexts, Surroundings
from ._engine_side import RemoteTask
from ._own import create_own, end_own
from ._submission import Submission
from ._upstream import when_done
from .reports import AnyCluster, Logger

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import FlowRun

__all__ = ["Link"]

logger = get_logger("ipcluster")

#: Tasks that are remembered as they travelled, each in one place.
_MOST_TASKS = 256

#: Threads that resolve what tasks need: reading results may take a while, waiting for them takes no thread.
_RESOLVERS = 4

#: Seconds for tasks that run to come to their end when they are interrupted.
_CANCEL_SECONDS = 2.0

#: Seconds beyond a task's own limit until it is ended together with its engine.
_GRACE_SECONDS = 5.0


class Link:
    """Connects, or creates, when the first task comes."""

    def __init__(
        self, cluster: AnyCluster | None, spec: ClusterSpec | None, n: int | None, *, store: str | None, timeout: float
    ) -> None:
        self._cluster = cluster
        self._spec = spec if n is None and cluster is not None else spec or ClusterSpec(n=n)
        self._store = store
        self._timeout = timeout
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._owned: Cluster | None = None
        self._contexts = Contexts()
        self._travelling: dict[tuple[int, str], tuple[Task[..., Any], RemoteTask, Client]] = {}
        self._under_way: dict[str, Submission] = {}
        self._versions_told = False
        self._flow_run: FlowRun | None = None
        self._resolvers = concurrent.futures.ThreadPoolExecutor(_RESOLVERS, "ipcluster-resolver")

    # work

    def take(self, submission: Submission, retries: int) -> None:
        """Have a task run as soon as it can."""
        with self._lock:
            client = self._client or self._connect()
            flow = FlowRunContext.get()
            self._flow_run = self._flow_run or (flow.flow_run if flow is not None else None)
            remote = self._travel(client, submission.task, self._contexts.current(), retries)
        self._under_way[str(submission.id)] = submission
        submission.outcome.add_done_callback(lambda _: self._under_way.pop(str(submission.id), None))
        upstream = submission.upstream()
        if upstream:
            when_done(upstream, lambda: self._resolve(submission, *remote))
            return
        try:
            self._send(submission, *remote)
        except BaseException:
            self._under_way.pop(str(submission.id), None)
            raise

    def _send(self, submission: Submission, function: RemoteTask, client: Client) -> None:
        if submission.outcome.done():  # cancelled before
            return
        arguments = submission.arguments()
        if arguments is not None:
            submission.sent(client.submit(function, *arguments))

    def _resolve(self, submission: Submission, function: RemoteTask, client: Client) -> None:
        """Go on when all that it needs is done, in a thread that may read results."""
        if not submission.outcome.done():  # cancelled, perhaps with all the rest
            self._resolvers.submit(self._send_later, submission, function, client)

    def _send_later(self, submission: Submission, function: RemoteTask, client: Client) -> None:
        try:
            self._send(submission, function, client)
        except Exception as error:  # noqa: BLE001 - nobody is there to raise it to: it is what the run ends with
            submission.fail(error)

    def _travel(
        self, client: Client, task: Task[..., Any], place: Surroundings, retries: int
    ) -> tuple[RemoteTask, Client]:
        """Return a task as it travels, which it does once, and the view of the client by which it is sent."""
        known = self._travelling.get((id(task), place.key))
        if known is None:
            if len(self._travelling) >= _MOST_TASKS:
                self._travelling.clear()
            view = client.options(retries=retries, timeout=_hard_limit(task), name=task.name, on_note=self._on_note)
            known = self._travelling[id(task), place.key] = task, RemoteTask(task, *place), view
        return known[1], known[2]

    def _on_note(self, note: _relay.Note) -> None:
        run, kind, content = note
        submission = self._under_way.get(run)
        if kind == "versions":
            self._compare(json.loads(content))
        elif submission is not None:
            submission.hear(kind, content)

    def _compare(self, there: dict[str, str]) -> None:
        here = _relay.versions()
        differ = [f"{name} {there.get(name)} (here {here[name]})" for name in here if there.get(name) != here[name]]
        if differ and not self._versions_told:
            self._versions_told = True
            logger.warning(
                "engines of cluster %r have other versions than this flow: %s; results may not be understood",
                self._client.name if self._client else "?",
                ", ".join(differ),
            )

    # the cluster

    def _connect(self) -> Client:
        """Connect, or create a cluster of one's own first."""
        found = self._cluster
        if self._spec is not None:
            self._owned = create_own(found, self._spec, self._store, self._timeout)
            found = found if self._owned is None else self._owned.handle
        self._client = Client.connect(found or "", store=self._store, timeout=self._timeout)
        return self._client

    # the end

    def wait(self) -> None:
        """Wait until all is over."""
        while waiting := [one.outcome for one in list(self._under_way.values()) if not one.outcome.done()]:
            concurrent.futures.wait(waiting)

    def cancel(self) -> None:
        """Cancel all, with one wait for all of it."""
        running = [submission for submission in list(self._under_way.values()) if not submission.withdraw()]
        ids = [task_id for submission in running if (task_id := submission.task_id) is not None]
        if ids and self._client is not None:
            try:
                self._client.cancel(ids, timeout=_CANCEL_SECONDS)
            except (ClusterError, RuntimeError) as error:
                logger.warning("tasks could not be cancelled: %s", error)

    def close(self, log: Logger, error: BaseException | None) -> None:
        """Leave, and end the cluster if it is one's own.

        What was submitted is waited for; when the flow has failed, only what runs; when the flow is being stopped, that
        is interrupted.
        """
        try:
            if error is None:
                self._finish()
        except BaseException as late:
            error = late
            raise
        finally:
            try:
                self._hang_up(error)
            finally:
                if self._owned is not None:
                    end_own(self._owned, log, error)

    def _finish(self) -> None:
        if not self._has_failed():
            self.wait()
            return
        for submission in list(self._under_way.values()):
            submission.withdraw()
        if self._client is not None:
            self._client.shutdown(cancel_futures=True)

    def _hang_up(self, error: BaseException | None) -> None:
        if error is not None:
            self.cancel()
        self._resolvers.shutdown(wait=error is None, cancel_futures=True)
        if self._client is not None:
            self._client.shutdown(wait=False)

    def _has_failed(self) -> bool:
        """Tell whether the flow has failed, or was cancelled: Prefect tells its task runner nothing of that."""
        state = None if self._flow_run is None else self._flow_run.state
        return state is not None and (state.is_failed() or state.is_crashed() or state.is_cancelled())


def _hard_limit(task: Task[..., Any]) -> float | None:
    """Return after how many seconds a task is ended with its engine, because it does not heed Prefect's own limit."""
    if task.timeout_seconds is None or task.tags:  # with tags, it may have to wait for its turn
        return None
    delays = task.retry_delay_seconds or 0.0
    several = delays if isinstance(delays, list) else [delays] * task.retries
    paused = sum(several) * (1.0 + (task.retry_jitter_factor or 0.0))
    return (task.timeout_seconds + _GRACE_SECONDS) * (task.retries + 1) + paused
