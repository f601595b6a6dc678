"""What Prefect shows of clusters as artifacts: a table of engines, a summary at the end, what was reaped.

Nothing is shown outside a run, or when the setting ``PREFECT_INTEGRATIONS_IPCLUSTER_ARTIFACTS`` is off; and nothing
fails because it cannot be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from httpx import HTTPError
from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_table_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException

from ipcluster_core import ClusterStatus, ReapResult, TeardownReport

from .reports import describe, run_logger
from .settings import IPClusterSettings

__all__ = [
    "UNSHOWN",
    "ashow_end",
    "ashow_engines",
    "ashow_reaped",
    "is_shown",
    "show_end",
    "show_engines",
    "show_reaped",
]

#: What the API may answer, or not.
UNSHOWN = (HTTPError, PrefectException, OSError)

# A sync task of an async flow runs where a loop runs: without `_sync` these would return coroutines there.
_create_table: Any = create_table_artifact
_create_markdown: Any = create_markdown_artifact


class _Table(NamedTuple):
    key: str
    rows: list[dict[str, Any]]
    text: str


def is_shown() -> bool:
    """Tell whether there is a run that artifacts can belong to, and they are wanted."""
    in_run = TaskRunContext.get() is not None or FlowRunContext.get() is not None
    return in_run and IPClusterSettings().artifacts


def show_engines(status: ClusterStatus) -> None:
    """Show the engines of a cluster as a table."""
    _show_table(_engines(status))


async def ashow_engines(status: ClusterStatus) -> None:
    """Show the engines of a cluster as a table, in an event loop."""
    await _ashow_table(_engines(status))


def show_reaped(results: Sequence[ReapResult]) -> None:
    """Show what was reaped as a table, if anything was."""
    if results:
        _show_table(_reaped(results))


async def ashow_reaped(results: Sequence[ReapResult]) -> None:
    """Show what was reaped as a table, if anything was, in an event loop."""
    if results:
        await _ashow_table(_reaped(results))


def show_end(report: TeardownReport, last: ClusterStatus | None) -> None:
    """Show how a cluster ended, and what it had done until then as far as is known."""
    if not is_shown() or report.outcome != "ended":
        return
    try:
        _create_markdown(summary_of(report, last), _end_key(report.name), _sync=True)
    except UNSHOWN as error:
        _not_shown(error)


async def ashow_end(report: TeardownReport, last: ClusterStatus | None) -> None:
    """Show how a cluster ended, in an event loop."""
    if not is_shown() or report.outcome != "ended":
        return
    try:
        await acreate_markdown_artifact(summary_of(report, last), _end_key(report.name))
    except UNSHOWN as error:
        _not_shown(error)


def summary_of(report: TeardownReport, last: ClusterStatus | None) -> str:
    """Write the summary of a cluster's life: how it ended, and how it was just before."""
    lines = [f"# Cluster {report.name}", "", report.message]
    if last is not None:
        sets = ", ".join(f"{name} {n}" for name, n in last.sets.items()) or "none"
        again = sum(engine.incarnation for engine in last.engines)
        rows = [
            ("incarnation", last.incarnation),
            ("engines wanted, by set", sets),
            ("engines up before the end", last.up),
            ("engines started anew", again),
            ("tasks done", last.tasks.get("settled", 0)),
            ("tasks that were queued or running", last.tasks.get("queued", 0) + last.tasks.get("running", 0)),
        ]
        lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def _engines(status: ClusterStatus) -> _Table:
    rows = [
        {
            "engine": engine.id,
            "set": engine.set,
            "state": engine.state,
            "tasks": engine.tasks,
            "started anew": engine.incarnation,
            "pid": engine.pid,
            "seconds in this state": round(engine.seconds),
        }
        for engine in status.engines
    ]
    return _Table(_key(status.name), rows, describe(status))


def _reaped(results: Sequence[ReapResult]) -> _Table:
    rows = [
        {
            "cluster": result.name,
            "incarnation": result.incarnation,
            "outcome": result.outcome,
            "why": result.why,
            "left over": ", ".join(result.leftovers),
        }
        for result in results
    ]
    return _Table("ipcluster-reaped", rows, "what was reaped")


def _show_table(table: _Table) -> None:
    if is_shown():
        try:
            _create_table(table.rows, table.key, table.text, _sync=True)
        except UNSHOWN as error:
            _not_shown(error)


async def _ashow_table(table: _Table) -> None:
    if is_shown():
        try:
            await acreate_table_artifact(table.rows, table.key, table.text)
        except UNSHOWN as error:
            _not_shown(error)


def _key(name: str) -> str:
    return f"ipcluster-{name}"


def _end_key(name: str) -> str:
    # One of its own: Prefect shows all artifacts of a key as versions of one thing, and this is no table.
    return f"{_key(name)}-end"


def _not_shown(error: Exception) -> None:
    run_logger().warning("an artifact could not be made: %r", error)
