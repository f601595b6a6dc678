"""How a client comes to its broker: connect, show the secret and the versions, be welcome or hear why not."""

from __future__ import annotations

import logging
import select

from . import errors, versions, wire
from .aftermath import verdict
from .channel import Channel, connect
from .incarnation import TASK, require_here, secret_of
from .process import identify
from .record import Record
from .store import Store
from .wire import Kind, Notice

__all__ = ["join"]

logger = logging.getLogger(__name__)


def join(store: Store, record: Record, name: str, segments: str, *, timeout: float, check_versions: bool) -> Channel:
    """Connect to the broker of an incarnation.

    Parameters
    ----------
    store, record
        The incarnation.
    name
        Of this client, and no other.
    segments
        Prefix of this client's segments in shared memory.
    timeout
        Seconds to wait for the broker's answer.
    check_versions
        Whether versions that do not go together are refused; otherwise they are logged as a warning.

    Returns
    -------
    Channel
        Connected and welcome.

    Raises
    ------
    ClusterEnded, ClusterBroken
        The broker is gone; the message says why, as far as it is known.
    ClusterTimeout
        It does not answer.
    VersionMismatch, NotAuthorized
        It refuses.
    """
    require_here(record)
    try:
        channel = Channel(connect(record.folder, TASK))
    except OSError as error:
        fact = f"{record.title} has no task socket ({error}): its broker is gone, or not on this host"
        gone = verdict(store, record, fact)
        raise gone from error
    try:
        _greet(channel, store, record, _hello(store, record, name, segments, check_versions=check_versions), timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def _hello(store: Store, record: Record, name: str, segments: str, *, check_versions: bool) -> dict[str, object]:
    return {
        "role": "client",
        "client": name,
        "protocol": wire.VERSION,
        "secret": secret_of(store, record.tag),
        "process": identify().to_dict(),
        "segments": segments,
        "versions": dict(versions.ours()),
        "unchecked": not check_versions,
    }


def _greet(channel: Channel, store: Store, record: Record, hello: dict[str, object], timeout: float) -> None:
    channel.send(Notice(Kind.HELLO, hello).encode())
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    if not poller.poll(timeout * 1000):
        raise errors.ClusterTimeout(f"the broker of {record.title} did not answer within {timeout:g} s")
    try:
        answer = Notice.decode(channel.receive()[0])
    except EOFError:
        raise verdict(store, record, f"the broker of {record.title} is gone") from None
    if answer.kind is Kind.REFUSED:
        raise getattr(errors, answer.data["error"])(answer.data["message"])
    if answer.kind is Kind.END:
        raise errors.ClusterEnded(str(answer.data["reason"]))
    if answer.data["warning"]:
        logger.warning("%s", answer.data["warning"])
