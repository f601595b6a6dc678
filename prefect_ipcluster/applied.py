"""What a chunk of a map does on its engine. Engines import this module, and no workflow engine with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Apply"]


class Apply:
    """Calls a function for each item of a chunk that is given by columns.

    Parameters
    ----------
    function
        Called with one item of each column.
    keep_errors
        Whether an exception takes the place of its item's result; else it fails the chunk.
    """

    def __init__(self, function: Callable[..., Any], *, keep_errors: bool = False) -> None:
        self._function = function
        self._keep_errors = keep_errors

    def __call__(self, *columns: Sequence[Any]) -> list[Any]:
        """Return the results of a chunk, in its order."""
        if not self._keep_errors:
            return list(map(self._function, *columns))
        return [self._one(*items) for items in zip(*columns, strict=True)]

    def _one(self, *items: Any) -> Any:  # noqa: ANN401 - whatever the function returns
        try:
            return self._function(*items)
        except Exception as error:  # noqa: BLE001 - it is what was asked for in place of a result
            return error
