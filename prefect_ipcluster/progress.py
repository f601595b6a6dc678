"""How far a map is, as an artifact of its task run that is written at most every two seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import (
    acreate_progress_artifact,
    aupdate_progress_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.context import TaskRunContext
from prefect.exceptions import PrefectException

from .options import function_name
from .reports import AnyCluster, name_of, run_logger

__all__ = ["SECONDS", "Progress"]

#: Least seconds between two changes of the artifact; what is over before has none.
SECONDS = 2.0

# A sync task of an async flow runs where a loop runs: without `_sync` these would return coroutines there.
_create: Any = create_progress_artifact
_update: Any = update_progress_artifact

#: What the API may answer, or not; a map does not fail because its progress cannot be shown.
_UNSHOWN = (HTTPError, PrefectException, OSError)


@dataclass(slots=True)
class Progress:
    """The progress artifact of one map. Made at its first showing.

    Parameters
    ----------
    cluster
        Name of the cluster.
    text
        What it is the progress of.
    shown
        Whether it is to be shown at all; it never is outside a task run.
    """

    cluster: str
    text: str
    shown: bool = True
    artifact: UUID | None = None
    due: float = field(default_factory=lambda: time.monotonic() + SECONDS)

    def __post_init__(self) -> None:
        """Show nothing where there is no task run to show it."""
        self.shown = self.shown and TaskRunContext.get() is not None

    @classmethod
    def of(cls, cluster: AnyCluster, function: object, *, shown: bool) -> Self:
        """Return the progress of a map, of which nothing is shown yet."""
        return cls(name_of(cluster), f"map {function_name(function)} on cluster {name_of(cluster)}", shown)

    @property
    def key(self) -> str:
        """Key of the artifact, which Prefect shows in one place for all maps on a cluster."""
        return f"ipcluster-{self.cluster}-progress"

    def is_due(self, percent: float, now: float) -> bool:
        """Tell whether to show it: two seconds after the last time, and when all is done if anything was shown."""
        if not self.shown or (percent < 100.0 and now < self.due) or (percent == 100.0 and self.artifact is None):
            return False
        self.due = now + SECONDS
        return True

    def show(self, percent: float) -> None:
        """Make or change the artifact, if it is due."""
        if not self.is_due(percent, time.monotonic()):
            return
        try:
            if self.artifact is None:
                self.artifact = _create(percent, self.key, self.text, _sync=True)
            else:
                _update(self.artifact, percent, _sync=True)
        except _UNSHOWN as error:
            self._give_up(error)

    async def ashow(self, percent: float) -> None:
        """Make or change the artifact, in an event loop, if it is due."""
        if not self.is_due(percent, time.monotonic()):
            return
        try:
            if self.artifact is None:
                self.artifact = await acreate_progress_artifact(percent, self.key, self.text)
            else:
                await aupdate_progress_artifact(self.artifact, percent)
        except _UNSHOWN as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.shown = False
        run_logger().warning("the progress of %s cannot be shown: %r", self.text, error)
