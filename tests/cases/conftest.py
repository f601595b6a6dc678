"""What holds after every case: nothing but ended records in the store. The rest of "clean" is the leak check's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import steps


@pytest.fixture(autouse=True)
def only_ended_records(store_url: str) -> Iterator[None]:
    """Fail a case that leaves a secret, a folder or a cluster that has not ended in its store."""
    yield
    # A case may have changed it, and the user's own store is none of a case's business.
    os.environ["IPCLUSTER_STORE"] = store_url
    left = steps.left_in_store()
    assert [path for path in left if not path.startswith("records/")] == []
    assert {str(steps.record_of(path.partition("/")[2]).state) for path in left} <= {"ended"}
