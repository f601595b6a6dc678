"""What an engine keeps by name between tasks, for whoever comes later: `Client.push`, `Client.pull`, `namespace`.

The values are in the engine's memory, and go with its process. Their names stay: a file for each engine in the
incarnation's folder, from which the next process under that id knows what is gone, and can say so.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Any

from .errors import NotHeld, StateLost

__all__ = ["Namespace", "begin", "namespace"]


class Namespace(MutableMapping[str, Any]):
    """Values of one engine by name.

    Parameters
    ----------
    path
        File of the names; what it holds now, an earlier process of the engine had.
    engine, incarnation
        Which, for messages.
    started
        When this process began, in UTC as it is to be shown.
    """

    def __init__(self, path: str, engine: int, incarnation: int, started: str) -> None:
        self._path = path
        self._engine = engine
        self._incarnation = incarnation
        self._started = started
        self._pid = os.getpid()
        self._values: dict[str, Any] = {}
        self._names: set[str] = set()  # of what it holds, and of what was lost
        # Without it a message is less precise, and the engine works all the same.
        with suppress(OSError, ValueError), open(path) as file:
            self._names.update(json.load(file))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - whatever was put there
        if name in self._values:
            return self._values[name]
        if name in self._names:
            raise StateLost(
                f"engine {self._engine} was started anew at {self._started} (incarnation {self._incarnation}): the "
                f"{name!r} that it held is gone; push it again"
            )
        raise NotHeld(f"engine {self._engine} has no {name!r}; it has: {', '.join(sorted(self._values)) or 'nothing'}")

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - anything
        if not isinstance(name, str):
            raise TypeError(f"a name is a string, not {name!r}")
        self._values[name] = value
        if name not in self._names:
            self._names.add(name)
            self._save()

    def __delitem__(self, name: str) -> None:
        if name not in self._values:
            self[name]  # which says why not
        del self._values[name]
        self._names.discard(name)
        self._save()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Namespace of engine {self._engine}: {', '.join(sorted(self._values)) or 'nothing'}>"

    def _save(self) -> None:
        if os.getpid() != self._pid:
            return  # a child that a task has forked has a copy of its own
        # As a whole: a process that is killed meanwhile leaves the file as it was.
        temporary = f"{self._path}.new"
        with suppress(OSError):  # a full disk costs a message its precision, and nobody a task
            with open(temporary, "w") as file:
                json.dump(sorted(self._names), file)
            os.replace(temporary, self._path)


#: This process's, if it is an engine; and a thread's, if that is one, as in `ipcluster_core.testing`.
_mine: Namespace | None = None
_local = threading.local()


def begin(folder: str, engine: int, incarnation: int, started: str, *, thread: bool = False) -> None:
    """Be an engine with a namespace, as a process or as a thread; see `Namespace`."""
    global _mine  # noqa: PLW0603 - an engine is a process
    made = Namespace(os.path.join(folder, f"names-{engine}"), engine, incarnation, started)
    if thread:
        _local.mine = made
    else:
        _mine = made


def namespace() -> Namespace:
    """Return the values that the engine keeps by name; for code that runs on one.

    What `Client.push` has put there, and `Client.pull` will get: a task may use, change, add and delete them. They are
    kept from task to task, whichever client submits it, also when one is interrupted. They are gone when the engine's
    process is: after a restart, a loss, or a replacement by ``max_tasks`` or ``max_memory_bytes``.

    Returns
    -------
    Namespace
        A mapping. A name that it does not have raises `NotHeld`, or `StateLost` if the engine had it before it was
        started anew; both are KeyErrors.

    Raises
    ------
    RuntimeError
        This process is no engine.
    """
    mine: Namespace | None = getattr(_local, "mine", _mine)
    if mine is None:
        raise RuntimeError("namespace() is for code that runs on an engine: use Client.push and Client.pull elsewhere")
    return mine
