"""How a client comes to its broker: connect, show the secret and the versions, be welcome or hear why not."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence

from . import errors, versions, wire
from .aftermath import verdict
from .channel import Channel, connect
from .incarnation import TASK, require_here, secret_of
from .process import identify
from .record import Record
from .store import Store
from .wire import Buffer, Kind, Notice

__all__ = ["join"]

logger = logging.getLogger(__name__)

#: Most seconds for the broker's answer: it runs nobody's code, so who does not answer for so long does not work.
_ANSWER_SECONDS = 10.0


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
        Seconds to wait for the broker's answer; at most ten.
    check_versions
        Whether versions that do not go together are refused; otherwise they are logged as a warning.

    Returns
    -------
    Channel
        Connected and welcome.

    Raises
    ------
    ClusterEnded, ClusterBroken
        The broker is gone; the message says why, as far as it is known. Or what answers is no broker.
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
        "versions": dict(versions.ours(map(str, record.spec.get("packages", ())))),
        "unchecked": not check_versions,
    }


def _greet(channel: Channel, store: Store, record: Record, hello: dict[str, object], timeout: float) -> None:
    channel.send(Notice(Kind.HELLO, hello).encode())
    try:
        answer = Notice.decode(_first_message(channel, record, min(timeout, _ANSWER_SECONDS)))
        refusal = _refusal(answer)
        warning = "" if refusal else str(answer.data["warning"])
    except EOFError:
        raise verdict(store, record, f"the broker of {record.title} is gone") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.ClusterBroken(
            f"what listens at the task socket in {record.folder} is not the broker of {record.title}: {error!r}; "
            "tear the cluster down to clean up"
        ) from error
    if refusal is not None:
        raise refusal
    if warning:
        logger.warning("%s", warning)


def _first_message(channel: Channel, record: Record, timeout: float) -> Sequence[Buffer]:
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    deadline = time.monotonic() + timeout
    while not (messages := channel.receive() if poller.poll(max(0.0, deadline - time.monotonic()) * 1000) else []):
        if time.monotonic() >= deadline:
            raise errors.ClusterTimeout(
                f"the broker of {record.title} did not answer within {timeout:g} s; see its status and its logs"
            )
    return messages[0]


def _refusal(answer: Notice) -> errors.ClusterError | None:
    if answer.kind is Kind.REFUSED:
        kind: type[errors.ClusterError] = getattr(errors, answer.data["error"])
        return kind(answer.data["message"])
    if answer.kind is Kind.END:
        return errors.ClusterEnded(str(answer.data["reason"]))
    return None
