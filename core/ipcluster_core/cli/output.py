"""What the command says: exit codes, messages, tables. Only the command line prints."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence

from .. import errors

__all__ = ["Exit", "complain", "open_streams", "progress", "say", "table"]


class Exit(enum.IntEnum):
    """What the command's exit code means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    IN_USE = 4
    LEFTOVERS = 5
    INTERRUPTED = 130


def open_streams() -> None:
    """Have the null device where whoever starts the command has closed a standard stream, as some services do."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The lowest number is free, so this is the stream's for children too.
            fd = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)  # noqa: FBT003 - its only argument
            setattr(sys, name, os.fdopen(fd, "r" if name == "stdin" else "w"))


def say(text: str) -> None:
    """Tell the person at the keyboard, apart from the results."""
    print(f"ipclusterctl: {text}", file=sys.stderr)


def progress(text: str) -> None:
    """Tell a person who waits; nobody else."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def complain(error: Exception) -> Exit:
    """Say what went wrong; return the exit code for it."""
    match error:
        case errors.ClusterNotFound():
            code = Exit.NOT_FOUND
        case errors.ClusterInUse():
            code = Exit.IN_USE
        case ValueError():
            code = Exit.USAGE
        case _:
            code = Exit.FAILED
    if isinstance(error, ValueError):
        say(_readable(error))
    else:
        say(str(error) if isinstance(error, errors.ClusterError) else f"{type(error).__name__}: {error}")
    return code


def _readable(error: ValueError) -> str:
    """Return a model's complaints without the model library's own words around them."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'spec'}: {one['msg']}" for one in details())


def table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns, the first line of each cell."""
    lines = [[cell.splitlines()[0] if cell else "" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
