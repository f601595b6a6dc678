"""What counts as a stray, and what is found by its mark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipcluster_core.incarnation import MARK, make_folder
from ipcluster_core.record import ClusterState, Ended, Record, utc_now
from ipcluster_core.store import open_store
from ipcluster_core.strays import PARTING_SECONDS, Folder, folders_of, incarnation_of, is_tag, judge, pids_text, uid_of

#: Seconds since the epoch at which the record below was made, and ended.
CREATED, ENDED = 1_767_225_600.0, 1_767_229_200.0
RECORD = Record("nightly", 3, "c0ffee", ClusterState.RUNNING, created="2026-01-01T00:00:00Z")
OVER = RECORD.with_state(ClusterState.ENDED, ended=Ended("torn down", "2026-01-01T01:00:00Z", "me"))


def test_processes_without_a_record_are_strays() -> None:
    """At once: an incarnation is in its record before it has processes."""
    assert judge("nightly/3/c0ffee", None, CREATED) == "processes without a record"


@pytest.mark.parametrize("state", [ClusterState.CREATING, ClusterState.RUNNING, ClusterState.ENDING])
def test_processes_of_a_living_incarnation_are_none(state: ClusterState) -> None:
    """However long it lives."""
    assert judge(RECORD.tag, RECORD.with_state(state), CREATED + 1e9) is None


@pytest.mark.parametrize("tag", ["nightly/2/c0ffee", "nightly/3/decade", "nightly/4/c0ffee"])
def test_processes_of_another_incarnation_get_time_to_part(tag: str) -> None:
    """From the moment at which the new one was made."""
    assert judge(tag, RECORD, CREATED + PARTING_SECONDS) is None
    found = judge(tag, RECORD, CREATED + PARTING_SECONDS + 1)
    assert found == f"processes of #{tag.split('/')[1]}, which is over"


def test_processes_of_an_ended_incarnation_get_time_to_part() -> None:
    """From the moment at which it ended."""
    assert judge(OVER.tag, OVER, ENDED + PARTING_SECONDS) is None
    assert judge(OVER.tag, OVER, ENDED + PARTING_SECONDS + 1) == "processes that outlived their cluster"


def test_a_time_that_is_none_protects_nobody() -> None:
    """Else what is damaged could never be cured."""
    assert judge("nightly/2/c0ffee", RECORD._replace(created="yesterday"), CREATED) is not None
    assert judge(OVER.tag, OVER._replace(ended=None), CREATED) is not None


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a/1/0f", True),
        ("a-b/12/c0ffee", True),
        ("a/1", False),
        ("A/1/0f", False),
        ("a/x/0f", False),
        ("a/1/../..", False),
        ("a/1/", False),
        ("../1/0f", False),
        ("a/1/0f\n", False),
    ],
)
def test_only_what_may_safely_name_a_folder_is_a_tag(text: str, good: bool) -> None:
    """Environments and files are anybody's."""
    assert is_tag(text) is good


def test_a_tag_tells_number_and_random_id() -> None:
    """The name is the first part."""
    assert (incarnation_of(RECORD.tag), uid_of(RECORD.tag)) == (3, "c0ffee")


def test_folders_are_found_by_their_mark(tmp_path: Path) -> None:
    """Those of another store, and what is no mark, are not."""
    store = open_store(f"file:{tmp_path}/store")
    assert folders_of(store, "nightly") == {}
    folder = store.run_folder("c0ffee")
    make_folder(store, RECORD.tag, folder)
    for uid, mark in {
        "f0": "nightly/1/f0\nfile:/other\nhere\n",
        "f1": "no tag\n",
        "f2": f"nightly/1/../..\n{store.url}\nhere\n",
        "f4": f"nightly2/1/f4\n{store.url}\nhere\n",
    }.items():
        other = Path(store.run_folder(uid))
        other.mkdir()
        (other / MARK).write_text(mark)
    Path(store.run_folder("f3")).mkdir()

    assert folders_of(store, "nightly") == {RECORD.tag: Folder(folder, os.uname().nodename)}
    assert (Path(folder) / MARK).stat().st_mode & 0o777 == 0o600


def test_a_message_names_ten_pids_at_most() -> None:
    """Sorted, and says how many more there are."""
    assert pids_text([3, 1, 2]) == "pids 1, 2, 3"
    assert pids_text(list(range(1, 14))) == "pids 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more"


def test_times_of_records_are_read_as_they_are_written() -> None:
    """In UTC, to the second."""
    from ipcluster_core.record import seconds_since

    assert seconds_since(RECORD.created, CREATED + 90) == 90
    assert seconds_since("soon", CREATED) is None
    assert seconds_since(utc_now(), CREATED) is not None
