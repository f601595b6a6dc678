"""What a create does about what it finds: each race is a line."""

from __future__ import annotations

import pytest

from ipcluster_core.adoption import Creation, IfExists, decide_creation
from ipcluster_core.record import Liveness

ALIVE, GONE, UNKNOWN = Liveness.ALIVE, Liveness.GONE, Liveness.UNKNOWN

FOUND: list[tuple[str | None, Liveness | None, Liveness | None, IfExists, Creation]] = [
    (None, None, None, "fail", Creation.START),
    ("ended", GONE, GONE, "fail", Creation.START),
    ("ended", ALIVE, ALIVE, "attach", Creation.START),
    ("creating", None, ALIVE, "attach", Creation.WAIT),
    ("creating", None, ALIVE, "fail", Creation.WAIT),
    ("creating", None, UNKNOWN, "attach", Creation.WAIT),
    ("creating", None, GONE, "attach", Creation.CLEAN),
    ("creating", None, None, "attach", Creation.CLEAN),
    ("creating", GONE, ALIVE, "attach", Creation.CLEAN),
    ("creating", ALIVE, GONE, "attach", Creation.WAIT),
    ("creating", ALIVE, GONE, "replace", Creation.REPLACE),
    ("creating", ALIVE, GONE, "fail", Creation.REFUSE),
    ("running", ALIVE, GONE, "attach", Creation.ATTACH),
    ("running", UNKNOWN, UNKNOWN, "attach", Creation.ATTACH),
    ("running", ALIVE, GONE, "fail", Creation.REFUSE),
    ("running", ALIVE, GONE, "replace", Creation.REPLACE),
    ("running", GONE, GONE, "fail", Creation.CLEAN),
    ("running", GONE, GONE, "replace", Creation.CLEAN),
    ("ending", ALIVE, GONE, "fail", Creation.WAIT),
    ("ending", ALIVE, GONE, "replace", Creation.WAIT),
    ("ending", GONE, GONE, "attach", Creation.CLEAN),
]


@pytest.mark.parametrize(("state", "head", "creator", "if_exists", "decision"), FOUND)
def test_create_decides_by_what_it_finds(
    state: str | None, head: Liveness | None, creator: Liveness | None, if_exists: IfExists, decision: Creation
) -> None:
    """The living is attached to, refused or replaced; what is dead is cleaned; what is under way is waited for."""
    assert decide_creation(state, head, creator, if_exists) is decision
