"""The process whose end is the end of a cluster is watched by its descriptor."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from ipcluster_core.owner import OwnerWatch
from ipcluster_core.process import identify


@pytest.fixture
def watch() -> Iterator[OwnerWatch]:
    """Watches nobody yet."""
    made = OwnerWatch()
    yield made
    made.close()
    made.close()


def child() -> tuple[int, int]:
    """Fork a process that lives until its pipe is closed; return its pid and the pipe."""
    lower, upper = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(upper)
        os.read(lower, 1)
        os._exit(0)
    os.close(lower)
    return pid, upper


def identity(pid: int) -> dict[str, object]:
    """Return what tells a process apart."""
    return identify(pid).to_dict()


def ready(watch: OwnerWatch, timeout: float) -> bool:
    """Tell whether its descriptor can be read."""
    return bool(select.select([watch.fileno()], [], [], timeout)[0])


def test_the_end_of_the_owner_is_told_once(watch: OwnerWatch) -> None:
    """When it has come, and not before."""
    pid, pipe = child()
    seen = watch.watch(identity(pid))
    early = ready(watch, 0) or watch.take_end()
    os.close(pipe)
    late = ready(watch, 10)
    told = [watch.take_end(), watch.take_end()]
    os.waitpid(pid, 0)

    assert (seen, early, late) == (True, False, True)
    assert told == [True, False]
    assert not ready(watch, 0)


def test_an_owner_can_be_changed(watch: OwnerWatch) -> None:
    """The end of the earlier one is nothing any more; nor is anybody's when nobody is watched."""
    pid, pipe = child()
    assert watch.watch(identity(pid))
    assert watch.watch(identity(os.getpid()))
    os.close(pipe)
    os.waitpid(pid, 0)

    assert not watch.take_end()
    assert watch.watch(None)
    assert not ready(watch, 0)


def test_an_owner_that_is_gone_is_not_watched(watch: OwnerWatch) -> None:
    """Nor is a stranger who has got its pid."""
    pid, pipe = child()
    gone = identity(pid)
    os.close(pipe)
    os.waitpid(pid, 0)
    stranger = {**identity(os.getpid()), "start": 1}

    assert not watch.watch(gone)
    assert not watch.watch(stranger)
    assert not ready(watch, 0)
