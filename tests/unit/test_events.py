"""What has happened in a cluster's life."""

from __future__ import annotations

import pytest

from ipcluster_core import ClusterEvent
from ipcluster_core.events import KEPT, LONGEST_TEXT, EventKind, EventLog, kind_of_death
from ipcluster_core.roster import EngineState


def test_an_event_has_its_time_in_utc_to_the_millisecond() -> None:
    """And all that a `ClusterEvent` has."""
    log = EventLog()
    log.add(1_000_000_000.0425, EventKind.UP, "incarnation 1", 3)
    log.add(0.0, EventKind.RUNNING, "2 engines are up")

    assert [ClusterEvent(**event) for event in log.tail(10)] == [
        ClusterEvent("2001-09-09T01:46:40.042Z", "engine up", 3, "incarnation 1"),
        ClusterEvent("1970-01-01T00:00:00.000Z", "running", None, "2 engines are up"),
    ]


def test_the_newest_events_are_kept() -> None:
    """A long life does not fill the memory, nor does a long text."""
    log = EventLog()
    for number in range(KEPT + 10):
        log.add(float(number), EventKind.SCALED, f"{number}" + LONGEST_TEXT * "x")

    assert [event["text"][:4] for event in log.tail(2)] == [str(KEPT + 8), str(KEPT + 9)]
    assert len(log.tail(10 * KEPT)) == KEPT
    assert len(log.tail(1)[0]["text"]) == LONGEST_TEXT
    assert log.tail(0) == log.tail(-1) == []


@pytest.mark.parametrize(
    ("state", "recycled", "kind"),
    [
        (EngineState.UP, False, EventKind.DIED),
        (EngineState.STARTING, False, EventKind.DIED),
        (EngineState.UP, True, EventKind.RECYCLED),
        (EngineState.RESTARTING, True, EventKind.RECYCLED),
        (EngineState.RESTARTING, False, None),
        (EngineState.RETIRING, True, EventKind.STOPPED),
        (EngineState.STOPPING, False, EventKind.STOPPED),
    ],
)
def test_the_end_of_a_process_is_told_by_what_it_means(
    state: EngineState, recycled: bool, kind: EventKind | None
) -> None:
    """An engine that was to go has not died; a restart on request was told when it was asked for."""
    assert kind_of_death(state, recycled=recycled) is kind
