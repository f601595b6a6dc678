"""The cure of records that cannot be read, where no process is left; `tests/integration/test_cure.py` has processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ipcluster_core.cure import cure_record, is_newer
from ipcluster_core.ending import TeardownReport
from ipcluster_core.errors import ClusterInUse
from ipcluster_core.incarnation import Reference, make_folder, read_record
from ipcluster_core.record import ClusterState
from ipcluster_core.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a name whose record is half-made; another name is well."""
    store = open_store(f"file:{tmp_path}/store")
    store.create("record", "half", {"schema": 1, "incarnation": 3, "uid": "c0ffee"})
    for key in ("half.1", "half.3", "half-b.1", "whole.1"):
        store.create("secret", key, {"key": "k"})
    return store


def cure(store: Store, who: Reference, **settings: Any) -> TeardownReport:
    """Cure at once."""
    return asyncio.run(cure_record(store, who, **{"claim": None, "force": False, "timeout": 1, **settings}))


def test_a_cure_leaves_a_record_that_counts_on_and_removes_secrets_and_folders(store: Store) -> None:
    """Those of names that begin alike stay."""
    for tag in ("half/2/f0", "half/3/c0ffee", "half-b/1/f1"):
        make_folder(store, tag, store.run_folder(tag.rpartition("/")[2]))
    report = cure(store, Reference("half"), reason="reaped")
    record = read_record(store, "half")

    assert (report.outcome, report.leftovers, report.cured) == ("ended", (), True)
    assert (record.state, record.incarnation, record.uid) == (ClusterState.ENDED, 3, "c0ffee")
    assert record.ended is not None
    assert record.ended.reason.startswith("reaped; its record could not be read; none of its processes was found, ")
    assert list(store.keys("secret")) == ["half-b.1", "whole.1"]
    assert [path.name for path in Path(store.run_folder("x")).parent.iterdir()] == ["f1"]


def test_a_cure_of_one_incarnation_leaves_the_record_of_another_alone(store: Store) -> None:
    """Whatever can be told of it says that it is not the one."""
    before = store.read("record", "half")
    report = cure(store, Reference("half", 1, "f0"))

    assert report.outcome == "already gone"
    assert store.read("record", "half") == before
    assert "half.3" in store.keys("secret")


def test_a_cure_that_comes_second_leaves_the_first_one_s_record(store: Store) -> None:
    """It finds one that can be read."""
    cure(store, Reference("half"))
    first = store.read("record", "half")
    cure(store, Reference("half"))

    assert store.read("record", "half") == first


def test_a_record_of_which_nothing_can_be_told_is_replaced_by_a_first_one(store: Store, tmp_path: Path) -> None:
    """With a random id of its own."""
    (path,) = (path for path in (tmp_path / "store" / "records" / "half").rglob("*") if path.is_file())
    path.write_text("{")
    cure(store, Reference("half"))

    assert read_record(store, "half").incarnation == 1


@pytest.mark.parametrize("taken", [{"mine": 1, "theirs": 2}, {"theirs": 2}])
def test_claims_of_others_forbid_a_cure_without_force(store: Store, taken: dict[str, int]) -> None:
    """Nothing is touched."""
    store.discard("record", "half")
    store.create("record", "half", {"schema": 1, "claims": taken})

    with pytest.raises(ClusterInUse, match="is in use by: theirs; use force"):
        cure(store, Reference("half"), claim="mine")
    assert "half.1" in store.keys("secret")
    assert cure(store, Reference("half"), claim="mine", force=True).outcome == "ended"


@pytest.mark.parametrize(
    ("value", "newer"), [({"schema": 2}, True), ({"schema": 1}, False), ({"schema": "2"}, False), ({}, False)]
)
def test_a_newer_version_s_record_is_told_from_a_damaged_one(store: Store, value: dict[str, Any], newer: bool) -> None:
    """By its schema."""
    store.create("record", "a", value)

    assert is_newer(store, "a") is newer
    assert is_newer(store, "never") is False
