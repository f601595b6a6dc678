"""A Prefect API server for all tests of this folder, and what Prefect itself keeps between flows."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import tempfile
from collections.abc import Iterator

import pytest

import leaks

# Prefect reads these when it is first imported, here and in the processes that tests start.
_home = tempfile.TemporaryDirectory(prefix="prefect-home-")
atexit.register(_home.cleanup)
os.environ["PREFECT_HOME"] = _home.name
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"


def pytest_configure(config: pytest.Config) -> None:
    """Overlook the connections that Prefect leaves to the collector after an async flow; ours, of Unix, still warn."""
    config.addinivalue_line(
        "filterwarnings", "ignore:unclosed <socket.*family=(?!1,|AddressFamily.AF_UNIX):ResourceWarning"
    )


@pytest.fixture(scope="session", autouse=True)
def prefect_server() -> Iterator[None]:
    """Start a server with an empty database, and the threads that Prefect starts at the first flow and never ends."""
    from prefect import flow, task
    from prefect.testing.utilities import prefect_test_harness

    @task
    def nothing() -> None: ...

    @flow
    def first() -> None:
        nothing.submit().wait()

    with prefect_test_harness(server_startup_timeout=100):
        first()
        yield
    gc.collect()  # connections that are left go while their warnings are overlooked


@pytest.fixture
def leak_policy() -> leaks.Policy:
    """Allow what grows as Prefect needs it: workers of its thread pools, connections to its server."""
    return leaks.Policy(
        loops=(*leaks.Policy().loops, "RunSyncEventLoopThread"),
        threads=(*leaks.Policy().threads, "AnyIO worker thread", "ConcurrencySlotAcquisition*"),
        descriptors=("socket:*",),
    )


@pytest.fixture
def run_log() -> Iterator[list[str]]:
    """Messages of this project in the logs of flow runs and task runs; Prefect keeps those from the root logger."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "prefect_ipcluster" in record.pathname:
                messages.append(record.getMessage())

    keep = Keep()
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "prefect.task_runs")]
    for logger in loggers:
        logger.addHandler(keep)
    yield messages
    for logger in loggers:
        logger.removeHandler(keep)
