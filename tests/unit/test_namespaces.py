"""What an engine keeps by name, and what it says of a name that it does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipcluster_core import errors, namespace
from ipcluster_core.namespaces import Namespace

STARTED = "2026-07-01T12:00:00Z"


def engine(folder: Path, incarnation: int = 0) -> Namespace:
    """Return the namespace of one life of engine 3."""
    return Namespace(str(folder / "names-3"), 3, incarnation, STARTED)


def test_it_is_a_mapping(tmp_path: Path) -> None:
    """Values are kept as they are, by any name."""
    mine, array = engine(tmp_path), [1, 2]
    mine.update(x=array, y=2)
    mine["a\nb"] = 3
    del mine["y"]

    assert mine["x"] is array
    assert dict(mine) == {"x": [1, 2], "a\nb": 3}
    assert (mine.get("y", 5), mine.pop("y", 6), mine.setdefault("z", 7), "y" in mine) == (5, 6, 7, False)
    assert repr(mine) == "<Namespace of engine 3: a\nb, x, z>"


def test_a_name_never_pushed_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    """So that a slip of the pen is seen; to Python it is a KeyError."""
    mine = engine(tmp_path)
    with pytest.raises(errors.NotHeld, match=r"^engine 3 has no 'y'; it has: nothing$"):
        mine["y"]
    mine.update(z=1, x=2)
    with pytest.raises(KeyError) as caught:
        mine["y"]

    assert type(caught.value) is errors.NotHeld
    assert str(caught.value) == "engine 3 has no 'y'; it has: x, z"


def test_a_name_that_an_earlier_life_held_is_told_to_be_lost(tmp_path: Path) -> None:
    """When, and what to do; one that was deleted is not, and one that is pushed again is there."""
    first = engine(tmp_path)
    first.update(x=1, y=2, z=3)
    del first["y"]
    second = engine(tmp_path, 1)
    second["z"] = 4
    third = engine(tmp_path, 2)

    text = (
        "engine 3 was started anew at 2026-07-01T12:00:00Z (incarnation 2): the 'x' that it held is gone; push it again"
    )
    with pytest.raises(errors.StateLost) as caught:
        third["x"]
    assert str(caught.value) == text
    with pytest.raises(errors.StateLost, match="'z'"):
        third["z"]
    with pytest.raises(errors.NotHeld) as never:
        third["y"]
    assert type(never.value) is errors.NotHeld
    third["x"] = 5
    assert third["x"] == 5


def test_deleting_what_is_lost_says_so(tmp_path: Path) -> None:
    """As using it does."""
    engine(tmp_path)["x"] = 1

    with pytest.raises(errors.StateLost):
        del engine(tmp_path, 1)["x"]


def test_names_are_strings(tmp_path: Path) -> None:
    """A number is a slip."""
    with pytest.raises(TypeError, match="a name is a string, not 5"):
        engine(tmp_path)[5] = 1  # type: ignore[index]


def test_a_fork_of_a_task_has_a_copy_of_its_own(tmp_path: Path) -> None:
    """What it puts there is not the engine's, and not noted as such."""
    mine = engine(tmp_path)
    pid = os.fork()
    if pid == 0:
        mine["x"] = 1
        os._exit(0)
    os.waitpid(pid, 0)

    assert "x" not in mine
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_nobody_a_task(tmp_path: Path) -> None:
    """Where the names cannot be noted, values are kept all the same."""
    mine = engine(tmp_path / "nowhere")
    mine["x"] = 1

    assert mine["x"] == 1


def test_elsewhere_there_is_none() -> None:
    """With what to use instead."""
    with pytest.raises(RuntimeError, match=r"for code that runs on an engine: use Client\.push and Client\.pull"):
        namespace()


def test_names_that_cannot_be_read_are_as_none(tmp_path: Path) -> None:
    """User code may have scribbled there."""
    (tmp_path / "names-3").write_text("{")

    with pytest.raises(errors.NotHeld, match="engine 3 has no 'x'; it has: nothing"):
        engine(tmp_path)["x"]
