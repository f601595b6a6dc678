"""What the operators have in common: the hook, and an end that is never a success when the task is killed.

A task's execution::

    TALKING  hook and arguments are had from Airflow
    WORKING  `work`: asks Airflow nothing, so a kill may interrupt it anywhere
    TALKING  where `work` says so, and `announce`
    OVER     deferred; or in case of an error, timeout or kill after `undo`
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator, TaskDeferred

from ..hooks import ClusterHook
from ..links import ClusterLink, LogsLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["ClusterOperator"]


class Phase(enum.Enum):
    """See the drawing above."""

    TALKING = "talking"
    WORKING = "working"
    OVER = "over"


class ClusterOperator(BaseOperator):
    """A task that does something with a cluster: subclasses `work`, and `undo` it when it comes to nothing.

    Templated arguments are kept by the type that they have when Airflow has rendered them: ``cluster=create.output`` is
    an `XComArg` only until then.

    Parameters
    ----------
    ipcluster_conn_id
        Connection that names the store, see `ClusterHook`; templated.
    """

    template_fields: Collection[str] = ("ipcluster_conn_id",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"cluster": "json"}
    operator_extra_links = (ClusterLink(), LogsLink())
    ui_color = "#dcecf7"

    #: Links that the task has found, by what they show; see `links`.
    links: Mapping[str, str] = MappingProxyType({})

    _phase = Phase.TALKING
    _killed = False

    def __init__(self, *, ipcluster_conn_id: str = ClusterHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ipcluster_conn_id = ipcluster_conn_id

    def prepare(self) -> None:
        """Get from Airflow what `work` needs beside its arguments."""

    @abstractmethod
    def work(self, hook: ClusterHook, context: Context) -> object:
        """Do what the task is for, asking Airflow nothing but within `talking`; return what becomes its XCom."""

    def announce(self, context: Context) -> None:
        """Tell Airflow what `work` has done, beside its result."""

    def undo(self) -> None:
        """Take back what was done, after an error, a timeout or a kill; within 5 s after a kill."""

    def execute(self, context: Context) -> object:
        """Do the work; undo it when it fails, takes too long, or the task is killed.

        Returns
        -------
        object
            What becomes the task's XCom.

        Raises
        ------
        AirflowException
            The task was killed.
        TaskDeferred
            It waits on in the triggerer: nothing to undo.
        """
        self._phase = Phase.TALKING
        hook = self.reach()
        self.prepare()
        try:
            with self._interruptible():
                result = self.work(hook, context)
            self.announce(context)
            self._require_not_killed()
        except TaskDeferred:
            raise
        except BaseException:
            self.undo()
            raise
        finally:
            self._phase, self._killed = Phase.OVER, False
        return result

    def reach(self) -> ClusterHook:
        """Return the hook, which has asked Airflow for the connection and will not ask again."""
        hook = ClusterHook(self.ipcluster_conn_id)
        self.log.debug("clusters are kept in %s", hook.store.url)
        return hook

    def on_kill(self) -> None:
        """Stop `execute` by an exception, so that it undoes its work and the task is no success.

        Airflow calls this in a signal handler, would let `execute` go on, and sends SIGKILL 5 s later. Nothing here
        asks Airflow, and a conversation with it is not interrupted: it would answer the next question with the
        answer to the last. Airflow calls this after an execution timeout too, when all is over.

        Raises
        ------
        AirflowException
            The work was going on.

        References
        ----------
        apache/airflow#73006
        """
        if self._phase is Phase.OVER:
            return
        self._killed = True
        if self._phase is Phase.WORKING:
            self._phase = Phase.TALKING  # a second signal must not interrupt the clean-up
            self._require_not_killed()

    @contextmanager
    def _interruptible(self) -> Generator[None]:
        self._phase = Phase.WORKING
        try:
            self._require_not_killed()  # while arguments were rendered
            yield
        finally:
            self._phase = Phase.TALKING

    @contextmanager
    def talking(self) -> Generator[None]:
        """Ask Airflow something in the middle of the work: a kill waits until it has answered."""
        self._phase = Phase.TALKING
        yield
        self._phase = Phase.WORKING
        self._require_not_killed()

    def _require_not_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"task {self.task_id!r} was killed")

    @contextmanager
    def explained(self) -> Generator[None]:
        """Tell what to clear when the cluster that the task needs is over.

        Raises
        ------
        AirflowException
            It is.
        """
        from ipcluster_core.errors import ClusterEnded, ClusterNotFound, StaleHandle

        try:
            yield
        except (ClusterEnded, ClusterNotFound, StaleHandle) as error:
            raise AirflowException(
                f"{error}\nTo run task {self.task_id!r} again, clear the task that creates its cluster with downstream."
            ) from error
