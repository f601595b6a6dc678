"""What a running task tells its client before it is done: progress, log records, whatever is worth a message.

::

    task                    engine           broker                  client
      | send_note(value) ---> | -- note -----> | -- note ------------> | on_note(value), in its I/O thread
      | return -------------> | -- outcome --> | -- outcome ---------> | the future is done

Notes of a task arrive in order, and before its outcome. They are for the client that submitted the task, while it is
connected; nobody keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from . import serialize

__all__ = ["LARGEST_BYTES", "send_note", "serve"]

#: Longest note, pickled.
LARGEST_BYTES = 4 << 20

_Send = Callable[[bytes], bool]

_send: _Send | None = None


def send_note(value: object) -> bool:
    """Send a value from a running task to its client, which gets it by `Client.options(on_note=…)`.

    Parameters
    ----------
    value
        Pickled now, as results are; at most 4 MiB. Plain data is quickest.

    Returns
    -------
    bool
        Whether it was sent: not outside a task, and not from a process that the task has started. A client that is
        gone, or far behind, does not get it.

    Raises
    ------
    ValueError
        It is too large.
    """
    if _send is None:
        return False
    payload = serialize.dump_whole(value)
    if len(payload) > LARGEST_BYTES:
        raise ValueError(f"a note has at most {LARGEST_BYTES} bytes, pickled; this one has {len(payload)}")
    return _send(payload)


def serve(send: _Send | None) -> None:
    """Have notes of this process sent in this way; the engine's."""
    global _send  # noqa: PLW0603 - a process is one engine, and user code has nothing else to find it by
    _send = send


# What a task forks shares the engine's socket, and would write into the middle of its messages.
os.register_at_fork(after_in_child=lambda: serve(None))
