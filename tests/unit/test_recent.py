"""Which functions the other side has."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from ipcluster_core import recent
from ipcluster_core.recent import Recent


@given(wanted=st.lists(st.integers(0, 30).map(lambda n: bytes([n]))), most=st.integers(1, 20))
def test_both_sides_agree_on_what_the_receiver_has(wanted: list[bytes], most: int) -> None:
    """Whatever is used in whatever order: what is not sent again is there, and there is never too much."""
    sender, receiver, cache = Recent(), Recent(), set()
    with patch.object(recent, "MOST", most):
        for key in wanted:
            if key not in sender:
                sender.add(key)
                cache.add(key)
                cache.discard(receiver.add(key))
            assert key in cache
            assert list(sender) == list(receiver)
            assert cache == set(receiver)
            assert len(cache) <= most
