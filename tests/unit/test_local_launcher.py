"""The local launcher's waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ipcluster_core.launchers.local import LocalLauncher
from ipcluster_core.process import identify
from ipcluster_core.record import Job


@pytest.fixture
def nanny() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process for as long as the test, and 20 s at most."""
    command = [sys.executable, "-c", "import select, sys; select.select([sys.stdin], [], [], 20)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def job_of(nanny: subprocess.Popen[bytes]) -> Job:
    """Return the job whose nanny the process is."""
    return Job("local", {}, identify(nanny.pid).to_dict())


def test_a_cancelled_wait_does_not_hold_up_the_exit(nanny: subprocess.Popen[bytes]) -> None:
    """The event loop closes, and joins its threads, while the process still runs."""

    async def give_up() -> None:
        wait = asyncio.ensure_future(LocalLauncher().wait(job_of(nanny), timeout=60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wait.cancel()

    asyncio.run(give_up())

    assert nanny.poll() is None


def test_a_wait_ends_with_its_time(nanny: subprocess.Popen[bytes]) -> None:
    """Also when that is no whole number of its slices."""
    assert asyncio.run(LocalLauncher().wait(job_of(nanny), timeout=0.25)) is False
    assert nanny.poll() is None


def test_a_wait_ends_with_the_process(nanny: subprocess.Popen[bytes]) -> None:
    """Though it is a zombie until its parent reaps it."""

    async def end() -> bool:
        wait = asyncio.ensure_future(LocalLauncher().wait(job_of(nanny), timeout=60))
        await asyncio.sleep(0)
        nanny.kill()
        return await wait

    assert asyncio.run(end()) is True
