"""Every error survives the way through another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from ipcluster_core import errors
from ipcluster_core.errors import ClusterError, ClusterTimeout, EngineLost, RemoteTraceback, TaskError

TREE = [getattr(errors, name) for name in errors.__all__ if name != "RemoteTraceback"]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_in_one_tree(kind: type[Exception]) -> None:
    """One except clause catches all that the project raises on purpose."""
    assert issubclass(kind, ClusterError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", TREE)
def test_every_error_survives_pickling(kind: type[Exception]) -> None:
    """With its text and its notes."""
    error = kind("cluster 'nightly' #3: it broke")
    error.add_note("while stepping")
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert (str(again), again.args, again.__notes__) == (str(error), error.args, ["while stepping"])


@pytest.mark.parametrize("send", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_lost_engine_is_named_at_the_other_end(send: Callable[[EngineLost], EngineLost]) -> None:
    """Engine, cause and last output are attributes as well as text."""
    again = send(EngineLost("engine 3 died", engine=3, cause="signal SIGKILL", output="out of memory"))

    assert str(again) == "engine 3 died"
    assert (again.engine, again.cause, again.output) == (3, "signal SIGKILL", "out of memory")


def test_lost_engine_may_be_unknown() -> None:
    """A task may be lost without an engine ever having had it."""
    lost = pickle.loads(pickle.dumps(EngineLost("no such engine")))

    assert (lost.engine, lost.cause, lost.output) == (None, "", "")


def test_task_error_names_the_type_that_could_not_be_rebuilt() -> None:
    """The text is the message alone."""
    error = pickle.loads(pickle.dumps(TaskError("birds.LizardError: it bit", "birds.LizardError")))

    assert str(error) == "birds.LizardError: it bit"
    assert error.type_name == "birds.LizardError"


def test_remote_traceback_shows_the_text_below_the_cause() -> None:
    """Python prints the text of a cause behind its type: a line of its own keeps it readable."""
    again = pickle.loads(pickle.dumps(RemoteTraceback("Traceback:\n  File ...")))

    assert str(again) == "\nTraceback:\n  File ..."
    assert again.text == "Traceback:\n  File ..."


def test_timeout_is_a_timeout_for_python_too() -> None:
    """Whoever waits with the standard library's means catches the standard error."""
    with pytest.raises(TimeoutError, match="not ready within 3 s"):
        raise ClusterTimeout("not ready within 3 s")
