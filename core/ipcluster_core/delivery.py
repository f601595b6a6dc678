"""Where outcomes of tasks go: to the client that asked, to others that wait for them by id, and into the archive.

A client is known by the name it gave itself, which is in its tasks' ids (``<client>-<number>``); as long as it is
connected it has a partner's number too.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence

from . import wire
from .archive import Archive, Entry
from .segments import Reader, is_reference
from .wire import Buffer, Results, Status

__all__ = ["Delivery", "lost_results"]

logger = logging.getLogger("ipcluster.broker")

#: Bytes of notes that may wait for a client that does not take them; further ones are dropped.
_MOST_NOTES_BYTES = 64 << 20

#: Outcomes of more bytes are not kept for a client that has got them.
_LARGEST_DELIVERED = 1 << 16


def lost_results(number: int, message: str, **details: object) -> Results:
    """Return the outcome of a task that will never have another, with the reason."""
    payload = json.dumps({"message": message, **details}).encode()
    return Results(number, 1, wire.lengths([payload]), bytes((Status.LOST,)), payload)


class Delivery:
    """Knows who is there, and who waits for what.

    Parameters
    ----------
    send
        Sends frames to a partner.
    reader
        Frees segments whose content nobody will read.
    keep_seconds
        How long outcomes are kept.
    is_behind
        Tells whether a partner has not taken all that was sent to it.
    """

    def __init__(
        self,
        send: Callable[[int, Sequence[Buffer]], None],
        reader: Reader,
        keep_seconds: float,
        is_behind: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._send = send
        self._reader = reader
        self._keep_seconds = keep_seconds
        self._partners: dict[str, int] = {}
        self._watchers: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._is_behind = is_behind
        self._unread: dict[int, int] = {}  # bytes of notes since a partner had last taken everything
        self._archive: Archive[Results] = Archive(keep_seconds)

    def join(self, client: str, partner: int) -> None:
        """Note that a client is connected."""
        self._partners[client] = partner

    def leave(self, client: str) -> None:
        """Note that a client is gone."""
        partner = self._partners.pop(client)
        self._unread.pop(partner, None)
        for task, waiting in list(self._watchers.items()):
            left = [one for one in waiting if one[0] != partner]
            if left:
                self._watchers[task] = left
            else:
                del self._watchers[task]

    def has(self, client: str) -> bool:
        """Tell whether a client of that name is connected."""
        return client in self._partners

    def partner_of(self, client: str) -> int | None:
        """Return the partner's number of a client, None when it is gone."""
        return self._partners.get(client)

    def deliver(self, client: str, results: Results) -> None:
        """Send outcomes to whoever wants them, and keep them."""
        partner = self._partners.get(client)
        if partner is not None:
            self._send(partner, results.encode())
        size = sum(map(len, (results.sizes, results.statuses, results.body, *results.buffers)))
        shared = any(map(is_reference, results.buffers))
        if partner is None or (size <= _LARGEST_DELIVERED and not shared):
            delivered, now = partner is not None, time.monotonic()
            size += sum(map(_shared_bytes, results.buffers))
            self._free(
                self._archive.keep(
                    client, results.base, results.tasks, results, size=size, delivered=delivered, now=now
                )
            )
        if self._watchers:
            self._tell_watchers(client, results)

    def pass_on(self, task: tuple[Hashable, int] | None, body: Buffer) -> None:
        """Send what a running task (its client and number) tells to its client, if that is there and takes it."""
        if task is None or (partner := self._partners.get(str(task[0]))) is None:
            return
        unread = self._unread.get(partner, 0) if self._is_behind(partner) else 0
        if unread <= _MOST_NOTES_BYTES:
            self._send(partner, wire.Note(task[1], 0, body).encode())
        elif self._unread[partner] <= _MOST_NOTES_BYTES + len(body):
            logger.warning("client %s does not take what its tasks tell; further notes are dropped", task[0])
        self._unread[partner] = unread + len(body)

    def _tell_watchers(self, client: str, results: Results) -> None:
        for number in range(results.base, results.base + results.tasks):
            for partner, request in self._watchers.pop((client, number), ()):
                self._answer(partner, request, client, number)

    def fetch(self, partner: int, request: int, client: str, number: int, *, unsettled: bool) -> None:
        """Answer a partner's request for the outcome of a task, now or when it is settled."""
        if unsettled:
            self._watchers.setdefault((client, number), []).append((partner, request))
        else:
            self._answer(partner, request, client, number)

    def _answer(self, partner: int, request: int, client: str, number: int) -> None:
        self.expire(time.monotonic())
        entry = self._archive.find(client, number)
        if entry is None:
            text = (
                f"the result of task {client}-{number} is not kept (any more): results are kept for "
                f"{self._keep_seconds:g} s, large ones only until they are read; or there was no such task"
            )
            self._send(partner, lost_results(request, text, error="ResultExpired").encode())
            return
        found = _one_of(entry.content, number, request)
        self._send(partner, found.encode())
        if any(map(is_reference, found.buffers)):
            self._archive.remove(entry)  # its reader frees the segments

    def expire(self, now: float) -> None:
        """Drop what is over."""
        self._free(self._archive.expire(now))

    def deadline(self) -> float | None:
        """Return when something will be over, None if never."""
        return self._archive.deadline()

    def _free(self, entries: Iterable[Entry[Results]]) -> None:
        for entry in entries:
            self._reader.release(entry.content.buffers)


def _shared_bytes(buffer: Buffer) -> int:
    return int(json.loads(bytes(buffer))["bytes"]) if is_reference(buffer) else 0


def _one_of(results: Results, number: int, request: int) -> Results:
    """Return the outcome of one task, numbered as it was asked for."""
    ends, index = wire.offsets(results.sizes, results.tasks), number - results.base
    body = memoryview(results.body)[ends[index] : ends[index + 1]]
    return Results(request, 1, wire.lengths([body]), bytes((results.statuses[index],)), body, results.buffers)
