"""What mpiexec runs in place of ssh: it has a host's outpost run a command, and shows what came of it.

::

    mpiexec --runs--> errand --socket--> relay ==trunk==> outpost --fork--> `run` --sh--> command
                        <---------------- output, exit code -----------------

So there is one way to each host, whatever runs there belongs to the outpost, and mpiexec hears of its end at once.

Run by mpiexec as ``python -m ipcluster_core.errand FOLDER [-x] HOST COMMAND...``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from .channel import Channel, connect
from .hosts import errand_name

__all__ = ["main", "run", "split"]

#: Exit code of ssh when it has failed itself.
_FAILED = 255

_READ_BYTES = 1 << 16


def split(arguments: Sequence[str]) -> tuple[str, str]:
    """Understand what ssh would be given.

    Returns
    -------
    tuple
        Host, and command as a shell takes it.

    Raises
    ------
    ValueError
        It names no host.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        del rest[0]
    if not rest:
        raise ValueError(f"no host in {list(arguments)}")
    return rest[0], " ".join(rest[1:])


def main() -> int:
    """Do an errand; return its exit code."""
    folder = sys.argv[1]
    host, command = split(sys.argv[2:])
    try:
        channel = Channel(connect(folder, errand_name(host)), blocking=True)
    except OSError as error:
        # Its relay says why, in the log that the nanny quotes.
        print(f"there is no way to host {host} ({error.strerror})", file=sys.stderr)  # noqa: T201 - as ssh does
        return _FAILED
    try:
        channel.send([json.dumps({"command": command}).encode()])
        return _show(channel)
    except (EOFError, OSError):
        print(f"the way to host {host} has ended", file=sys.stderr)  # noqa: T201 - as ssh does
        return _FAILED
    finally:
        channel.close()


def _show(channel: Channel) -> int:
    """Pass on what the command prints; return its exit code."""
    while True:
        for kind, content in channel.receive():
            if bytes(kind) == b"exit":
                return int(bytes(content))
            os.write(1, content)


def run(end: socket.socket, variables: Mapping[str, str]) -> None:
    """Do, on the other host, what comes through a socket; it may go on when nobody listens any more."""
    channel = Channel(end, blocking=True)
    try:
        ((order,),) = channel.receive()
    except EOFError:
        return
    command = ["/bin/sh", "-c", str(json.loads(bytes(order))["command"])]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(variables)
    ) as child:
        while child.stdout is not None and (content := os.read(child.stdout.fileno(), _READ_BYTES)):
            channel.send([b"output", content])
        code = child.wait()
    channel.send([b"exit", str(code if code >= 0 else 128 - code).encode()])


if __name__ == "__main__":
    sys.exit(main())
