"""What a task run tells Prefect, on its way there: from the engine to the flow's process, which passes it on.

::

    engine                                     flow's process
      logger of a run  --log record-->           the same logger here: console, API, the user's handlers
      state of a run, emit_event --event-->      Prefect's events worker
      first task of a flow run --versions-->     compared, once

So engines need no way to Prefect's API, its server has one client to serve instead of many, and the flow's console
shows what it shows with Prefect's own runners. All of it travels as notes of the task (`ipcluster_core.send_note`): in
order, before the task's result, and it is there too if the engine dies in the middle.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import prefect
from prefect.context import TaskRunContext
from prefect.events.schemas.events import Event, RelatedResource
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient
from prefect.logging.handlers import APILogHandler, PrefectConsoleHandler

from ipcluster_core import send_note

__all__ = ["Note", "handle_log", "install", "telling", "versions"]

#: Task run (as its driver knows it), kind, content as JSON.
Note = tuple[str, str, str]

#: Characters of a log message that travel; Prefect's API takes about as many.
_LONGEST_MESSAGE = 1_000_000

#: Attributes of a log record that every record has, and those that do not travel.
_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})

#: The task run for which this engine is at work.
_run = ""


def versions() -> dict[str, str]:
    """Return the versions that should be the same on both sides."""
    return {
        "python": sys.version.split()[0],
        "prefect": prefect.__version__,
        "cloudpickle": cloudpickle.__version__,
    }


# the engine's side


@contextmanager
def telling(run: str) -> Generator[None]:
    """Say for which task run things are told from now on."""
    global _run  # noqa: PLW0603 - an engine runs one task at a time
    _run = run
    try:
        yield
    finally:
        _run = ""


def tell(kind: str, content: str) -> None:
    """Send a note; outside a task there is nobody to send it to."""
    send_note((_run, kind, content))


def install() -> None:
    """Have this process tell its client what it would tell Prefect's API. Idempotent."""
    for logger in [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]:
        for handler in [handler for handler in logger.handlers if isinstance(handler, APILogHandler)]:
            logger.removeHandler(handler)
            logger.addHandler(_Teller())
        for console in [handler for handler in logger.handlers if isinstance(handler, PrefectConsoleHandler)]:
            logger.removeHandler(console)
            logger.addHandler(_without_colours(console))
    # Prefect's seam for this, `set_client_override`, has a thread, a loop and a client at work for each event, and
    # reads from the API what the flow's process knows. Events must be told before the result is.
    EventsWorker.instance = classmethod(lambda _cls, _client_type=None: _events)  # type: ignore[method-assign,assignment]


def _without_colours(handler: logging.Handler) -> logging.Handler:
    """Return a handler for the engine's log, where colours would cost more than the rest of a short task."""
    plain = logging.StreamHandler()
    plain.setLevel(handler.level)
    plain.setFormatter(handler.formatter)
    return plain


class _Teller(logging.Handler):
    """Stands where Prefect has the handler that sends log records to the API."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "send_to_api", True):
            return
        try:
            tell("log", json.dumps(_plain(record)))
        except Exception:  # noqa: BLE001 - as every handler does: a record that cannot be sent must not fail the task
            self.handleError(record)


def _plain(record: logging.LogRecord) -> dict[str, Any]:
    """Return what of a record can travel: its text is made here."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    message = record.getMessage()
    found: dict[str, Any] = {
        "name": record.name,
        "levelno": record.levelno,
        "levelname": record.levelname,
        "msg": message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}... [truncated]",
        "created": record.created,
        "msecs": record.msecs,
        "pathname": record.pathname,
        "filename": record.filename,
        "module": record.module,
        "funcName": record.funcName,
        "lineno": record.lineno,
        "exc_text": record.exc_text,
        "process": record.process,
        "processName": record.processName,
        "threadName": record.threadName,
    }
    for name, value in vars(record).items():
        if name not in _STANDARD:
            found[name] = value if isinstance(value, str | int | float | bool | None) else str(value)
    return found


class _Events:
    """Stands where Prefect has its worker that sends events to the API."""

    client_type = ProcessPoolForwardingEventsClient

    def send(self, event: Event) -> None:
        """Tell an event, and what of its surroundings only the engine knows."""
        context = TaskRunContext.get()
        if context is not None and not event.event.startswith("prefect.task-run."):
            resource = f"prefect.task-run.{context.task_run.id}"
            if resource not in {known.id for known in event.involved_resources}:
                event.related.append(_related(resource, "task-run", context.task_run.name))
        tell("event", event.model_dump_json())

    def wait_until_empty(self) -> None:
        """Return: nothing waits here."""

    def drain(self, at_exit: bool = False) -> bool:  # noqa: FBT001, FBT002 - as in the worker
        """Return: nothing waits here."""
        return at_exit


_events = _Events()


def _related(resource: str, role: str, name: str) -> RelatedResource:
    return RelatedResource.model_validate(
        {"prefect.resource.id": resource, "prefect.resource.role": role, "prefect.resource.name": name}
    )


# the driver's side


def handle_log(content: str) -> None:
    """Have a log record of an engine handled here, as if it had been made here."""
    record = logging.makeLogRecord(json.loads(content))
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
