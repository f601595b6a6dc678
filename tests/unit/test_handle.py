"""What passes between steps."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from ipcluster_core import ClusterHandle

PLAIN: dict[str, Any] = {
    "schema": 1,
    "name": "nightly",
    "incarnation": 3,
    "uid": "c0ffee",
    "store": "file:/state/ipcluster",
    "backend": "native",
    "launcher": "local",
    "created": "2026-03-01T12:00:00Z",
}


def test_handle_is_plain_data_in_a_fixed_shape() -> None:
    """As a dict and as JSON, under the documented names and no others."""
    handle = ClusterHandle.model_validate(PLAIN)

    assert handle.model_dump() == PLAIN
    assert json.loads(handle.model_dump_json()) == PLAIN


@pytest.mark.parametrize(
    "send",
    [
        lambda handle: ClusterHandle.model_validate(handle.model_dump()),
        lambda handle: ClusterHandle.model_validate_json(handle.model_dump_json()),
        lambda handle: pickle.loads(pickle.dumps(handle)),
        copy.deepcopy,
    ],
    ids=["dict", "json", "pickle", "copy"],
)
def test_handle_is_equal_after_any_way_between_steps(send: Callable[[ClusterHandle], ClusterHandle]) -> None:
    """And hashable, so that it may be a key."""
    handle = ClusterHandle.model_validate(PLAIN)

    assert send(handle) == handle
    assert {handle: 1}[send(handle)] == 1


def test_text_of_a_handle_is_the_name() -> None:
    """That is what a message needs."""
    assert str(ClusterHandle.model_validate(PLAIN)) == f"{ClusterHandle.model_validate(PLAIN)}" == "nightly"


def test_schema_may_be_left_out() -> None:
    """Whoever makes a handle in code makes one of this version."""
    handle = ClusterHandle(**{key: value for key, value in PLAIN.items() if key != "schema"})

    assert handle.model_dump() == PLAIN


@pytest.mark.parametrize("schema", [2, 0, "two", None])
def test_handle_of_another_schema_is_refused(schema: object) -> None:
    """It says what this version reads."""
    with pytest.raises(ValidationError, match=rf"a handle of schema {schema!r} cannot be read .*: it reads 1"):
        ClusterHandle.model_validate({**PLAIN, "schema": schema})


@pytest.mark.parametrize(
    ("change", "text"),
    [({"name": None}, "name"), ({"incarnation": "third"}, "incarnation"), ({"secret": "k"}, "secret")],
)
def test_what_is_no_handle_is_refused(change: dict[str, object], text: str) -> None:
    """Wrong types, and anything more than a handle holds: no secret gets in by mistake."""
    with pytest.raises(ValidationError, match=text):
        ClusterHandle.model_validate({**PLAIN, **change})


def test_handle_cannot_be_changed() -> None:
    """Steps share it."""
    handle = ClusterHandle.model_validate(PLAIN)

    with pytest.raises(ValidationError, match="frozen"):
        handle.name = "another"
