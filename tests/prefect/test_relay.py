"""Log records on their way from an engine to the flow's process, and states that no engine could tell."""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import CancelledError, Future
from uuid import uuid4

import pytest
from prefect import task
from prefect.events.schemas.events import Event
from prefect.utilities.annotations import quote

from ipcluster_core import errors
from prefect_ipcluster import _outcomes, _relay, _upstream
from prefect_ipcluster.futures import IPClusterFuture


def record(message: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    """Return a log record of a task run."""
    made = logging.LogRecord("prefect.task_runs", level, __file__, 1, message, (), None)
    vars(made).update(more)
    return made


def test_a_log_record_arrives_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """With what Prefect has added to it, and the text of its exception."""
    caplog.set_level(logging.DEBUG, "prefect.task_runs")
    run = uuid4()
    made = record("text", logging.WARNING, task_run_id=run, task_run_name="it-1", flow_run_id="f")
    try:
        made.lineno = 1 // 0
    except ZeroDivisionError:
        made.exc_info = sys.exc_info()
    _relay.handle_log(json.dumps(_relay._plain(made)))

    (there,) = caplog.records
    assert (there.name, there.levelname, there.getMessage(), there.created) == (
        "prefect.task_runs",
        "WARNING",
        "text",
        made.created,
    )
    assert vars(there)["task_run_id"] == str(run)
    assert vars(there)["task_run_name"] == "it-1"
    assert str(there.exc_text).endswith("ZeroDivisionError: integer division or modulo by zero")


def test_a_record_below_the_level_here_is_not_handled(caplog: pytest.LogCaptureFixture) -> None:
    """Levels are the flow's."""
    caplog.set_level(logging.INFO, "prefect.task_runs")
    _relay.handle_log(json.dumps(_relay._plain(record("text", logging.DEBUG))))

    assert caplog.records == []


def test_a_message_too_long_is_cut() -> None:
    """Prefect's API would not take it either; a note has a limit too."""
    text = _relay._plain(record("x" * 2_000_000))["msg"]

    assert len(text) < 1_001_000
    assert text.endswith("x... [truncated]")


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (CancelledError(), "Cancelled", "The task run was cancelled"),
        (errors.TaskTimeout("ran too long"), "TimedOut", "ran too long"),
        (errors.EngineLost("engine 1 died"), "Crashed", "EngineLost: engine 1 died"),
        (KeyboardInterrupt(), "Crashed", "aborted by an interrupt"),
    ],
)
def test_what_ends_a_run_says_so_in_its_state(error: BaseException, name: str, text: str) -> None:
    """Whoever asks for the result gets the error itself."""
    state = _outcomes.state_for(error)

    assert state.name == name
    assert text in str(state.message)


def test_a_run_of_which_nothing_was_told_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine may have died before it could say anything; runs inside a run end with it."""

    @task(tags=["b", "a"])
    def silent() -> None: ...

    told: list[Event] = []

    def emit(follows: Event | None = None, **event: object) -> Event:
        told.append(Event.model_validate(event))
        return told[-1]

    monkeypatch.setattr("prefect.utilities.engine.emit_event", emit)
    run, inner = uuid4(), uuid4()
    _outcomes.report(silent, inner, _outcomes.state_for(errors.EngineLost("first")), [])
    earlier = told.pop()
    earlier.payload["validated_state"]["type"] = "RUNNING"
    _outcomes.report(silent, run, _outcomes.state_for(errors.EngineLost("died")), [earlier])

    assert [_outcomes.run_of(event) for event in told] == [str(run), str(inner)]
    assert [event.event for event in told] == ["prefect.task-run.Crashed"] * 2
    assert [_outcomes.is_crashed(event) for event in told] == [True, True]
    assert [event.payload["task_run"]["tags"] for event in told] == [["a", "b"], ["a", "b"]]
    assert told[1].payload["initial_state"]["type"] == "RUNNING"


def test_futures_are_found_wherever_they_are_and_waited_for_without_a_thread() -> None:
    """The last one that is done has the action done."""
    plain: list[Future[object]] = [Future() for _ in range(4)]
    futures = [IPClusterFuture[object](uuid4(), one) for one in plain]
    plain[0].set_result(None)
    found = _upstream.pending(({"x": [futures[0], (futures[1],)]}, [futures[2]], quote([futures[3]])))
    done: list[bool] = []
    _upstream.when_done(found, lambda: done.append(True))
    plain[1].set_result(None)
    before = list(done)
    plain[2].set_result(None)

    assert found == futures[1:3]
    assert (before, done) == ([], [True])
