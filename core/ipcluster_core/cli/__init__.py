"""``ipclusterctl``: create, find, use, end and cure clusters by name from a shell.

Exit codes: 0 done, 1 failed, 2 usage, 3 no such cluster, 4 refused because it is in use, 5 something was left over,
130 interrupted. Results go to standard output, progress and errors to standard error.

A verb is a function in `single` (one cluster) or `many`, and its arguments in the table in `program`. What a verb
needs of the package it imports itself, so that the command starts fast.
"""

from __future__ import annotations

from .output import Exit
from .program import main

__all__ = ["Exit", "main"]
