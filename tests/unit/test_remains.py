"""What MPI libraries leave behind when a rank is killed."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from ipcluster_core import remains


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(remains, "_SHARED", str(folder))
    return folder


def mapped(path: Path) -> mmap.mmap:
    """Make a file, and map it."""
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def test_what_a_rank_has_mapped_is_removed_with_its_set(shared: Path, tmp_path: Path) -> None:
    """With what its library has numbered after it; what is somebody else's stays, and so does a successor's."""
    maps = [mapped(shared / name) for name in ("mpich_shm_ab12_0", "another", "reused")]
    for other in ("mpich_shm_ab12_3", "mpich_shm_ff_0", "not mapped"):
        (shared / other).touch()
    remains.note(str(tmp_path), 0, remains.described())
    remains.note(str(tmp_path), 1, remains.described())
    kept = shared / "kept"  # so that its inode is not given away again
    (shared / "reused").rename(kept)
    (shared / "reused").touch()
    remains.remove(str(tmp_path))
    remains.remove(str(tmp_path))

    assert sorted(path.name for path in shared.iterdir()) == ["kept", "mpich_shm_ff_0", "not mapped", "reused"]
    for one in maps:
        one.close()


def test_the_launchers_file_goes_too(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came in MPI_Init; where two have come, one may be another job's."""
    monkeypatch.setattr(remains, "_DESCRIPTIONS", str(tmp_path / "hydra_*"))
    (tmp_path / "hydra_old").touch()
    for came in (["hydra_a"], ["hydra_b", "hydra_c"]):
        before = remains.described()
        for name in came:
            (tmp_path / name).touch()
        remains.note(str(tmp_path), 0, before)
        remains.remove(str(tmp_path))

    assert sorted(path.name for path in tmp_path.glob("hydra_*")) == ["hydra_b", "hydra_c", "hydra_old"]


def test_nothing_noted_is_nothing_to_remove(tmp_path: Path) -> None:
    """Nor is a note that was cut short."""
    (tmp_path / f"{remains._PREFIX}0").write_text("")
    remains.remove(str(tmp_path))
    remains.remove(str(tmp_path / "missing"))

    assert [path.name for path in tmp_path.iterdir()] == [f"{remains._PREFIX}0"]
