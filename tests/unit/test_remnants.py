"""What MPICH leaves in shared memory is told by who has it mapped."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from uuid import uuid4

from ipcluster_core import remnants


def test_what_processes_share_is_found_and_removed() -> None:
    """Nothing else is; a process that is gone shares nothing."""
    paths = [Path(f"/dev/shm/{prefix}_{uuid4().hex[:8]}_0") for prefix in ("mpich_shm", "ipcluster_other")]
    maps = []
    for path in paths:
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            maps.append(mmap.mmap(file.fileno(), 0))
    found = remnants.find([os.getpid(), 1 << 22])
    remnants.remove([*found, "/dev/shm/mpich_shm_gone"])
    left = [path.exists() for path in paths]
    paths[1].unlink()
    for memory in maps:
        memory.close()

    assert found == {str(paths[0])}
    assert left == [False, True]
