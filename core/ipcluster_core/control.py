"""Questions to a controller: one request, one answer, over its control socket.

``{"verb": ..., "secret": ..., **arguments}`` is answered by ``{"ok": true, ...}`` or ``{"ok": false, "error": class
name, "message": ...}``. Whoever asks opens a socket, asks, and closes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from . import errors
from .errors import ClusterBroken, ClusterError, ClusterTimeout
from .incarnation import endpoint, require_here
from .record import Record

__all__ = ["CONTROL", "ask"]

#: Name of the control socket in an incarnation's folder.
CONTROL = "control"


async def ask(record: Record, secret: str, verb: str, *, timeout: float, **arguments: Any) -> Mapping[str, Any]:
    """Ask the controller of an incarnation.

    Returns
    -------
    mapping
        Its answer.

    Raises
    ------
    ClusterBroken
        Its control socket is not there.
    ClusterTimeout
        No answer within `timeout` seconds.
    ClusterError
        The controller refused; the subclass is the one that it named.
    """
    import asyncio

    import zmq
    import zmq.asyncio

    require_here(record)
    if not _is_there(record.folder):
        raise ClusterBroken(f"{record.title} has no control socket: its controller is gone, or not on this host")
    address, fd = endpoint(record.folder, CONTROL)
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    try:
        socket.connect(address)
        request = {"verb": verb, "secret": secret, **arguments}
        await socket.send_multipart([json.dumps(request).encode()])
        try:
            (answer,) = await asyncio.wait_for(socket.recv_multipart(), timeout)
        except TimeoutError:
            raise ClusterTimeout(
                f"the controller of {record.title} did not answer {verb!r} within {timeout:g} s"
            ) from None
    finally:
        socket.close()
        context.term()
        if fd is not None:
            os.close(fd)
    content: dict[str, Any] = json.loads(answer)
    if not content.pop("ok"):
        kind = getattr(errors, str(content.get("error")), ClusterError)
        raise (kind if issubclass(kind, ClusterError) else ClusterError)(str(content.get("message")))
    return content


def _is_there(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, CONTROL))
