"""One incarnation's record, secret, folder and logs: found, changed and forgotten by whom they belong to."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ipcluster_core import ClusterHandle, errors, open_store
from ipcluster_core.incarnation import (
    find_record,
    forget,
    log_path,
    make_folder,
    older_log,
    read_record,
    require_here,
    resolve,
    secret_of,
    tail_of,
    update,
)
from ipcluster_core.process import identify
from ipcluster_core.record import ClusterState, Ended, Job, Record
from ipcluster_core.segments import folder_of
from ipcluster_core.store import Store
from ipcluster_core.testing import memory_store

RECORD = Record(name="nightly", incarnation=3, uid="c0ffee", state=ClusterState.RUNNING, created="2026-01-01T00:00:00Z")


@pytest.fixture
def store() -> Iterator[Store]:
    """A store in memory that holds the record."""
    with memory_store() as made:
        made.create("record", RECORD.name, RECORD.to_dict())
        yield made


def handle_of(record: Record, store: Store) -> ClusterHandle:
    """Return the handle of a record."""
    return ClusterHandle(
        name=record.name,
        incarnation=record.incarnation,
        uid=record.uid,
        store=store.url,
        backend=record.backend,
        launcher=record.launcher,
        created=record.created,
    )


def put(store: Store, record: Record) -> None:
    """Replace the record of a name."""
    document = store.read("record", record.name)
    assert document is not None
    store.swap("record", record.name, record.to_dict(), document.version)


# finding


@pytest.mark.parametrize(
    "form",
    [
        lambda handle: handle,
        lambda handle: handle.model_dump(),
        lambda handle: MappingProxyType(handle.model_dump()),
        lambda handle: handle.model_dump_json(),
        lambda handle: f"\n {json.dumps(handle.model_dump(), indent=2)}\n",
    ],
    ids=["handle", "dict", "mapping", "JSON", "indented JSON"],
)
def test_a_cluster_is_found_by_each_form_of_its_handle(store: Store, form: Callable[[ClusterHandle], str]) -> None:
    """In the store that the handle names."""
    found, record = resolve(form(handle_of(RECORD, store)), None)

    assert found.url == store.url
    assert record == RECORD


def test_a_cluster_is_found_by_its_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store given, by object or by URL, else in the default one."""
    assert resolve("nightly", store) == (store, RECORD)
    assert resolve("nightly", store.url) == (store, RECORD)
    monkeypatch.setenv("IPCLUSTER_STORE", store.url)

    assert resolve("nightly", None) == (store, RECORD)


def test_a_store_that_is_given_goes_before_the_handle_s(store: Store) -> None:
    """It may be reached by another URL from here."""
    handle = handle_of(RECORD, store).model_copy(update={"store": "file:/nowhere"})

    assert resolve(handle, store) == (store, RECORD)
    assert resolve(handle, store.url) == (store, RECORD)


def test_a_name_that_is_not_there_is_an_error_that_names_it_and_the_store(store: Store) -> None:
    """By name and by handle."""
    gone = handle_of(RECORD._replace(name="gone"), store)

    for cluster in ("gone", gone):
        with pytest.raises(errors.ClusterNotFound, match=f"there is no cluster 'gone' in {store.url}"):
            resolve(cluster, store)


def test_an_old_handle_does_not_find_a_newer_incarnation(store: Store) -> None:
    """It is told which there is; the number alone is not enough."""
    handle = handle_of(RECORD, store)
    put(store, RECORD._replace(incarnation=4, uid="beef"))
    with pytest.raises(errors.StaleHandle, match=r"'nightly' #3, which is over; .* belongs to #4 \(running\)"):
        resolve(handle, None)
    put(store, RECORD._replace(uid="beef"))

    with pytest.raises(errors.StaleHandle, match="#3"):
        resolve(handle, None)


@pytest.mark.parametrize("schema", [2, 0, None, "1"])
def test_a_handle_of_another_schema_is_refused(store: Store, schema: object) -> None:
    """As a dict and as JSON; the error says which can be read."""
    newer = {**handle_of(RECORD, store).model_dump(), "schema": schema}

    for form in (newer, json.dumps(newer)):
        with pytest.raises(errors.ClusterError, match=f"schema {schema!r} cannot be read by this version: it reads 1"):
            resolve(form, store)


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        ('{"schema": 1, "name": "nigh', "not the JSON of a handle: Unterminated string"),
        ({"schema": 1, "name": "nightly"}, "not a handle: it has no incarnation, uid, store"),
        ("a/b", "'a/b' cannot be a key"),
        ("", "'' cannot be a key"),
    ],
)
def test_what_is_no_handle_and_no_name_is_refused(store: Store, damaged: str | Mapping[str, Any], text: str) -> None:
    """The error says what is wrong with it."""
    with pytest.raises(ValueError, match=text):
        resolve(damaged, store)


@pytest.mark.parametrize("other", [None, 3, b"nightly", ["nightly"]], ids=repr)
def test_a_cluster_is_not_found_by_another_type(store: Store, other: object) -> None:
    """The error names the type, and the forms that there are."""
    with pytest.raises(TypeError, match=f"by name, handle, dict or JSON, not by {type(other).__name__}"):
        resolve(other, store)  # type: ignore[arg-type]


def test_a_damaged_record_is_an_error_that_says_what_to_do(store: Store) -> None:
    """It is not taken for none."""
    document = store.read("record", "nightly")
    assert document is not None
    store.swap("record", "nightly", {**document.value, "state": "flying"}, document.version)

    with pytest.raises(errors.StoreError, match=r"record of cluster 'nightly' is damaged .*flying.*tear it down"):
        read_record(store, "nightly")


# changing


def ending(record: Record) -> Record:
    """Return the record of a cluster that is ending."""
    return record.with_state(ClusterState.ENDING)


def test_update_changes_the_record_of_its_incarnation(store: Store) -> None:
    """And returns the new one."""
    changed = update(store, RECORD.tag, ending)

    assert changed == RECORD._replace(state=ClusterState.ENDING)
    assert read_record(store, "nightly") == changed


@pytest.mark.parametrize(
    "other",
    [
        RECORD._replace(incarnation=4),
        RECORD._replace(uid="beef"),
        RECORD.with_state(ClusterState.ENDED, ended=Ended("over", "2026-01-02T00:00:00Z", "user")),
    ],
    ids=["next incarnation", "other uid", "ended"],
)
def test_update_leaves_what_is_not_its_living_incarnation(store: Store, other: Record) -> None:
    """The change is not even asked for."""
    put(store, other)
    asked: list[Record] = []

    def change(record: Record) -> Record:
        asked.append(record)
        return ending(record)

    assert update(store, RECORD.tag, change) is None
    assert asked == []
    assert read_record(store, "nightly") == other


def test_update_of_a_name_that_is_gone_changes_nothing(store: Store) -> None:
    """It does not bring it back."""
    assert update(store, "gone/1/c0ffee", ending) is None
    assert find_record(store, "gone") is None


def test_a_change_may_leave_the_record(store: Store) -> None:
    """Then nothing is written."""
    before = store.read("record", "nightly")

    assert update(store, RECORD.tag, lambda _: None) is None
    assert store.read("record", "nightly") == before


def test_update_after_a_conflict_works_on_what_the_other_has_written(store: Store) -> None:
    """No change is lost, however often somebody else was first."""
    tries = 0

    def change(record: Record) -> Record:
        nonlocal tries
        tries += 1
        if tries <= 3:
            put(store, record._replace(claims={**record.claims, f"other-{tries}": tries}))
        return record._replace(claims={**record.claims, "mine": 9})

    changed = update(store, RECORD.tag, change)

    assert tries == 4
    assert changed is not None
    assert changed.claims == {"other-1": 1, "other-2": 2, "other-3": 3, "mine": 9}
    assert read_record(store, "nightly") == changed


def test_update_gives_up_when_the_other_has_taken_the_name(store: Store) -> None:
    """Between its look and its change."""
    newer = RECORD._replace(incarnation=4, uid="beef")

    def change(record: Record) -> Record:
        put(store, newer)
        return ending(record)

    assert update(store, RECORD.tag, change) is None
    assert read_record(store, "nightly") == newer


# where it runs


def test_a_cluster_of_this_machine_is_reached() -> None:
    """Also one whose nanny has gone, and one that has none yet."""
    nanny = identify()._replace(pid=1, start=1).to_dict()

    require_here(RECORD)
    require_here(RECORD._replace(jobs=(Job("local", {}),)))
    require_here(RECORD._replace(jobs=(Job("local", {}, nanny),)))


def test_a_cluster_of_another_machine_is_refused_with_its_host() -> None:
    """Its sockets are there."""
    nanny = identify()._replace(boot="other", host="far").to_dict()

    with pytest.raises(errors.ClusterBroken, match="'nightly' #3 runs on host 'far' and cannot be reached from"):
        require_here(RECORD._replace(jobs=(Job("local", {}, nanny),)))


# secret and folder


def test_the_secret_is_that_of_the_incarnation(store: Store) -> None:
    """Not of another one of that name."""
    store.create("secret", "nightly.2", {"key": "old"})
    with pytest.raises(errors.NotAuthorized, match=f"'nightly' #3 is not in {store.url}: the cluster has ended"):
        secret_of(store, RECORD.tag)
    store.create("secret", "nightly.3", {"key": "new"})

    assert secret_of(store, RECORD.tag) == "new"


def test_a_secret_that_cannot_be_read_is_not_shown() -> None:
    """The error names the cluster; what is in the file stays there."""
    store = open_store()
    store.create("secret", "nightly.3", {"key": "abc"})
    (path,) = [path for path in Path(store.url.partition(":")[2]).rglob("*") if path.is_file()]
    path.write_text('{"key": "abc"')

    with pytest.raises(errors.NotAuthorized, match="secret of cluster 'nightly' #3 cannot be read") as raised:
        secret_of(store, RECORD.tag)
    assert "abc" not in str(raised.value)


def test_forget_removes_what_belongs_to_one_incarnation_and_may_be_repeated(store: Store, tmp_path: Path) -> None:
    """Its secret, its folder and its shared memory; the record and what is another's stay."""
    folder, other = tmp_path / "c0ffee", tmp_path / "beef"
    segments = Path(folder_of(RECORD.uid))
    for path in (folder / "deep", other, segments):
        path.mkdir(parents=True)
    store.create("secret", "nightly.3", {"key": "mine"})
    store.create("secret", "nightly.4", {"key": "next"})
    for _ in range(2):
        forget(store, RECORD.tag, str(folder))

    assert list(store.keys("secret")) == ["nightly.4"]
    assert (folder.exists(), other.exists(), segments.exists()) == (False, True, False)
    assert read_record(store, "nightly") == RECORD


# logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 30 lines."""
    path = Path(log_path(str(tmp_path), "engine-3"))
    path.write_text("".join(f"line {n}\n" for n in range(30)))
    return path


def test_a_folder_is_private_and_leaves_what_is_around_it_as_it_is(store: Store, tmp_path: Path) -> None:
    """The folder for temporary files, for example, stays everybody's; what had to be made is private too."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    make_folder(store, RECORD.tag, str(shared / "ipcluster-c0ffee"))
    make_folder(store, RECORD.tag, str(tmp_path / "made" / "c0ffee"))

    modes = [
        stat.S_IMODE((tmp_path / path).stat().st_mode)
        for path in ("tmp", "tmp/ipcluster-c0ffee", "made", "made/c0ffee")
    ]
    assert modes == [0o1777, 0o700, 0o700, 0o700]


def test_a_log_is_named_by_its_part(tmp_path: Path) -> None:
    """In the incarnation's folder."""
    assert log_path(str(tmp_path), "nanny") == f"{tmp_path}/nanny.log"


@pytest.mark.parametrize(("lines", "first"), [(1, 29), (7, 23), (30, 0), (31, 0)])
def test_tail_returns_the_last_lines(log: Path, lines: int, first: int) -> None:
    """As many as are asked for, or as there are; without the end of the last line."""
    assert tail_of(str(log), lines=lines) == "\n".join(f"line {n}" for n in range(first, 30))


def test_tail_is_20_lines_unless_asked_otherwise(log: Path) -> None:
    """So that it fits a message."""
    assert tail_of(str(log)).splitlines() == [f"line {n}" for n in range(10, 30)]


def test_a_tail_of_no_lines_is_empty(log: Path) -> None:
    """And not the whole log."""
    assert tail_of(str(log), lines=0) == ""


def test_a_tail_goes_back_into_the_older_half(log: Path) -> None:
    """A log that was begun anew a moment ago still has its last lines."""
    log.rename(older_log(str(log)))
    log.write_text("again\n")

    assert tail_of(str(log), lines=3) == "line 28\nline 29\nagain"


def test_a_long_tail_is_complete(log: Path) -> None:
    """A thousand lines of usual length."""
    log.write_text("".join(f"{n:500}\n" for n in range(2000)))

    assert [int(line) for line in tail_of(str(log), lines=1000).splitlines()] == list(range(1000, 2000))


def test_a_tail_of_very_long_lines_is_cut(log: Path) -> None:
    """Its end is there; what is no text is replaced."""
    log.write_bytes(b"\xff" * 100_000 + "ä end".encode())
    tail = tail_of(str(log))

    assert tail.endswith("\ufffdä end")
    assert len(tail) <= 4096


def test_a_log_that_is_not_there_has_an_empty_tail(tmp_path: Path) -> None:
    """Its process never came to write."""
    assert tail_of(str(tmp_path / "none.log")) == ""
