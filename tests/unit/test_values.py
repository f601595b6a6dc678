"""How long the broker keeps the values that clients have put."""

from __future__ import annotations

import pytest

from ipcluster_core.values import Values


def make() -> Values[str]:
    """Return two values of one client and one of another."""
    values: Values[str] = Values()
    for key, client in ((b"a", "one"), (b"b", "one"), (b"c", "two")):
        values.put(key, client, key.decode() * 3)
    return values


def test_a_value_is_kept_until_it_is_dropped_and_no_task_uses_it() -> None:
    """In either order."""
    values = make()
    values.take([b"a", b"b"])

    assert values.drop([b"a"]) == []
    assert values.give_back([b"a", b"b"]) == [b"a"]
    assert values.drop([b"b"]) == [b"b"]
    assert values.content(b"a") == "aaa"


def test_a_key_that_is_taken_is_refused() -> None:
    """The tasks that use the first value are counted there."""
    values = make()
    values.take([b"a"])
    with pytest.raises(ValueError, match="a value of that key already"):
        values.put(b"a", "two", "other")

    assert values.drop([b"a"]) == []
    assert values.give_back([b"a"]) == [b"a"]


def test_each_work_counts() -> None:
    """The last one out frees it."""
    values = make()
    values.take([b"a"])
    values.take([b"a"])
    values.drop([b"a"])

    assert values.give_back([b"a"]) == []
    assert values.give_back([b"a"]) == [b"a"]


def test_what_is_not_kept_is_missing() -> None:
    """Removed, or never put; dropping it does nothing."""
    values = make()
    values.remove(b"b")

    assert values.missing([b"a", b"b", b"x"]) == [b"b", b"x"]
    assert values.drop([b"b", b"x"]) == []


def test_a_clients_values_are_known() -> None:
    """To drop them when it goes."""
    values = make()

    assert values.of_client("one") == [b"a", b"b"]
    assert values.owner(b"c") == "two"
    assert values.drop(values.of_client("one")) == [b"a", b"b"]
