"""Tables of what tests have measured, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Sequence

#: Lines by title.
made: dict[str, list[str]] = {}


def add(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Add a table, or replace the one of that title."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    made[title] = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
