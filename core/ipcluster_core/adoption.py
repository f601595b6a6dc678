"""What a create does about the record that it finds under its name: pure, so that each race is a line of a table."""

from __future__ import annotations

import enum
from typing import Literal

from .record import Liveness

__all__ = ["Creation", "IfExists", "decide_creation"]

IfExists = Literal["attach", "fail", "replace"]


class Creation(enum.Enum):
    """What a create has to do about the record it found."""

    START = "start"  # nothing in the way: make the next incarnation
    ATTACH = "attach"  # it lives: use it
    WAIT = "wait"  # somebody is making or ending it: look again soon
    CLEAN = "clean"  # its processes are gone: clean up, then look again
    REPLACE = "replace"  # it lives, end it, then look again
    REFUSE = "refuse"  # it lives and must not be used


def decide_creation(
    state: str | None, head: Liveness | None, creator: Liveness | None, if_exists: IfExists
) -> Creation:
    """Decide what a create does.

    Parameters
    ----------
    state
        State in the record; None when there is no record.
    head
        Whether the head job's nanny lives; None when it has not put itself into the record.
    creator
        Whether the process that began to create it lives; None when that is not recorded.
    if_exists
        What the user wants when there is a living cluster.

    Returns
    -------
    Creation
        The next step.
    """
    if state in (None, "ended"):
        return Creation.START
    if head is None:
        # Intent only. A nanny that comes up later finds another incarnation in the record and gives up.
        return Creation.CLEAN if creator in (None, Liveness.GONE) else Creation.WAIT
    if head is Liveness.GONE:
        return Creation.CLEAN
    if state == "ending":
        return Creation.WAIT
    if if_exists == "fail":
        return Creation.REFUSE
    if if_exists == "replace":
        return Creation.REPLACE
    return Creation.WAIT if state == "creating" else Creation.ATTACH
