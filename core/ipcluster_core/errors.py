"""Every error that the project raises on purpose, in one tree.

::

    ClusterError
    ├── ClusterNotFound        no record under that name
    ├── ClusterExists          create with if_exists="fail" met a living cluster
    ├── ClusterInUse           teardown refused: other runs hold a claim
    ├── ClusterEnded           the cluster ended; says when, why and by whom
    ├── StaleHandle            the handle belongs to an earlier incarnation of the name
    ├── ClusterBroken          record and reality disagree (its processes are gone)
    ├── ClusterTimeout         a bounded wait was over; also a TimeoutError
    │   └── TaskTimeout        a task ran for longer than it may
    ├── LaunchError            a job or engine could not be started; carries its last output
    ├── EngineLost             an engine died with the task; names engine, host, cause, last output
    ├── ResultExpired          the result of a task is not kept any more
    ├── NotHeld                an engine has no value of that name; also a KeyError
    │   └── StateLost          it had one, and was started anew since
    ├── TaskError              a task raised something that cannot be rebuilt here
    ├── VersionMismatch        Python, this package or cloudpickle differ between the parts
    ├── StoreError             the store cannot be reached or holds something unreadable
    │   ├── StoreConflict      somebody else changed the document first
    │   └── StoreDamaged       a document is there, and is not what this version can read
    └── NotAuthorized          wrong or missing secret
"""

from __future__ import annotations

__all__ = [
    "ClusterBroken",
    "ClusterEnded",
    "ClusterError",
    "ClusterExists",
    "ClusterInUse",
    "ClusterNotFound",
    "ClusterTimeout",
    "EngineLost",
    "LaunchError",
    "NotAuthorized",
    "NotHeld",
    "RemoteTraceback",
    "ResultExpired",
    "StaleHandle",
    "StateLost",
    "StoreConflict",
    "StoreDamaged",
    "StoreError",
    "TaskError",
    "TaskTimeout",
    "VersionMismatch",
]


class ClusterError(Exception):
    """Base of everything in this tree."""


class ClusterNotFound(ClusterError):
    """No cluster of that name is in the store."""


class ClusterExists(ClusterError):
    """A living cluster has that name and ``if_exists="fail"`` was asked for."""


class ClusterInUse(ClusterError):
    """Teardown is refused because other runs still hold a claim; ``force=True`` ends it anyway."""


class ClusterEnded(ClusterError):
    """The cluster came to its end; the message says when, why and by whom."""


class StaleHandle(ClusterError):
    """The handle is of an earlier incarnation; the name now belongs to another cluster."""


class ClusterBroken(ClusterError):
    """The record says that the cluster lives, but its processes are gone or do not answer."""


class ClusterTimeout(ClusterError, TimeoutError):
    """A bounded wait was over before its condition held."""


class TaskTimeout(ClusterTimeout):
    """A task ran for longer than its ``timeout``, and was interrupted or ended with its engine."""


class ResultExpired(ClusterError):
    """The result of a task is not kept any more, or there was no such task."""


class NotHeld(ClusterError, KeyError):
    """An engine holds no value of that name; the message tells which it has."""

    __str__ = Exception.__str__  # that of a KeyError shows a message as a literal


class StateLost(NotHeld):
    """An engine held that value, and was started anew since: push it again."""


class LaunchError(ClusterError):
    """A job or an engine could not be started; the message ends with its last output."""


class EngineLost(ClusterError):
    """The engine died while it ran the task.

    Attributes
    ----------
    engine : int or None
        Id of the engine.
    cause : str
        Exit code or signal, as ``"signal SIGKILL"`` or ``"exit code 3"``.
    output : str
        Last lines that the engine wrote.
    """

    def __init__(self, message: str, *, engine: int | None = None, cause: str = "", output: str = "") -> None:
        super().__init__(message)
        self.engine = engine
        self.cause = cause
        self.output = output


class TaskError(ClusterError):
    """A task raised an exception whose object cannot be rebuilt in this process.

    Attributes
    ----------
    type_name : str
        Qualified name of the original exception type.
    """

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message, type_name)
        self.type_name = type_name

    def __str__(self) -> str:
        return str(self.args[0])


class VersionMismatch(ClusterError):
    """Two parts run versions that cannot work together; the message shows a table."""


class StoreError(ClusterError):
    """The store cannot be reached, or a document in it cannot be read."""


class StoreConflict(StoreError):
    """The document changed (or came to be, or went) since it was read."""


class StoreDamaged(StoreError):
    """A document is damaged, half-made or of a newer schema; the store itself can be reached."""


class NotAuthorized(ClusterError):
    """The secret of the cluster is missing or wrong."""


class RemoteTraceback(Exception):
    """Carries the engine's traceback as the ``__cause__`` of a task's exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
