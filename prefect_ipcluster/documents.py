"""Block documents as the store in Prefect keeps them: their names, and what they hold; pure."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

__all__ = ["Found", "base_of", "checked", "found_from"]


class Found(NamedTuple):
    """A block document of the store, as the API has it."""

    id: str
    number: int
    key: str
    version: int
    past: tuple[int, ...]
    removed: bool
    text: str
    age: float


def checked(key: str) -> str:
    """Return a key that may name a document in every store; ValueError otherwise."""
    if not key or "/" in key or "\0" in key or key.startswith("."):
        raise ValueError(f"{key!r} cannot be a key of a store")
    return key


def base_of(kind: str, key: str) -> str:
    """Return what the names of a key's documents begin with: readable, and of no other key."""
    readable = re.sub(r"[^a-z0-9]+", "-", key.lower())[:60].strip("-")
    return f"{kind}-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:8]}-"


def found_from(one: Mapping[str, Any]) -> Found:
    """Return a document as it was found, also one that somebody has edited; it cannot be read then."""
    data, number = one["data"], one["name"].rpartition("-")[2]
    created = 0.0
    with suppress(ValueError, TypeError):
        created = datetime.fromisoformat(one["created"]).timestamp()
    try:
        known = str(data["key"]), int(data["version"]), tuple(data["past"]), bool(data["removed"]), str(data["value"])
    except (KeyError, TypeError, ValueError):
        known = str(data.get("key", "?")), 0, (), False, "damaged"
    return Found(str(one["id"]), int(number) if number.isdigit() else 0, *known, time.time() - created)
