"""Values that are sent once and used by many tasks: what stands for them, and the engine's table of them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ["Ref", "collecting", "forget", "keep"]

T = TypeVar("T")

_local = threading.local()

#: What this engine was sent: pickle and buffers, and from its first use on the value itself.
_table: dict[bytes, _Kept] = {}


class Ref(Generic[T]):
    """Stands for a value that `Client.put` has sent, as an argument of tasks of that client.

    The task gets the value itself. An engine has it once: tasks that change it change it for those that come after. It
    is given up when the last reference to this object is gone, and no task needs it any more.
    """

    __slots__ = ("__weakref__", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        used: set[bytes] | None = getattr(_local, "used", None)
        if used is None:
            raise TypeError("a Ref can only be an argument of a task, submitted by the client that has put the value")
        used.add(self.key)
        return _find, (self.key,)

    def __repr__(self) -> str:
        return f"<Ref {self.key.hex()[:8]}>"


@contextmanager
def collecting(used: set[bytes]) -> Generator[None]:
    """Allow refs to be pickled in this thread, and collect their keys."""
    _local.used = used
    try:
        yield
    finally:
        del _local.used


class _Kept:
    """A value on an engine."""

    def __init__(self, blob: bytes, buffers: Sequence[Any]) -> None:
        self._blob: bytes | None = blob
        self._buffers = buffers
        self._value: Any = None

    def get(self) -> Any:  # noqa: ANN401 - any value
        """Return the value; it is made when it is first needed, so that what fails then is that task's error."""
        if self._blob is not None:
            self._value = pickle.loads(self._blob, buffers=self._buffers)
            self._blob, self._buffers = None, ()
        return self._value


def keep(key: bytes, blob: bytes, buffers: Sequence[Any]) -> None:
    """Put a value into this engine's table."""
    _table[key] = _Kept(blob, buffers)


def forget(key: bytes) -> None:
    """Take a value out of this engine's table."""
    _table.pop(key, None)


def _find(key: bytes) -> Any:  # noqa: ANN401 - any value
    return _table[key].get()
