"""How a cluster is, as a value."""

from __future__ import annotations

import pytest

from ipcluster_core.status import EngineStatus


@pytest.mark.parametrize(
    ("state", "silent", "note"),
    [
        ("up", None, ""),
        ("up", 0.5, ""),
        ("up", 40.4, "busy, no answer for 40 s"),
        ("starting", 40.4, ""),
    ],
)
def test_an_engine_that_does_not_answer_is_called_busy(state: str, silent: float | None, note: str) -> None:
    """When it is up, and not at once."""
    assert EngineStatus(0, "default", state, 0, 1, 1, 60.0, silent).note == note
