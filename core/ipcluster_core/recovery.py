"""What a dead engine had finished and not told, as its nanny read it from the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import wire
from .wire import Status

__all__ = ["recovered"]


def recovered(
    engine: int, chunks: Sequence[Mapping[str, Any]], blob: bytes, settled: Callable[[int, int], int | None]
) -> Iterator[wire.Done]:
    """Yield the outcomes of tasks that are not settled yet.

    Parameters
    ----------
    engine
        Its id.
    chunks
        By chunk, status and size of what it had finished; a negative size for what was too large to be saved.
    blob
        The payloads, one behind the other.
    settled
        Tells how many tasks of an engine's chunk are settled; None when it holds no such chunk.

    Yields
    ------
    wire.Done
        As the engine would have sent it, one task each.
    """
    text = f"engine {engine} died right after this task had finished; its result was too large to be saved"
    unsaved = json.dumps({"message": text, "engine": engine}).encode()
    start = 0
    for chunk in chunks:
        number = int(chunk["chunk"])
        known = settled(engine, number)
        for index, (status, size) in enumerate(chunk["finished"]):
            payload = blob[start : start + size] if size >= 0 else unsaved
            start += max(0, size)
            if known is not None and index >= known:
                outcome = bytes((status if size >= 0 else Status.LOST,))
                yield wire.Done(number, index, 1, -1, wire.lengths([payload]), outcome, payload)
