"""The store's entry for one name, as it is written and as it is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipcluster_core.errors import ClusterEnded, StoreError
from ipcluster_core.process import Identity
from ipcluster_core.record import ClusterState, Ended, Job, Record, check_name, title_of, utc_now

NANNY = {"host": "h", "boot": "b", "namespace": "n", "pid": 7, "start": 8}
RECORD = Record(
    name="nightly",
    incarnation=3,
    uid="c0ffee",
    state=ClusterState.RUNNING,
    created="2026-03-01T12:00:00Z",
    spec={"n": 2, "env": {"A": "1"}},
    sets={"default": 2},
    labels={"team": "birds"},
    creator=NANNY,
    folder="/somewhere/c0ffee",
    jobs=(Job("local", {"pid": 7}, NANNY), Job("local", {})),
    claims={"run-1": 4},
    claims_taken=4,
)
#: Anything that JSON can hold.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("a7/.é\n", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a7/.é\n", max_size=5), inner, max_size=3),
    max_leaves=5,
)
ENDED = Ended("idle limit of 60 s reached", "2026-03-01T13:00:00Z", "idle_timeout")


@pytest.mark.parametrize("name", ["a", "7", "nightly", "a-b--c", "0" * 63])
def test_dns_labels_may_name_a_cluster(name: str) -> None:
    """1 to 63 lower-case letters, digits and dashes."""
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "a b", "a\n", "\na", "ä", "٣", "0" * 64, "../a", "-" * 3]
)
def test_anything_else_may_not(name: str) -> None:
    """The message says what may."""
    with pytest.raises(ValueError, match=r"cannot name a cluster: use 1 to 63 lower-case letters"):
        check_name(name)


@pytest.mark.parametrize("record", [RECORD, RECORD.with_state(ClusterState.ENDED, ended=ENDED)])
def test_record_comes_out_of_the_store_as_it_went_in(record: Record) -> None:
    """Through JSON, with all that it holds."""
    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_record_of_a_newer_version_is_refused() -> None:
    """It says what to do."""
    with pytest.raises(StoreError, match=r"cluster 'nightly' has schema 2, this version reads 1: use the version"):
        Record.from_dict({**RECORD.to_dict(), "schema": 2})


@pytest.mark.parametrize("data", [{}, {"schema": None}, {"schema": "1"}])
def test_record_without_a_schema_is_refused(data: dict[str, Any]) -> None:
    """Whatever it is, it is not one of ours."""
    with pytest.raises(StoreError, match=r"cluster '\?' has schema"):
        Record.from_dict(data)


DAMAGES: list[tuple[str, Any, str]] = [
    ("state", "dancing", "'dancing' is not a valid ClusterState"),
    ("state", None, "None is not a valid ClusterState"),
    ("name", 5, "name is 5"),
    ("incarnation", "3", "incarnation is '3'"),
    ("claims", [], r"claims is \[\]"),
    ("claims_taken", None, "claims_taken is None"),
    ("sets", None, "sets is None"),
    ("creator", "me", "creator is 'me'"),
    ("folder", None, "folder is None"),
    ("jobs", None, "not iterable"),
    ("creator", {"pid": 7}, "'host'"),
    ("creator", {**NANNY, "pid": "7"}, "pid of its creator is '7'"),
    ("jobs", [{"launcher": "local", "reference": {}, "nanny": {**NANNY, "start": None}}], "start of its nanny is None"),
    ("jobs", ["local"], "string indices"),
    ("jobs", [{"launcher": "local"}], "'reference'"),
    ("jobs", [{"launcher": "local", "reference": "pid 7"}], "dictionary update"),
    ("ended", {"reason": "x"}, "missing 2 required"),
    ("ended", 3, "must be a mapping"),
    ("ended", {"reason": None, "at": "", "by": ""}, "it is running, Ended"),
    ("state", "broken", "it is broken"),
    ("name", "../a", "cannot name a cluster"),
    ("uid", "a/b", "uid is 'a/b'"),
    ("claims", {"run-1": "4"}, "claims is"),
    ("creator", {**NANNY, "pid": "7"}, "of its creator is"),
    ("creator", {"host": "h"}, "'boot'"),
    ("jobs", [{"launcher": "local", "reference": {}, "nanny": [7]}], "list indices"),
    ("surprise", 1, "unexpected keyword argument 'surprise'"),
]


@pytest.mark.parametrize(("key", "value", "text"), DAMAGES)
def test_damaged_record_is_named_as_such(key: str, value: object, text: str) -> None:
    """Whatever is wrong with it is one error, which says which cluster, what, and what to do."""
    with pytest.raises(StoreError, match=rf"record of cluster .* is damaged \(.*{text}.*\): tear it down"):
        Record.from_dict({**RECORD.to_dict(), key: value})


@pytest.mark.parametrize("key", ["name", "incarnation", "uid", "state", "jobs", "ended"])
def test_record_that_lacks_something_is_damaged(key: str) -> None:
    """A half-made record is not taken for a whole one."""
    data = RECORD.to_dict()
    del data[key]

    with pytest.raises(StoreError, match=rf"is damaged \(.*'{key}'.*\)"):
        Record.from_dict(data)


@settings(max_examples=300, derandomize=True, database=None)
@given(data=st.data())
def test_a_record_is_whole_or_damaged_whatever_the_store_holds(data: st.DataObject) -> None:
    """What is read can be used without looking again: by whoever asks how it is, who made it and how it ended."""
    plain = json.loads(
        json.dumps(data.draw(st.sampled_from([RECORD, RECORD.with_state(ClusterState.ENDED, ended=ENDED)])).to_dict())
    )
    damage(plain, data.draw)
    try:
        record = Record.from_dict(plain)
    except StoreError:
        return

    assert Record.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    assert record.title in record.end_message()
    assert sum(record.sets.values()) == int(sum(record.sets.values()))
    for who in [record.creator, *(job.nanny for job in record.jobs)]:
        assert who is None or Identity.from_dict(who).pid == who["pid"]


def damage(whole: dict[str, Any], draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Replace, leave out or add something, at any depth of plain data."""
    plain: Any = whole
    while isinstance(plain, dict | list) and plain:
        keys = sorted(plain) if isinstance(plain, dict) else list(range(len(plain)))
        key = draw(st.sampled_from(keys))
        match draw(st.sampled_from(["deeper", "replace", "remove", "add"])):
            case "replace":
                plain[key] = draw(JSON)
                return
            case "remove":
                del plain[key]
                return
            case "add" if isinstance(plain, dict):
                plain[draw(st.text("a7/.é\n", max_size=5))] = draw(JSON)
                return
            case _:
                plain = plain[key]


def test_tag_title_and_secret_name_one_incarnation() -> None:
    """Processes, messages and the secret of one life are never taken for those of another."""
    assert (RECORD.tag, RECORD.title, RECORD.secret) == ("nightly/3/c0ffee", "cluster 'nightly' #3", "nightly.3")
    assert title_of(RECORD.tag) == RECORD.title


def test_new_state_keeps_everything_else() -> None:
    """Also how it ended, once that is known."""
    ended = RECORD.with_state(ClusterState.ENDED, ended=ENDED)

    assert ended.to_dict() == {**RECORD.to_dict(), "state": "ended", "ended": ended.to_dict()["ended"]}
    assert ended.with_state(ClusterState.ENDED).ended == ENDED


@pytest.mark.parametrize("state", [ClusterState.CREATING, ClusterState.RUNNING])
def test_living_cluster_may_be_used(state: ClusterState) -> None:
    """Being created is living, too."""
    record = RECORD.with_state(state)

    assert record.require_living() is record


def test_ended_cluster_says_when_why_and_by_whom() -> None:
    """Whoever connects afterwards learns what happened."""
    record = RECORD.with_state(ClusterState.ENDED, ended=ENDED)
    text = "cluster 'nightly' #3 ended 2026-03-01T13:00:00Z: idle limit of 60 s reached (by idle_timeout)"

    with pytest.raises(ClusterEnded, match=f"^{re.escape(text)}$"):
        record.require_living()


def test_ended_cluster_shows_the_last_output_of_what_failed() -> None:
    """When there is any."""
    record = RECORD.with_state(ClusterState.ENDED, ended=Ended("its broker died", "now", "nanny", tail="Traceback ..."))

    assert record.end_message().endswith("its broker died (by nanny)\nlast output:\nTraceback ...")


def test_ending_cluster_may_not_be_used() -> None:
    """Its end is not recorded yet."""
    with pytest.raises(ClusterEnded, match="cluster 'nightly' #3 is ending"):
        RECORD.with_state(ClusterState.ENDING).require_living()


def test_times_are_utc_to_the_second() -> None:
    """ISO 8601 with a Z, as it stands in handles and records."""
    before = datetime.now(UTC).replace(microsecond=0)
    stamp = utc_now()

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp)
    assert before <= datetime.fromisoformat(stamp) <= datetime.now(UTC)
