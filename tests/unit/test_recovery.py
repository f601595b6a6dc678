"""What a dead engine had finished and not told."""

from __future__ import annotations

import json

from ipcluster_core.recovery import recovered
from ipcluster_core.wire import Status


def test_what_is_settled_or_of_an_unknown_chunk_is_left_out() -> None:
    """The rest comes as the engine would have sent it; what was too large is lost, and says so."""
    chunks = [
        {"chunk": 4, "begun": 2, "finished": [(0, 2), (0, 3)]},
        {"chunk": 5, "begun": 4, "finished": [(0, 1), (1, 2), (0, -1)]},
    ]
    settled = {(7, 5): 1}
    found = list(recovered(7, chunks, b"aabbbcdd", lambda engine, chunk: settled.get((engine, chunk))))

    assert [(done.chunk, done.first, bytes(done.statuses)) for done in found] == [
        (5, 1, bytes((Status.ERROR,))),
        (5, 2, bytes((Status.LOST,))),
    ]
    assert found[0].body == b"dd"
    assert "too large to be saved" in json.loads(bytes(found[1].body))["message"]
