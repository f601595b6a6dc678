"""One contract for every store, see `store_contract`; and what the file store promises beyond it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import steps
from ipcluster_core.errors import StoreConflict, StoreDamaged, StoreError
from ipcluster_core.store import KINDS, Store, open_store
from ipcluster_core.store.file import FileStore
from ipcluster_core.store.memory import MemoryStore
from store_contract import *  # noqa: F403 - its tests are collected here


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn."""
    name = str(tmp_path / "a store")
    yield open_store(f"{request.param}:{name}")
    MemoryStore.drop(name)


@pytest.fixture
def rounds() -> int:
    """How often threads race."""
    return 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a file store; it is not there yet."""
    return tmp_path / "deep" / "store"


def files(folder: Path) -> list[str]:
    """Return all that is in a folder, as paths below it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


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


# other packages' stores


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], object]], None]:
    """Installs what opens the URLs that begin with ``other:``."""

    class Entry:
        value = "other_package:open_store"

        def __init__(self, opens: Callable[[str], object]) -> None:
            self.load = lambda: opens

    class Entries(dict[str, Entry]):
        @property
        def names(self) -> set[str]:
            return set(self)

    def install(opens: Callable[[str], object]) -> None:
        monkeypatch.setattr(
            "importlib.metadata.entry_points",
            lambda group: Entries(other=Entry(opens)) if group == "ipcluster_core.stores" else Entries(),
        )

    return install


def test_a_store_of_another_package_is_opened_by_its_name(installed: Callable[[Callable[[str], object]], None]) -> None:
    """It gets the whole URL; ours cannot be replaced."""
    opened: list[str] = []

    def opens(url: str) -> MemoryStore:
        opened.append(url)
        return MemoryStore("other's")

    installed(opens)

    assert open_store("other:there").url == "memory:other's"
    assert opened == ["other:there"]
    assert open_store("memory:").url == "memory:"


def test_a_store_that_is_not_installed_is_named(installed: Callable[[Callable[[str], object]], None]) -> None:
    """With those that are."""
    installed(lambda url: None)

    with pytest.raises(StoreError, match=r"or install one for it \(there is no store 'third'; there are: other\)"):
        open_store("third:there")
