"""Buttons on a task's page: the cluster's own page, and where its logs are.

The project serves no web page. A connection may name one in its extra, as templates such as
``https://grafana.example/d/clusters?var-name={name}``; without them there are no buttons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

__all__ = ["ClusterLink", "LogsLink", "fill"]


def fill(template: str, handle: Mapping[str, Any]) -> str:
    """Put a cluster's name, incarnation, uid, backend and launcher into the template of a link.

    Returns
    -------
    str
        Empty without a template.

    Raises
    ------
    ValueError
        The template has another field than these.
    """
    known = {key: handle[key] for key in ("name", "incarnation", "uid", "backend", "launcher")}
    try:
        return template.format(**known)
    except (LookupError, ValueError) as error:
        raise ValueError(f"link {template!r} of the connection: {error}; it may have {', '.join(known)}") from error


class ClusterLink(BaseOperatorLink):
    """The cluster's page."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Cluster"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """Return the link that the task has found, or nothing. Airflow calls this where the task runs, at its end."""
        return str(getattr(operator, "links", {}).get("cluster", ""))


class LogsLink(BaseOperatorLink):
    """Where the logs of the cluster's parts are."""

    @property
    def name(self) -> str:
        """Text of the button."""
        return "Cluster logs"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as above
        """Return the link that the task has found, or nothing."""
        return str(getattr(operator, "links", {}).get("logs", ""))
