"""What tasks have engines do. Engines import this module, so it imports nothing but what every Python has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

__all__ = ["call_named", "run_command"]

#: Seconds that a command which is interrupted has between SIGTERM and SIGKILL.
_GRACE_SECONDS = 0.5

#: Lines that the error of a failed command repeats.
_LAST_LINES = 10


def call_named(path: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function returns
    """Call ``module:function``, which the engine imports."""
    module, _, name = path.partition(":")
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value(*args, **kwargs)


def run_command(command: Sequence[str], *more: object) -> str:
    """Run a command and write what it writes, line by line; when the task is interrupted, end it with its children.

    Parameters
    ----------
    command
        Program and arguments; no shell is involved.
    more
        Further arguments.

    Returns
    -------
    str
        The last line of its standard output.

    Raises
    ------
    subprocess.CalledProcessError
        Its exit code is not 0; the error ends with its last lines.
    """
    argv = [*command, *map(str, more)]
    last: deque[str] = deque(maxlen=_LAST_LINES)
    # A session of its own: what it starts is reached by one signal.
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, errors="replace", start_new_session=True
    ) as process:
        try:
            for line in process.stdout or ():
                last.append(line.rstrip("\n"))
                sys.stdout.write(line)
                sys.stdout.flush()
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    if code:
        error = subprocess.CalledProcessError(code, argv, output="\n".join(last))
        error.add_note("\n".join(last))
        raise error
    return last[-1] if last else ""


def _end(process: subprocess.Popen[str]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
