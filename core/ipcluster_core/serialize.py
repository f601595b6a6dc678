"""Python objects to bytes and back.

Plain data and functions of installed packages go through pickle, which is quick. What names other things (classes,
functions) goes through cloudpickle, with the modules of the user's project shipped by value: the engines need not
have them, and one that was edited runs as it is now in the next step. cloudpickle is imported when it is first needed.
Large buffers (arrays) travel beside the pickle.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any

from .errors import RemoteTraceback, TaskError
from .refs import collecting

__all__ = [
    "dump",
    "dump_call",
    "dump_exception",
    "dump_function",
    "dump_whole",
    "load",
    "load_exception",
]

#: Buffers of at least so many bytes travel out of band.
LARGE_BYTES = 64 * 1024

#: Longest message and traceback text that an exception carries, in characters.
_LONGEST_TEXT = 20_000

#: Largest pickled exception that is carried as an object.
_LARGEST_EXCEPTION = 1 << 20

#: How pickle begins the text of its error about a module that does not have a name.
_NO_ATTRIBUTE = "Can't get attribute"

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})

#: Opcode STACK_GLOBAL: a pickle without it names no class or function.
_NAMES_SOMETHING = b"\x93"

#: Packages of ours: on the engines anyway, even when installed in editable mode.
_OURS = frozenset({"ipcluster_core", "prefect_ipcluster", "airflow_ipcluster"})

_STDLIB = os.path.dirname(os.__file__) + os.sep

#: What `functools.lru_cache` and `functools.cache` make; it has no public name.
_LRU_CACHE = type(functools.cache(lambda: None))

# Reentrant: pickling an object may pickle others. A fork must not copy it while another thread holds it.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _is_project_module(name: str, module: ModuleType | None) -> bool:
    """Tell whether a module is the user's own: not built in, not of the standard library, not installed."""
    if name == "__main__":  # also that of an installed program: an engine has another one
        return True
    file = getattr(module, "__file__", None)
    if file is None or name.partition(".")[0] in _OURS:
        return False
    return not (file.startswith(_STDLIB) or "site-packages" in file or "dist-packages" in file)


#: Modules that are none of the user's. There are thousands in a workflow engine, and they are looked at once.
_foreign: dict[str, ModuleType] = {}


def _project_modules() -> list[ModuleType]:
    """Return the modules of this process that are the user's own, but for the one that runs as a program."""
    mine = []
    for name, module in list(sys.modules.items()):
        if _foreign.get(name) is module or name == "__main__":
            continue
        if not isinstance(module, ModuleType) or module.__name__ != name:
            continue
        if _is_project_module(name, module):
            mine.append(module)
        else:
            _foreign[name] = module
    return mine


@contextmanager
def _by_value() -> Generator[None]:
    """Have cloudpickle ship the project's modules by value; its settings are restored."""
    import cloudpickle

    with _lock:
        before = cloudpickle.list_registry_pickle_by_value()
        mine = [module for module in _project_modules() if module.__name__ not in before]
        for module in mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


class _Cached:
    """A function with a cache, as `functools.lru_cache` makes it, that can travel by value; its cache does not.

    It is made empty and filled afterwards, because the function may refer to it.
    """

    def __setstate__(self, state: tuple[Callable[..., Any], dict[str, Any]]) -> None:
        function, parameters = state
        self._call = functools.lru_cache(**parameters)(function)
        self.cache_info, self.cache_clear = self._call.cache_info, self._call.cache_clear
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function has
        return self._call(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401 - as a function has it
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Cached, (), (self._call.__wrapped__, self._call.cache_parameters())


@functools.cache
def _pickler() -> Any:  # noqa: ANN401 - cloudpickle has no types
    """Return cloudpickle's pickler, taught what it would send by name although its module is not on the engines."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as in the base class
            if isinstance(obj, _LRU_CACHE):
                name = str(obj.__module__)
                if _is_project_module(name, sys.modules.get(name)):
                    return _Cached, (), (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    return Pickler


def _dump_by_value(value: object, out_of_band: Callable[[pickle.PickleBuffer], bool] | None) -> bytes:
    with _by_value(), io.BytesIO() as file:
        _pickler()(file, protocol=5, buffer_callback=out_of_band).dump(value)
        return file.getvalue()


def dump(value: object, buffers: list[memoryview]) -> bytes:
    """Pickle a value; large buffers in it are appended to `buffers` instead of being copied.

    Returns
    -------
    bytes
        The pickle.

    Raises
    ------
    Exception
        Whatever pickling the value raises.
    """
    kind, before = type(value), len(buffers)
    if kind in _PLAIN:
        return pickle.dumps(value, 5)

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    try:
        data = pickle.dumps(value, 5, buffer_callback=out_of_band)
    except Exception:  # noqa: BLE001 - pickle raises anything; cloudpickle's error is the one worth showing
        data = None
    if data is not None and _NAMES_SOMETHING not in data:
        return data
    del buffers[before:]
    return _dump_by_value(value, out_of_band)


def dump_whole(value: object) -> bytes:
    """Pickle a value with all that is in it, however large; `load` needs no buffers."""
    buffers: list[memoryview] = []
    data = dump(value, buffers)
    return data if not buffers else _dump_by_value(value, None)


def load(data: bytes | bytearray | memoryview, buffers: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - anything it is
    """Unpickle a value. Call it only with data of an authenticated partner."""
    return pickle.loads(data, buffers=buffers)


def dump_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], buffers: list[memoryview], used: set[bytes]) -> bytes:
    """Pickle the arguments of one call, see `dump`; the keys of refs among them are added to `used`."""
    if not kwargs and all(type(value) in _PLAIN for value in args):
        return pickle.dumps((args, None), 5)
    with collecting(used):
        return dump((args, dict(kwargs) or None), buffers)


def dump_function(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """Pickle a function; return its hash (16 bytes) and its pickle.

    A function of the user's project, a lambda or a closure is pickled by value, any other by name.

    Returns
    -------
    tuple
        Hash and pickle.
    """
    name = getattr(function, "__module__", None) or "__main__"
    data = None
    if name in sys.modules and not _is_project_module(name, sys.modules[name]):
        try:
            data = pickle.dumps(function, 5)
        except Exception:  # noqa: BLE001 - no name to find it by: a lambda, a closure; it goes by value
            data = None
    # A partial or a bound method may hold things of the project although its own type is installed.
    holds = getattr(function, "__self__", None)
    if data is None or not hasattr(function, "__qualname__") or not isinstance(holds, ModuleType | None):
        data = _dump_by_value(function, None)
    return _hash(data), data


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _describe(error: BaseException) -> tuple[str, str]:
    try:
        message = str(error)
    except Exception as second:  # noqa: BLE001 - a user's __str__ may raise anything
        message = f"<its text cannot be had: {type(second).__name__}>"
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - formatting calls the same __str__
        text = "".join(traceback.format_tb(error.__traceback__))
    return _cut(message), _cut(text)


def _explain_import(error: BaseException) -> None:
    """Add to an error of an import, or of a name that a module here does not have, where this is and how to mend it.

    An ImportError that user code raises with a text of its own is left alone.
    """
    if type(error) in (ImportError, ModuleNotFoundError) and getattr(error, "name", None):
        what = f"module {getattr(error, 'name', None)!r} could not be imported"
    elif type(error) is AttributeError and str(error).startswith(_NO_ATTRIBUTE):
        what = "a module does not have the name by which the task refers to it"
    else:
        return
    engine = os.environ.get("IPCLUSTER_ENGINE")
    where = "this process" if engine is None else f"engine {engine}"
    text = (
        f"{error}\n"
        f"{what} on {where}:\n"
        f"  Python {sys.version.split()[0]} ({sys.executable})\n"
        f"  working folder {_working_folder()}\n"
        f"  sys.path {os.pathsep.join(sys.path)}\n"
        "To mend it: install it for that interpreter; or create the cluster with python= (an interpreter that has it) "
        "or cwd= (the folder where it is); or keep the module in the project's own folder, whose modules travel with "
        "the task. After installing or changing a package, restart the engines: they keep what they have imported."
    )
    error.args = (text,)
    if isinstance(error, ImportError):
        error.msg = text


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        return f"unknown ({error.strerror})"


def dump_exception(error: BaseException) -> bytes:
    """Pickle an exception so that it arrives whatever it is; one of an import says where it was and how to mend it.

    The object travels only if it was rebuilt here from its pickle; type name, message and traceback always do.

    Returns
    -------
    bytes
        What `load_exception` reads.
    """
    _explain_import(error)
    message, text = _describe(error)
    kind = type(error)
    rebuilt: bytes | None = None
    try:
        buffers: list[memoryview] = []
        rebuilt = dump(error, buffers)
        if buffers or len(rebuilt) > _LARGEST_EXCEPTION or type(load(rebuilt)) is not kind:
            rebuilt = None
    except Exception:  # noqa: BLE001 - anything at all may go wrong in a user's exception; then the text is sent
        rebuilt = None
    return pickle.dumps((rebuilt, f"{kind.__module__}.{kind.__qualname__}", message, text), 5)


def load_exception(data: bytes | bytearray | memoryview) -> BaseException:
    """Rebuild what `dump_exception` made; the engine's traceback is its ``__cause__``."""
    rebuilt, name, message, text = pickle.loads(data)
    error: BaseException | None = None
    if rebuilt is not None:
        try:
            error = pickle.loads(rebuilt)
        except Exception:  # noqa: BLE001 - its module may be known to the engines only
            error = None
    if not isinstance(error, BaseException):
        error = TaskError(f"{name}: {message}", name)
    # Past the class's own __setattr__, which may refuse (a frozen dataclass does).
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(text))
    return error
