"""Questions to a controller: one request, one answer, over its control socket.

``{"verb": ..., "secret": ..., **arguments}`` is answered by ``{"ok": true, ...}`` or ``{"ok": false, "error": class
name, "message": ...}``. Whoever asks opens a socket, asks, and closes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from . import errors
from .channel import Channel, connect
from .errors import ClusterBroken, ClusterError, ClusterTimeout
from .incarnation import CONTROL, require_here
from .record import Record

__all__ = ["ask"]


async def ask(record: Record, secret: str, verb: str, *, timeout: float, **arguments: Any) -> Mapping[str, Any]:
    """Ask the controller of an incarnation.

    Returns
    -------
    mapping
        Its answer.

    Raises
    ------
    ClusterBroken
        Its control socket is not there, it went away before it answered, or what answers is no controller.
    ClusterTimeout
        No answer within `timeout` seconds.
    ClusterError
        The controller refused; the subclass is the one that it named.
    """
    require_here(record)
    try:
        end = connect(record.folder, CONTROL)
    except OSError as error:
        raise ClusterBroken(
            f"{record.title} has no control socket ({error}): its controller is gone, or not on this host"
        ) from error
    channel = Channel(end)
    try:
        channel.send([json.dumps({"verb": verb, "secret": secret, **arguments}).encode()])
        content = await asyncio.wait_for(_answer(channel), timeout)
    except TimeoutError:
        raise ClusterTimeout(f"the controller of {record.title} did not answer {verb!r} within {timeout:g} s") from None
    except ValueError as error:
        raise ClusterBroken(
            f"what listens at the control socket in {record.folder} is not the controller of {record.title}: {error}; "
            "tear the cluster down to clean up"
        ) from error
    except EOFError:
        raise ClusterBroken(f"the controller of {record.title} went away before it answered {verb!r}") from None
    finally:
        channel.close()
    if not content.pop("ok"):
        kind = getattr(errors, str(content.get("error")), ClusterError)
        raise (kind if issubclass(kind, ClusterError) else ClusterError)(str(content.get("message")))
    return content


async def _answer(channel: Channel) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    while not (messages := channel.receive()):
        readable = asyncio.Event()
        loop.add_reader(channel.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(channel.fileno())
    content: dict[str, Any] = json.loads(bytes(messages[0][0]))
    return content
