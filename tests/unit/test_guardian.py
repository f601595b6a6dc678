"""What this process does where it is PID 1, and only there; tests/cases has it as PID 1 of a namespace."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ipcluster_core import guardian


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    """SIGTERM has its default action, and what it had before at the end."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_nothing_is_done_by_another_process(default_sigterm: None) -> None:
    """Neither a thread nor a handler is its own."""
    threads = threading.active_count()
    guardian.adopt("nightly/1/c0ffee")
    guardian.heed_sigterm()

    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_pid_1_ends_by_sigterm(default_sigterm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code that a shell gives for it."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    guardian.heed_sigterm()

    with pytest.raises(SystemExit) as left:
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143


def test_a_handler_of_the_script_is_left_alone(default_sigterm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows better."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guardian.heed_sigterm()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
