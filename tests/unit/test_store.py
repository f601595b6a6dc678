"""One contract for every store; and what the file store promises beyond it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import steps
from ipcluster_core.errors import StoreConflict, StoreDamaged, StoreError
from ipcluster_core.store import KINDS, Store, open_store
from ipcluster_core.store.file import FileStore
from ipcluster_core.store.memory import MemoryStore

THREADS = 4


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn."""
    name = str(tmp_path / "a store")
    yield open_store(f"{request.param}:{name}")
    MemoryStore.drop(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a file store; it is not there yet."""
    return tmp_path / "deep" / "store"


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


def files(folder: Path) -> list[str]:
    """Return all that is in a folder, as paths below it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# the contract


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


def test_of_many_threads_that_create_one_wins(store: Store) -> None:
    """The others see a conflict; the document is the winner's."""
    rounds = 20
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


def test_of_many_threads_that_swap_none_loses_a_change(store: Store) -> None:
    """Each swap that was said to be made is in the sum."""
    rounds = 25
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


def test_who_has_created_a_document_keeps_it_until_it_deletes_it(store: Store) -> None:
    """Whoever else creates, gets a conflict; nobody but the owner can swap or delete."""
    rounds = 15

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


# opening


def test_the_variable_names_the_default_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it, the store is in the per-user state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    monkeypatch.setenv("IPCLUSTER_STORE", f"file:{tmp_path}/named")
    assert open_store().url == f"file:{tmp_path}/named"
    monkeypatch.delenv("IPCLUSTER_STORE")
    assert open_store().url == f"file:{tmp_path}/state/ipcluster"
    monkeypatch.delenv("XDG_STATE_HOME")

    assert open_store().url == f"file:{tmp_path}/home/.local/state/ipcluster"
    assert open_store("file:~/there").url == f"file:{tmp_path}/home/there"
    assert open_store("file:///over/there").url == "file:/over/there"


@pytest.mark.parametrize("url", ["file:", "redis://host", "/some/folder", ":"])
def test_an_unknown_url_is_refused_with_what_would_do(url: str) -> None:
    """The message names the URL and the kinds that there are."""
    with pytest.raises(StoreError, match=r"no store for .* use file:/some/folder or memory:some-name"):
        open_store(url)


def test_a_relative_folder_becomes_an_absolute_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later change of the working folder does not change the store."""
    monkeypatch.chdir(tmp_path)

    assert open_store("file:here").url == f"file:{tmp_path}/here"


def test_memory_stores_are_shared_by_name_only() -> None:
    """A dropped one is forgotten; those without a name are private."""
    open_store("memory:shared").create("record", "a", {})

    assert list(open_store("memory:shared").keys("record")) == ["a"]
    assert list(open_store("memory:other").keys("record")) == []
    MemoryStore.drop("shared")
    MemoryStore.drop("other")
    assert list(open_store("memory:shared").keys("record")) == []
    MemoryStore.drop("shared")
    open_store("memory:").create("record", "a", {})
    assert list(open_store("memory:").keys("record")) == []


# the file store


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_nobody_else_can_read_a_file_store_whatever_the_umask(folder: Path, umask: int) -> None:
    """Folders that it makes are 0700, files 0600."""
    before = os.umask(umask)
    try:
        store = FileStore(str(folder))
        for kind in KINDS:
            made = store.create(kind, "a", {"n": 1})
            store.swap(kind, "a", {"n": 2}, made.version)
    finally:
        os.umask(before)

    modes = {path: path.stat().st_mode for path in (folder.parent, *folder.parent.rglob("*"))}
    assert {stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISDIR(mode)} == {0o700}
    assert [stat.S_IMODE(mode) for mode in modes.values() if stat.S_ISREG(mode)] == [0o600, 0o600]


def test_a_file_store_holds_one_file_for_a_document_and_none_for_a_deleted_one(folder: Path) -> None:
    """No lock, no older version, no empty folder stays."""
    store = FileStore(str(folder))
    made = store.create("record", "a", {"n": 0})
    for n in range(3):
        made = store.swap("record", "a", {"n": n}, made.version)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1
    store.delete("record", "a", made.version)

    assert files(folder) == ["records"]


class Slow(FileStore):
    """A file store with something happening between a writer's last look and its change."""

    meanwhile: Callable[[], object] | None = None

    def _rename(self, source: str, target: str, proof: str) -> bool:  # type: ignore[override]
        happen, self.meanwhile = self.meanwhile, None
        if happen is not None:
            happen()
        return super()._rename(source, target, proof)


@pytest.mark.parametrize("late", ["swap", "delete"])
@pytest.mark.parametrize("changes", [1, 2, 3])
def test_a_writer_that_is_late_by_any_number_of_changes_has_a_conflict(folder: Path, changes: int, late: str) -> None:
    """It stops right before its change; what it would have replaced was replaced and removed meanwhile."""
    slow, quick = Slow(str(folder)), FileStore(str(folder))
    first = last = quick.create("record", "a", {"n": 0})

    def happen() -> None:
        nonlocal last
        for n in range(changes):
            last = quick.swap("record", "a", {"n": n}, last.version)

    slow.meanwhile = happen
    change = slow.delete if late == "delete" else partial(slow.swap, value={"n": "late"})
    with pytest.raises(StoreConflict, match=f"version {first.version}"):
        change("record", "a", version=first.version)

    assert quick.read("record", "a") == last
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("anew", [False, True])
def test_a_writer_that_is_later_than_a_delete_has_a_conflict(folder: Path, anew: bool) -> None:
    """It revives nothing, and does not touch what was made anew."""
    slow, quick = Slow(str(folder)), FileStore(str(folder))
    first = last = quick.create("record", "a", {"n": 0})

    def happen() -> None:
        nonlocal last
        quick.delete("record", "a", first.version)
        if anew:
            last = quick.create("record", "a", {"n": "anew"})

    slow.meanwhile = happen
    with pytest.raises(StoreConflict, match=f"version {first.version}"):
        slow.swap("record", "a", {"n": "late"}, first.version)

    assert quick.read("record", "a") == (last if anew else None)
    assert len(files(folder / "records")) == (3 if anew else 0)


def test_a_create_that_is_second_by_a_hair_has_a_conflict_and_leaves_nothing(folder: Path) -> None:
    """The other document came between its look and its change."""
    slow, quick = Slow(str(folder)), FileStore(str(folder))
    slow.meanwhile = lambda: quick.create("record", "a", {"by": "quick"})
    with pytest.raises(StoreConflict, match=r"record 'a' in .* exists already"):
        slow.create("record", "a", {"by": "slow"})

    found = quick.read("record", "a")
    assert found is not None
    assert found.value == {"by": "quick"}
    assert len(files(folder / "records")) == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not JSON"),
        (b'{"n": 1', "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "holds a list"),
        (b"[" * 100_000, "nested"),
    ],
    ids=["empty", "half", "no text", "no object", "deep"],
)
def test_a_damaged_document_is_an_error_that_names_the_file(folder: Path, content: bytes, why: str) -> None:
    """It is listed still, so that somebody sees it."""
    store = FileStore(str(folder))
    store.create("record", "a", {"n": 1})
    (path,) = [path for path in folder.rglob("*") if path.is_file()]
    path.write_bytes(content)

    with pytest.raises(StoreDamaged, match=rf"{path} .*{why}"):
        store.read("record", "a")
    assert list(store.keys("record")) == ["a"]


def test_a_document_whose_file_is_missing_is_an_error_that_names_it(folder: Path) -> None:
    """The reader does not look for it for ever."""
    store = FileStore(str(folder))
    store.create("record", "a", {"n": 1})
    (path,) = [path for path in folder.rglob("*") if path.is_file()]
    path.unlink()

    with pytest.raises(StoreDamaged, match=f"{path} is missing"):
        store.read("record", "a")


def test_a_file_where_a_folder_should_be_is_an_error_that_names_it(folder: Path) -> None:
    """For a document, and for the whole store."""
    store = FileStore(str(folder))
    (folder / "records").mkdir(parents=True)
    (folder / "records" / "a").touch()
    (folder / "secrets").touch()

    with pytest.raises(StoreDamaged, match=f"Not a directory .*{folder}/records/a"):
        store.read("record", "a")
    with pytest.raises(StoreError, match=f"Not a directory .*{folder}/secrets"):
        store.create("secret", "a", {})
    with pytest.raises(StoreError, match=f"Not a directory .*{folder}/secrets"):
        store.keys("secret")
    assert list(store.keys("record")) == ["a"]


@pytest.mark.parametrize("damage", ["not json", "empty folder", "file", "link", "folder for a file", "two versions"])
def test_discard_removes_damaged_documents_of_any_kind(folder: Path, damage: str) -> None:
    """Nothing is left of them, and what a link leads to is untouched."""
    store, elsewhere = FileStore(str(folder)), folder.parent / "elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / "kept").touch()
    store.create("record", "a", {"n": 1})
    document = folder / "records" / "a"
    (version,) = document.iterdir()
    match damage:
        case "not json":
            (version / version.name).write_text("{")
        case "empty folder":
            (version / version.name).unlink()
        case "folder for a file":
            (version / version.name).unlink()
            (version / version.name).mkdir()
        case "two versions":
            (document / ("0" * 16)).mkdir()
        case _:
            document.rename(folder / "records" / ".moved")
            document.symlink_to(elsewhere) if damage == "link" else document.touch()
    store.discard("record", "a")

    assert not document.is_symlink()
    assert list(store.keys("record")) == []
    assert [path.name for path in (folder / "records").iterdir()] == [".moved"] * (damage in ("file", "link"))
    assert files(elsewhere) == ["kept"]
    store.create("record", "a", {})


def test_discard_that_is_not_allowed_says_so(folder: Path) -> None:
    """The store is none: a file stands where it should be."""
    folder.parent.mkdir(parents=True)
    folder.touch()

    with pytest.raises(StoreError, match=f"Not a directory .*{folder}/records/a"):
        FileStore(str(folder)).discard("record", "a")
    with pytest.raises(StoreError, match="Not a directory") as caught:
        FileStore(str(folder)).read("record", "a")
    assert not isinstance(caught.value, StoreDamaged)


def test_a_damaged_document_in_memory_is_an_error_and_can_be_discarded(tmp_path: Path) -> None:
    """As in a folder."""
    store = MemoryStore()
    store.create("record", "a", {})
    store._documents["record", "a"] = "{", 7

    with pytest.raises(StoreDamaged, match="record 'a' in memory: is not JSON"):
        store.read("record", "a")
    store.discard("record", "a")
    assert store.read("record", "a") is None


def test_what_killed_writers_leave_is_no_document_and_in_nobody_s_way(folder: Path) -> None:
    """One died before its create, one after its delete, one before its swap."""
    store = FileStore(str(folder))
    made = store.create("record", "swap", {"n": 1})
    records = folder / "records"
    (records / ".0123" / "0123").mkdir(parents=True)
    (records / "delete").mkdir()
    next((records / "swap").iterdir()).joinpath("0123").write_text("half")

    assert list(store.keys("record")) == ["swap"]
    assert store.read("record", "delete") is None
    assert store.read("record", "swap") == made
    store.create("record", "delete", {})
    store.swap("record", "swap", {"n": 2}, made.version)
    assert list(store.keys("record")) == ["delete", "swap"]
    assert len([path for path in (records / "swap").rglob("*") if path.is_file()]) == 1


def test_processes_that_hammer_one_name_lose_nothing_and_tear_nothing(folder: Path) -> None:
    """Each change that was said to be made is in the sum; a reader meanwhile sees whole documents, in order."""
    code = """
        import sys
        from ipcluster_core.errors import StoreConflict
        from ipcluster_core.store import open_store

        store, made = open_store(sys.argv[1]), 0
        try:
            store.create("record", "sum", {"n": 0, "text": ""})
            print("created")
        except StoreConflict:
            pass
        while made < 40:
            found = store.read("record", "sum")
            n = found.value["n"] + 1
            try:
                store.swap("record", "sum", {"n": n, "text": f"{n} " * 2000}, found.version)
            except StoreConflict:
                continue
            made += 1
    """
    store, seen = FileStore(str(folder)), [0]
    with steps.started_step(code, store.url) as one, steps.started_step(code, store.url) as two:
        steps.wait_until(lambda: store.read("record", "sum"))
        while seen[-1] < 80:
            found = store.read("record", "sum")
            assert found is not None
            seen.append(found.value["n"])
            assert found.value["text"] == (f"{seen[-1]} " * 2000 if seen[-1] else "")
        outputs = [process.communicate(timeout=10) for process in (one, two)]

    assert [error for _, error in outputs] == ["", ""]
    assert sorted(output for output, _ in outputs) == ["", "created\n"]
    assert seen == sorted(seen)
    assert len(files(folder / "records")) == 3


def test_what_a_killed_writer_left_is_removed_by_a_later_create(tmp_path: Path) -> None:
    """Once it is too old to be in use; a young one may be somebody's."""
    store = open_store(f"file:{tmp_path}/store")
    store.create("secret", "first", {"key": "1"})
    old, young = tmp_path / "store" / "secrets" / ".old", tmp_path / "store" / "secrets" / ".young"
    for left in (old, young):
        left.mkdir()
        (left / "0123").write_text("{}")
    os.utime(old, (1.0, 1.0))
    store.create("secret", "second", {"key": "2"})

    assert not old.exists()
    assert young.exists()
    assert list(store.keys("secret")) == ["first", "second"]
