"""What MPI libraries leave behind when a rank is killed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from uuid import uuid4

import pytest

from ipcluster_core import remains


def test_what_processes_share_is_found_and_removed() -> None:
    """Nothing else is; a process that is gone shares nothing."""
    paths = [Path(f"/dev/shm/{prefix}_{uuid4().hex[:8]}_0") for prefix in ("mpich_shm", "ipcluster_other")]
    maps = []
    for path in paths:
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            maps.append(mmap.mmap(file.fileno(), 0))
    found = remains.find([os.getpid(), 1 << 22])
    remains.unlink([*found, "/dev/shm/mpich_shm_gone"])
    left = [path.exists() for path in paths]
    paths[1].unlink()
    for memory in maps:
        memory.close()

    assert found == {str(paths[0])}
    assert left == [False, True]


def test_the_launchers_file_is_removed_if_it_is_certainly_the_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that came in MPI_Init; where two have come, one may be another job's, and so may one of that name later."""
    monkeypatch.setattr(remains, "_DESCRIPTIONS", str(tmp_path / "hydra_*"))
    (tmp_path / "hydra_old").touch()
    for rank, came in enumerate((["hydra_a"], ["hydra_b", "hydra_c"], ["hydra_d"])):
        before = remains.described()
        for name in came:
            (tmp_path / name).touch()
        remains.note(str(tmp_path), rank, before)
    (tmp_path / "hydra_d").rename(tmp_path / "moved")  # so that its inode is not given away again
    (tmp_path / "hydra_d").touch()
    remains.remove(str(tmp_path))
    remains.remove(str(tmp_path))

    assert sorted(path.name for path in tmp_path.glob("hydra_*")) == ["hydra_b", "hydra_c", "hydra_d", "hydra_old"]


def test_nothing_noted_is_nothing_to_remove(tmp_path: Path) -> None:
    """Nor is a note that was cut short."""
    (tmp_path / f"{remains._NOTES}0").write_text("")
    remains.remove(str(tmp_path))
    remains.remove(str(tmp_path / "missing"))

    assert [path.name for path in tmp_path.iterdir()] == [f"{remains._NOTES}0"]
