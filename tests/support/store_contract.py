"""What every store does, as tests: a module that imports them all runs them on the store of its fixture `store`.

Its fixture `rounds` says how often threads race.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipcluster_core.errors import StoreConflict
from ipcluster_core.store import KINDS, Store, open_store

THREADS = 4


def race(work: Callable[[int], None]) -> None:
    """Have several threads begin the same work at one time, and wait for them."""
    barrier = threading.Barrier(THREADS)
    failed: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - shown by the thread of the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_a_document_is_read_as_it_was_created(store: Store) -> None:
    """What JSON can hold comes back, whatever its text."""
    value = {"text": "ä\n\0\U0001f600", "list": [1, 2.5, None, True], "dict": {"": {}}}
    made = store.create("record", "a", value)
    found = store.read("record", "a")

    assert found == made
    assert found is not None
    assert found.value == value


def test_an_empty_document_is_one(store: Store) -> None:
    """No value is taken for none."""
    made = store.create("record", "a", {})

    assert store.read("record", "a") == made
    assert list(store.keys("record")) == ["a"]


def test_reading_what_is_not_there_gives_none_and_makes_nothing(store: Store) -> None:
    """Also when nothing was ever written."""
    assert store.read("record", "a") is None
    assert list(store.keys("record")) == []
    assert store.url.startswith("memory:") or not Path(store.url.partition(":")[2]).exists()


def test_create_is_refused_where_a_document_is(store: Store) -> None:
    """The document stays as it is."""
    made = store.create("record", "a", {"n": 1})

    with pytest.raises(StoreConflict, match="record 'a' in"):
        store.create("record", "a", {"n": 2})
    assert store.read("record", "a") == made


def test_swap_replaces_the_version_that_it_names(store: Store) -> None:
    """The new document has another version."""
    first = store.create("record", "a", {"n": 1})
    second = store.swap("record", "a", {"n": 2}, first.version)

    assert second.version != first.version
    assert store.read("record", "a") == second
    assert second.value == {"n": 2}


@pytest.mark.parametrize("changes", [1, 2, 40])
def test_swap_of_an_old_version_is_refused(store: Store, changes: int) -> None:
    """However often the document has changed since."""
    first = last = store.create("record", "a", {"n": 0})
    for n in range(changes):
        last = store.swap("record", "a", {"n": n}, last.version)

    with pytest.raises(StoreConflict, match=f"version {first.version}"):
        store.swap("record", "a", {"n": "late"}, first.version)
    assert store.read("record", "a") == last


@pytest.mark.parametrize("version", [-1, 0, 1, 1 << 200])
def test_swap_of_a_version_that_never_was_is_refused(store: Store, version: int) -> None:
    """No number is taken for "any"."""
    made = store.create("record", "other", {})
    assert made.version not in {-1, 0}

    with pytest.raises(StoreConflict, match="record 'a'"):
        store.swap("record", "a", {}, version)
    assert store.read("record", "a") is None


def test_delete_removes_the_document(store: Store) -> None:
    """It is neither read nor listed any more."""
    made = store.create("record", "a", {"n": 1})
    store.delete("record", "a", made.version)

    assert store.read("record", "a") is None
    assert list(store.keys("record")) == []


def test_discard_removes_a_document_of_any_version_and_is_safe_to_repeat(store: Store) -> None:
    """What has another key or is of the other kind stays, and the key can be used anew."""
    made = store.create("record", "a", {"n": 1})
    store.swap("record", "a", {"n": 2}, made.version)
    store.create("record", "b", {})
    store.create("secret", "a", {})
    for _ in range(2):
        store.discard("record", "a")

    assert store.read("record", "a") is None
    assert [list(store.keys(kind)) for kind in KINDS] == [["b"], ["a"]]
    assert store.create("record", "a", {"n": 3}).version != made.version


def test_discard_of_what_was_never_there_makes_nothing(store: Store) -> None:
    """Nor does it fail; a bad key does."""
    store.discard("record", "a")

    assert store.url.startswith("memory:") or not Path(store.url.partition(":")[2]).exists()
    with pytest.raises(ValueError, match="cannot be a key"):
        store.discard("record", "../a")


def test_of_concurrent_discards_none_fails(store: Store) -> None:
    """And none is left with half of it."""
    store.create("record", "a", {"n": 1})
    race(lambda _: store.discard("record", "a"))

    assert store.read("record", "a") is None
    assert list(store.keys("record")) == []


def test_delete_of_an_old_version_is_refused(store: Store) -> None:
    """What has changed stays."""
    first = store.create("record", "a", {"n": 1})
    second = store.swap("record", "a", {"n": 2}, first.version)

    with pytest.raises(StoreConflict, match=f"version {first.version}"):
        store.delete("record", "a", first.version)
    assert store.read("record", "a") == second


def test_what_is_deleted_can_be_changed_by_nobody(store: Store) -> None:
    """Neither swapped nor deleted again."""
    made = store.create("record", "a", {"n": 1})
    store.delete("record", "a", made.version)

    with pytest.raises(StoreConflict, match=f"version {made.version}"):
        store.swap("record", "a", {"n": 2}, made.version)
    with pytest.raises(StoreConflict, match=f"version {made.version}"):
        store.delete("record", "a", made.version)
    assert store.read("record", "a") is None


def test_a_version_of_before_the_delete_does_not_fit_what_was_made_anew(store: Store) -> None:
    """A version never comes again."""
    first = store.create("record", "a", {"n": 1})
    store.delete("record", "a", first.version)
    second = store.create("record", "a", {"n": 1})

    with pytest.raises(StoreConflict, match=f"version {first.version}"):
        store.swap("record", "a", {"n": 2}, first.version)
    assert store.read("record", "a") == second


def test_kinds_do_not_mix(store: Store) -> None:
    """A record and a secret of one key are two documents."""
    record = store.create("record", "a", {"kind": "record"})
    secret = store.create("secret", "a", {"kind": "secret"})
    store.delete("record", "a", record.version)

    assert store.read("secret", "a") == secret
    assert [list(store.keys(kind)) for kind in KINDS] == [[], ["a"]]


def test_keys_are_sorted(store: Store) -> None:
    """Whatever the order in which they were made."""
    for key in ("b", "a.1", "c", "a-b", "a"):
        store.create("record", key, {})

    assert list(store.keys("record")) == ["a", "a-b", "a.1", "b", "c"]


@pytest.mark.parametrize("key", ["", ".", "..", ".a", "a/b", "../a", "a\0b"])
def test_a_key_that_could_mean_another_place_is_refused(store: Store, key: str) -> None:
    """By every call."""
    calls: list[Callable[[], object]] = [
        lambda: store.read("record", key),
        lambda: store.create("record", key, {}),
        lambda: store.swap("record", key, {}, 1),
        lambda: store.delete("record", key, 1),
    ]

    for call in calls:
        with pytest.raises(ValueError, match="cannot be a key of a store"):
            call()


def test_what_json_cannot_hold_is_refused_and_changes_nothing(store: Store) -> None:
    """It is found before anything is written."""
    made = store.create("record", "a", {"n": 1})

    with pytest.raises(TypeError, match="set is not JSON serializable"):
        store.swap("record", "a", {"n": {1}}, made.version)
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        store.create("record", "b", {"n": {1}})
    assert list(store.keys("record")) == ["a"]
    assert store.read("record", "a") == made


def test_a_value_changed_after_it_was_read_changes_nothing(store: Store) -> None:
    """The store keeps its own copy."""
    value: dict[str, Any] = {"list": [1]}
    store.create("record", "a", value)
    value["list"].append(2)
    found = store.read("record", "a")
    assert found is not None
    found.value["list"].append(3)

    again = store.read("record", "a")
    assert again is not None
    assert again.value == {"list": [1]}


def test_its_url_opens_the_same_store(store: Store) -> None:
    """From anywhere in this process."""
    made = store.create("record", "a", {"n": 1})

    assert open_store(store.url).read("record", "a") == made


def test_run_folders_differ_by_uid(store: Store) -> None:
    """Each incarnation has its own, by an absolute path; nobody makes it yet."""
    one, other = Path(store.run_folder("u1")), Path(store.run_folder("u2"))

    assert one != other
    assert one.is_absolute()
    assert not one.exists()


def test_of_many_threads_that_create_one_wins(store: Store, rounds: int) -> None:
    """The others see a conflict; the document is the winner's."""
    winners: list[list[int]] = [[] for _ in range(rounds)]

    def work(number: int) -> None:
        for at in range(rounds):
            try:
                store.create("record", f"key-{at}", {"by": number})
            except StoreConflict:
                continue
            winners[at].append(number)

    race(work)

    assert [len(won) for won in winners] == [1] * rounds
    documents = [store.read("record", f"key-{at}") for at in range(rounds)]
    assert [[document.value["by"]] for document in documents if document is not None] == winners


def test_of_many_threads_that_swap_none_loses_a_change(store: Store, rounds: int) -> None:
    """Each swap that was said to be made is in the sum."""
    store.create("record", "sum", {"n": 0})

    def work(_: int) -> None:
        made = 0
        while made < rounds:
            found = store.read("record", "sum")
            assert found is not None
            try:
                store.swap("record", "sum", {"n": found.value["n"] + 1}, found.version)
            except StoreConflict:
                continue
            made += 1

    race(work)

    found = store.read("record", "sum")
    assert found is not None
    assert found.value == {"n": THREADS * rounds}


def test_who_has_created_a_document_keeps_it_until_it_deletes_it(store: Store, rounds: int) -> None:
    """Whoever else creates, gets a conflict; nobody but the owner can swap or delete."""

    def work(number: int) -> None:
        kept = 0
        while kept < rounds:
            try:
                made = store.create("secret", "lease", {"by": number})
            except StoreConflict:
                continue
            assert store.read("secret", "lease") == made
            made = store.swap("secret", "lease", {"by": number, "again": True}, made.version)
            store.delete("secret", "lease", made.version)
            kept += 1

    race(work)

    assert list(store.keys("secret")) == []
