"""Objects to bytes and back: plain data quickly, the user's own code by value, exceptions whatever they are."""

from __future__ import annotations

import functools
import importlib
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest

import steps
from ipcluster_core import errors, serialize
from ipcluster_core.serialize import (
    LARGE_BYTES,
    dump,
    dump_call,
    dump_exception,
    dump_function,
    load,
    load_exception,
)

#: What an engine does, that has nothing of the project: load a pickle and, if it is a function, call it.
ENGINE = """
    import sys
    from pathlib import Path
    from ipcluster_core.serialize import load

    value = load(Path(sys.argv[1]).read_bytes())
    print(value(2) if callable(value) else value)
"""

PROJECT = """
    import dataclasses
    import project_part

    FACTOR = 10

    @dataclasses.dataclass
    class Point:
        x: int

    def scaled(x):
        return project_part.more(x * FACTOR)

    class ProjectError(Exception):
        def __init__(self, x, *, y=0):
            super().__init__(x)
            self.y = y
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's project, which uses another one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "user_project.py").write_text(textwrap.dedent(PROJECT))
    (folder / "project_part.py").write_text("def more(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("user_project")
    for name in ("user_project", "project_part"):
        sys.modules.pop(name, None)


def on_engine(data: bytes, tmp_path: Path) -> str:
    """Return what a process that knows nothing of the project makes of a pickle."""
    path = tmp_path / "pickle"
    path.write_bytes(data)
    return steps.run_step(ENGINE, str(path))


def there_and_back(value: object) -> object:
    """Return what arrives of a value."""
    buffers: list[memoryview] = []
    data = dump(value, buffers)
    return load(data, buffers)


def over_there(error: BaseException) -> BaseException:
    """Return what arrives of an exception that was raised."""

    def fail() -> None:
        raise error

    try:
        fail()
    except BaseException as raised:  # noqa: BLE001 - any
        return load_exception(dump_exception(raised))
    raise AssertionError("it was not raised")


# values


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1 << 100,
        -0.5,
        "ä\0\ud800",
        b"\x93",
        [1, (2, {"three": {4}})],
        math.sqrt,
        dict,
        pytest,
        datetime(2013, 1, 1, tzinfo=UTC),
    ],
    ids=repr,
)
def test_a_value_arrives(value: object) -> None:
    """Plain data, and names of installed things."""
    found = there_and_back(value)

    assert type(found) is type(value)
    assert found == value


def test_a_small_buffer_travels_in_the_pickle_and_a_large_one_beside_it() -> None:
    """The border is `LARGE_BYTES`; nothing is copied on the way out."""
    small, large = bytearray(LARGE_BYTES - 1), bytearray(LARGE_BYTES)
    buffers: list[memoryview] = []
    data = dump([pickle.PickleBuffer(small), pickle.PickleBuffer(large)], buffers)
    large[0] = 7

    assert [buffer.nbytes for buffer in buffers] == [LARGE_BYTES]
    assert buffers[0][0] == 7
    assert LARGE_BYTES < len(data) < LARGE_BYTES + 200
    assert load(data, buffers) == [small, large]


@pytest.mark.parametrize("array", [np.arange(20_000.0), np.ones((300, 200), order="F"), np.arange(50_000)[::2]])
def test_an_array_arrives_equal(array: np.ndarray[Any, Any]) -> None:
    """Whatever its order in memory; a contiguous one travels beside the pickle."""
    buffers: list[memoryview] = []
    data = dump({"array": array}, buffers)
    found = load(data, buffers)["array"]

    assert np.array_equal(found, array)
    assert found.dtype == array.dtype
    assert len(data) < 1000 or not (array.flags.c_contiguous or array.flags.f_contiguous)


def test_buffers_of_others_stay_in_the_list(project: ModuleType) -> None:
    """Also when pickling is tried twice: each buffer is there once, behind those that were there before."""
    other = memoryview(b"other")
    buffers = [other]
    dump([np.zeros(LARGE_BYTES), project.Point(1)], buffers)

    assert [buffer.nbytes for buffer in buffers] == [5, 8 * LARGE_BYTES]
    assert buffers[0] is other


def test_what_cannot_be_pickled_raises_the_reason() -> None:
    """It is the one that a user can make something of."""
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        dump([threading.Lock()], [])


def test_an_object_of_the_project_arrives_where_the_project_is_not(project: ModuleType, tmp_path: Path) -> None:
    """Its class travels along."""
    assert on_engine(dump([project.Point(3)], []), tmp_path) == "[Point(x=3)]"


def test_an_object_of_the_project_comes_back_as_the_same_class(project: ModuleType) -> None:
    """So `isinstance` holds in the process that sent it."""
    assert there_and_back(project.Point(3)) == project.Point(3)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, "a", None), {}), (([1],), {"key": {2}}), ((), {"self": 1, "args": 2})]
)
def test_the_arguments_of_a_call_arrive(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """No keywords are None."""
    assert load(dump_call(args, kwargs, [], set())) == (args, kwargs or None)


# functions


def test_a_function_of_the_project_runs_where_the_project_is_not(project: ModuleType, tmp_path: Path) -> None:
    """With the modules of the project that it uses."""
    _, data = dump_function(project.scaled)

    assert on_engine(data, tmp_path) == "21"


@pytest.mark.parametrize(
    "make",
    [functools.partial, lambda f: functools.wraps(math.sqrt)(lambda x: f(x + 0))],
    ids=["partial", "looks installed"],
)
def test_what_holds_a_function_of_the_project_takes_it_along(
    project: ModuleType, tmp_path: Path, make: Callable[[Any], Any]
) -> None:
    """Though what holds it is of an installed module, or has no name."""
    _, data = dump_function(make(project.scaled))

    assert on_engine(data, tmp_path) == "21"


def test_a_method_of_an_object_of_the_project_takes_it_along(project: ModuleType, tmp_path: Path) -> None:
    """The object and its class."""
    _, data = dump_function(project.Point(2).__eq__)

    assert on_engine(data, tmp_path) == "NotImplemented"


@pytest.mark.parametrize("function", [math.sqrt, len, np.linalg.norm, textwrap.dedent])
def test_an_installed_function_travels_by_name(function: Callable[..., Any]) -> None:
    """It is a few bytes, and arrives as itself."""
    _, data = dump_function(function)

    assert len(data) < 100
    assert load(data) is function


def test_a_closure_travels_with_what_it_holds() -> None:
    """And nothing ties it to this one."""
    held = [1]
    _, data = dump_function(lambda x: held + x)
    held.append(2)

    assert load(data)([3]) == [1, 3]


def test_equal_pickles_have_equal_hashes_and_others_others() -> None:
    """So that an engine is sent a function once."""
    one, again, other = dump_function(math.sqrt), dump_function(math.sqrt), dump_function(math.cos)

    assert one == again
    assert one[0] != other[0]
    assert len(one[0]) == 16


def test_a_function_of_a_program_that_is_installed_travels_by_value(tmp_path: Path) -> None:
    """``python -m tool`` runs it as `__main__`, which is another module on an engine."""
    package = tmp_path / "site-packages" / "tool"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        "import sys\n"
        "from ipcluster_core.serialize import dump_function\n"
        "def twice(x):\n    return 2 * x\n"
        "sys.stdout.buffer.write(dump_function(twice)[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tool"], cwd=package.parent, capture_output=True, check=True, timeout=10
    )

    assert on_engine(done.stdout, tmp_path) == "4"


def test_cloudpickle_is_left_as_it_was(project: ModuleType) -> None:
    """What the user has registered stays registered, and nothing else is."""
    cloudpickle.register_pickle_by_value(sys.modules["project_part"])
    try:
        dump_function(project.scaled)
        with pytest.raises(TypeError, match="cannot pickle"):
            dump_function(functools.partial(project.scaled, threading.Lock()))
        left = cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["project_part"])

    assert left == {"project_part"}


def test_modules_that_are_not_the_projects_are_looked_at_once(
    project: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workflow engine has thousands of them, and a map sends hundreds of chunks; those of the project may change."""
    looked: list[str] = []
    judge = serialize._is_project_module

    def counting(name: str, module: ModuleType | None) -> bool:
        looked.append(name)
        return judge(name, module)

    serialize.dump(lambda: None, [])
    monkeypatch.setattr(serialize, "_is_project_module", counting)
    serialize.dump(lambda: None, [])

    assert project.__name__ in looked
    assert not {"os", "cloudpickle", "ipcluster_core.errors"}.intersection(looked)


def test_plain_values_and_installed_functions_do_not_load_cloudpickle() -> None:
    """A step's way to its first result is short."""
    code = """
        import sys, math
        from ipcluster_core.serialize import dump, dump_call, dump_exception, dump_function, load_exception

        dump([1, {"a": b"b"}], [])
        dump_call((1, 2.0), {}, [], set())
        dump_function(math.sqrt)
        print([name for name in ("cloudpickle", "numpy", "pydantic", "asyncio") if name in sys.modules])
    """

    assert steps.run_step(code) == "[]"


# exceptions


class Plain(Exception):
    """An ordinary one."""


class KeywordOnly(Exception):
    """Cannot be rebuilt from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class HoldsLock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Changeling(Exception):
    """Comes out of its pickle as something else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueError, ("changed",)


class Frozen(Exception):
    """Lets nobody set an attribute."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize("error", [Plain("p", 1), KeyError("k"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_exception_arrives_as_the_same_type_with_its_arguments(error: BaseException) -> None:
    """Also one of the project, and one that is no Exception."""
    found = over_there(error)

    assert type(found) is type(error)
    assert found.args == error.args


def test_an_exception_that_lets_nobody_change_it_arrives_with_its_traceback() -> None:
    """Python itself sets its cause and traceback without asking the class."""
    found = load_exception(dump_exception(Frozen(5)))

    assert isinstance(found, Frozen)
    assert found.args == (5,)
    assert "Frozen: 5" in str(found.__cause__)


def test_the_traceback_of_the_engine_is_the_cause() -> None:
    """With the line that raised it."""
    found = over_there(Plain("why"))

    assert isinstance(found.__cause__, errors.RemoteTraceback)
    assert "in fail" in found.__cause__.text
    assert "Plain: why" in str(found.__cause__)


def test_notes_and_attributes_arrive() -> None:
    """What was added to an exception is part of it."""
    error = Plain("why")
    error.add_note("see the manual")
    error.attempts = 3  # type: ignore[attr-defined]
    found = over_there(error)

    assert found.__notes__ == ["see the manual"]
    assert found.attempts == 3  # type: ignore[attr-defined]
    assert "see the manual" in str(found.__cause__)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeywordOnly(code=4), "KeywordOnly: code 4"),
        (HoldsLock(), "HoldsLock: locked"),
        (Changeling("first"), "Changeling: first"),
        (Plain("x" * (1 << 21)), "characters left out"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_that_cannot_travel_arrives_as_a_task_error(error: Exception, text: str) -> None:
    """Its type's name, its text and its traceback do travel, cut to a length that can be read."""
    found = over_there(error)

    assert isinstance(found, errors.TaskError)
    assert text in str(found)
    assert found.type_name.endswith(f".{type(error).__qualname__}")
    assert "in fail" in str(found.__cause__)
    assert len(str(found)) < 25_000


def test_an_exception_whose_text_cannot_be_had_arrives() -> None:
    """And says why it has none."""
    error = Mute()
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    found = over_there(error)

    assert "Mute: <its text cannot be had: RuntimeError>" in str(found)
    assert "in fail" in str(found.__cause__)


def test_an_exception_of_a_module_that_is_not_here_arrives_as_a_task_error(project: ModuleType) -> None:
    """The engines may have packages that this process has not."""
    name = project.__name__
    by_name = pickle.dumps(project.Point(1))
    data = pickle.dumps((by_name, f"{name}.Gone", "it was there", "Traceback"), 5)
    del sys.modules[name]
    sys.path.pop(0)
    found = load_exception(data)

    assert isinstance(found, errors.TaskError)
    assert str(found) == "user_project.Gone: it was there"


def test_an_exception_of_the_project_comes_back_as_the_same_class(project: ModuleType) -> None:
    """So ``except ProjectError`` holds in the process that sent the task."""
    found = over_there(project.ProjectError("x", y=2))

    assert type(found) is project.ProjectError
    assert found.y == 2


def test_a_module_that_is_missing_is_told_with_the_place_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same type, same name; the text says which engine looked where with which interpreter."""
    monkeypatch.setenv("IPCLUSTER_ENGINE", "3")
    error = caught(importlib.import_module, "not_installed_here")
    found = over_there(error)

    assert isinstance(found, ModuleNotFoundError)
    assert found.name == "not_installed_here"
    text = str(found)
    assert text.startswith(
        "No module named 'not_installed_here'\nmodule 'not_installed_here' could not be imported on engine 3"
    )
    assert f"Python {sys.version.split()[0]} ({sys.executable})" in text
    assert f"working folder {Path.cwd()}\n" in text
    assert f"sys.path {os.pathsep.join(sys.path)}\n" in text
    for cure in ("install it for that interpreter", "python=", "cwd=", "travel with the task", "restart the engines"):
        assert cure in text
    assert text in str(found.__cause__)


def test_a_name_that_an_installed_module_does_not_have_is_told_alike() -> None:
    """Engines may hold an older one."""
    error = caught(load, pickle.dumps(math.sqrt, 5).replace(b"sqrt", b"sqr2"))
    found = over_there(error)

    assert isinstance(found, AttributeError)
    assert "a module does not have the name by which the task refers to it on this process" in str(found)
    assert "After installing or changing a package, restart the engines" in str(found)


@pytest.mark.parametrize("error", [ImportError("pip install it"), AttributeError("x"), ImportWarning("x")], ids=repr)
def test_what_user_code_says_itself_is_left_as_it_is(error: Exception) -> None:
    """Its own text is enough."""
    assert over_there(error).args == error.args


def caught(call: Callable[..., object], *args: object) -> BaseException:
    """Return what a call raises."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - it is what is wanted
        return error
    raise AssertionError(f"{call} raised nothing")
