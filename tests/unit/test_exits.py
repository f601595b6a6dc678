"""How a process ended that this one must not reap."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator

import pytest

from ipcluster_core import exits
from ipcluster_core.exits import status_of


def end_by_signal() -> None:
    """End so that no handler and no core file stands in between."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(params=[end_by_signal, lambda: os._exit(3)], ids=["signal", "exit"])
def ended(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int]]:
    """Give pidfd, pid and the status to be found of a child that has ended, and has not been reaped."""
    end: Callable[[], None] = request.param
    pid = os.fork()
    if pid == 0:
        end()
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(10_000)
    yield pidfd, pid, signal.SIGKILL if end is end_by_signal else 3 << 8
    os.close(pidfd)


def test_a_process_that_was_not_reaped_is_known(ended: tuple[int, int, int]) -> None:
    """By what is left of it."""
    pidfd, pid, status = ended
    found = status_of(pidfd, pid)
    _, real = os.waitpid(pid, 0)

    assert found == real == status


def test_a_process_that_was_reaped_is_known_to_newer_kernels(ended: tuple[int, int, int]) -> None:
    """By its pidfd, which outlives it; older ones have forgotten, and so it is unknown, and never wrong."""
    pidfd, pid, status = ended
    os.waitpid(pid, 0)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])

    assert status_of(pidfd, pid) == (status if release >= (6, 15) else None)


def test_a_kernel_that_does_not_know_costs_nothing(
    ended: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the request says there is an error of its own."""
    pidfd, pid, status = ended
    monkeypatch.setattr(exits, "_GET_INFO", 0xC000FF0B)
    of_zombie = status_of(pidfd, pid)
    os.waitpid(pid, 0)

    assert (of_zombie, status_of(pidfd, pid)) == (status, None)


def test_one_that_lives_has_not_ended() -> None:
    """Its state is not taken for an end."""
    pidfd = os.pidfd_open(os.getpid())
    found = status_of(pidfd, os.getpid())
    os.close(pidfd)

    assert found is None
