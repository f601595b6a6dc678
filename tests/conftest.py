"""What holds for every test: its own store, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import leaks

leaks.mark_run()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a shell without job control begins so; Ctrl-C is what many tests are about.
    signal.signal(signal.SIGINT, signal.default_int_handler)
pytest.register_assert_rewrite("store_contract")

# A run of CI that fails can be repeated, and is not slowed down into a failure by a busy machine.
settings.register_profile("ci", derandomize=True, database=None, deadline=None)
if "CI" in os.environ:
    settings.load_profile("ci")


@pytest.fixture
def leak_policy() -> leaks.Policy:
    """What a test may leave behind; a folder or a module overrides this fixture for a framework's own threads."""
    return leaks.Policy()


@pytest.fixture(autouse=True)
def nothing_left(leak_policy: leaks.Policy) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor or file behind."""
    before = leaks.take_snapshot()
    yield
    left = leaks.wait_until_clean(before, leak_policy)
    if left:
        leaks.end(left)
        pytest.fail(f"left behind {leak_policy.patience:g} s after the test:\n{left}", pytrace=False)


@pytest.fixture(autouse=True)
def store_url(nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give each test a store of its own, also to the processes that it starts; the user's is never touched."""
    url = f"file:{tmp_path}/store"
    monkeypatch.setenv("IPCLUSTER_STORE", url)
    return url
