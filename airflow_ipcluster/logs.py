"""Logs as we use them: Airflow's own kind, which is a task's, and that of the standard library."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Log"]


class Log(Protocol):
    """Takes lines of several levels, with arguments for their ``%s``."""

    def info(self, event: str, /, *args: Any) -> Any:  # noqa: ANN401 - whatever it returns
        """Take a line."""

    def warning(self, event: str, /, *args: Any) -> Any:  # noqa: ANN401 - as above
        """Take a line that someone should look at."""

    def error(self, event: str, /, *args: Any) -> Any:  # noqa: ANN401 - as above
        """Take a line of something that was lost."""
