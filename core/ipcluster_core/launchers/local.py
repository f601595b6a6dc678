"""Runs a job on this host: a nanny in a session of its own, free of whatever its creator holds."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import descriptors, guardian
from ..errors import LaunchError
from ..incarnation import log_path, tail_of
from ..process import STORE_VARIABLE, TAG_VARIABLE, Identity, end_all, liveness, send_signal, tagged, wait_gone
from ..record import Job, Liveness, title_of

__all__ = ["LocalLauncher", "clean_environment"]

#: Variables of the workflow engines: they configure (and may unlock) the step, and are not for user code on engines.
_WORKFLOW_PREFIXES = ("AIRFLOW", "PREFECT", "_AIRFLOW")

#: The oldest Python that runs a cluster; one that is older does not even know our options.
_OLDEST = (3, 11)

#: What such a one says.
_COMPLAINT = "Unknown option: -P"

#: Seconds for an interpreter that cannot run a cluster to say its version.
_VERSION_SECONDS = 5.0

#: Longest that a thread waits for a process: one whose wait was cancelled cannot be told, and holds up the exit.
_SLICE_SECONDS = 0.1


def clean_environment(tag: str, store: str) -> dict[str, str]:
    """Return this process's environment as a cluster may have it: marked, without the workflow engine's variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_WORKFLOW_PREFIXES)}
    # A virtual environment's marker of this process must not redirect another interpreter.
    kept.pop("__PYVENV_LAUNCHER__", None)
    return {**kept, TAG_VARIABLE: tag, STORE_VARIABLE: store}


def _version_of(python: str) -> tuple[int, ...] | None:
    """Return the version of an interpreter; None if it does not say."""
    command = [python, "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_VERSION_SECONDS)
        return tuple(map(int, done.stdout.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class LocalLauncher:
    """See `Launcher` for the contract."""

    async def start(self, boot: Mapping[str, Any], *, timeout: float) -> Mapping[str, Any]:
        """Start a nanny on this host."""
        return await asyncio.to_thread(self._start, boot, timeout)

    def _start(self, boot: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        folder, tag = str(boot["folder"]), str(boot["tag"])
        deadline = time.monotonic() + timeout
        descriptors.require(title_of(tag), sum(boot["sets"].values()), boot["spec"]["start_method"])
        read, write = os.pipe2(os.O_CLOEXEC)
        python = str(boot["python"] or sys.executable)
        # -P keeps the working folder off sys.path while our own modules are imported.
        command = [python, "-P", "-m", "ipcluster_core.nanny", tag, str(write)]
        log = os.open(log_path(folder, "nanny"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=clean_environment(tag, str(boot["store"])),
                pass_fds=(write,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(read)
            raise LaunchError(
                f"the interpreter {python!r} of {title_of(tag)} cannot be run: {error.strerror}"
            ) from error
        finally:
            os.close(write)
            os.close(log)
        try:
            with suppress(BrokenPipeError):
                process.communicate(json.dumps(boot).encode(), timeout=timeout)
            ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
            said = os.read(read, 4096).decode() if ready else ""
            if said == "ready":
                guardian.adopt(tag)
                return {}
            if said:
                raise LaunchError(f"{title_of(tag)} could not be started: {said}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ready = []
        finally:
            os.close(read)
        output = tail_of(log_path(folder, "nanny"))
        what = "ended before it was ready" if ready else f"was not ready within {timeout:g} s"
        # Only an interpreter that says so is run again: another may do anything, and hold up the end of this step.
        version = _version_of(python) if ready and _COMPLAINT in output else None
        if version is not None and version < _OLDEST:
            has, needs = (".".join(map(str, numbers)) for numbers in (version, _OLDEST))
            raise LaunchError(f"{title_of(tag)} needs Python {needs} or newer, and {python} is Python {has}")
        raise LaunchError(f"the nanny of {title_of(tag)} ({python}) {what}; its last output:\n{output or '(none)'}")

    def poll(self, job: Job) -> Liveness:
        """Tell whether the job's nanny lives."""
        return Liveness.UNKNOWN if job.nanny is None else liveness(Identity.from_dict(job.nanny))

    async def wait(self, job: Job, *, timeout: float) -> bool:
        """Wait until the job's nanny is gone."""
        if job.nanny is None:
            return False
        nanny = Identity.from_dict(job.nanny)
        deadline = time.monotonic() + timeout
        while await asyncio.to_thread(wait_gone, [nanny], min(_SLICE_SECONDS, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                return False
        return True

    async def stop(self, job: Job | None, tag: str, *, timeout: float) -> list[str]:
        """End a nanny and everything that carries the tag."""
        return await asyncio.to_thread(self._stop, job, tag, timeout)

    def _stop(self, job: Job | None, tag: str, timeout: float) -> list[str]:
        if job is not None and job.nanny is not None:
            nanny = Identity.from_dict(job.nanny)
            # The nanny knows best how to end what it started; it gets half of the time.
            if send_signal(nanny, signal.SIGTERM):
                wait_gone([nanny], timeout / 2)
        left = end_all(lambda: tagged(tag), grace=0.0, timeout=timeout / 2)
        return [str(who) for who in left]
