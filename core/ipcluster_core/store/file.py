"""A store in a folder: works on NFS, takes no locks, leaves no lock files.

A document is a folder that holds one file, named by a number that each change counts up::

    <root>/records/<key>/<number>     {"token": ..., "past": [...], "value": {...}}

A change writes the next number under a private name and link(2)s it to its place, both in the folder that it has
opened. The link is the commit: it fails if that number exists. The winner then removes lower numbers; readers take
the highest. A delete commits a value of null, and then moves the folder away as a whole.

A writer so slow that its next number was already made *and* removed, or whose folder was moved away, would succeed
wrongly. So each looks again: what is there now must be its own or name its token among the past ones; otherwise it
takes its own back and reports the conflict.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import StoreConflict, StoreError
from .base import Document, Kind, check_key

__all__ = ["FileStore"]

#: How many earlier writers' tokens a file names; a writer more than so many changes late sees a conflict.
_PAST = 32

_TOKEN_BITS = 64

#: How often a create begins again when the folder is removed under its hands.
_TRIES = 100

_FOLDERS: dict[Kind, str] = {"record": "records", "secret": "secrets"}


@dataclass(frozen=True, slots=True)
class _File:
    """What stands under a number; `value` is None in a deleted document."""

    number: int
    token: str
    past: tuple[str, ...]
    value: Mapping[str, Any] | None

    @property
    def version(self) -> int:
        """Tells it apart from all others of that key, also from those before a delete, whose numbers come again."""
        return self.number << _TOKEN_BITS | int(self.token, 16)

    def encode(self) -> bytes:
        value = None if self.value is None else dict(self.value)
        return json.dumps({"token": self.token, "past": self.past, "value": value}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, number: int, content: Mapping[str, Any]) -> _File:
        value = content["value"]
        if not isinstance(value, dict | None):
            raise TypeError(f"value is a {type(value).__name__}")
        int(content["token"], 16)
        return cls(number, content["token"], tuple(content["past"]), value)


class _Vanished(StoreConflict):
    """The document's folder was removed before anything was written into it."""


class FileStore:
    """See `Store` for the contract. Folders are made 0700 and files 0600, whatever the umask."""

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """URL that opens this store from any process that sees the folder."""
        return f"file:{self._root}"

    def read(self, kind: Kind, key: str) -> Document | None:
        """Return the current document or None."""
        found = self._current(self._folder(kind, key))
        return None if found is None or found.value is None else Document(found.value, found.version)

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none; StoreConflict where there is one."""
        folder = self._folder(kind, key)
        for _ in range(_TRIES):
            self._make(folder)
            with contextlib.suppress(_Vanished), self._open(folder) as fd:
                # A delete that was cut short leaves its last number: count on from there.
                last = self._last(fd, folder)
                if last is not None and last.value is not None:
                    raise StoreConflict(f"{kind} {key!r} in {self.url} exists already")
                return self._commit(folder, fd, last, value)
        raise StoreError(f"store {self.url}: {folder} cannot be made, or is removed again and again")

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version; StoreConflict if it changed."""
        return self._swap(kind, key, value, version)

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version; StoreConflict if it changed."""
        # A value of null wins over any swap of this version; then nothing of the document is needed.
        deleted = self._swap(kind, key, None, version)
        self._bury(self._folder(kind, key), deleted.version)

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted."""
        try:
            names = os.listdir(os.path.join(self._root, _FOLDERS[kind]))
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            raise self._unreachable(error) from error
        return iter(sorted(name for name in names if not name.startswith(".") and self._exists(kind, name)))

    def run_folder(self, uid: str) -> str:
        """Return the folder for an incarnation's sockets and logs, in the store itself."""
        return os.path.join(self._root, "run", uid)

    def _folder(self, kind: Kind, key: str) -> str:
        return os.path.join(self._root, _FOLDERS[kind], check_key(key))

    def _exists(self, kind: Kind, key: str) -> bool:
        try:
            return self.read(kind, key) is not None
        except StoreError:
            return True  # damaged, and there

    # reading

    @contextlib.contextmanager
    def _open(self, folder: str) -> Iterator[int]:
        """Give a descriptor of a folder: what is done by it is done in that folder, even when it was moved away."""
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _Vanished(f"{folder} is not there") from error
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            yield fd
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            os.close(fd)

    def _current(self, folder: str) -> _File | None:
        try:
            with self._open(folder) as fd:
                return self._last(fd, folder)
        except _Vanished:
            return None

    def _last(self, fd: int, folder: str) -> _File | None:
        while True:
            numbers = _numbers(fd)
            if not numbers:
                return None
            try:
                with open(str(numbers[-1]), "rb", opener=_in(fd)) as file:
                    content = json.loads(file.read())
            except FileNotFoundError:
                continue  # a higher number has just replaced it
            except ValueError as error:
                raise StoreError(f"{folder}/{numbers[-1]} is not JSON: {error}") from error
            try:
                return _File.decode(numbers[-1], content)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreError(f"{folder}/{numbers[-1]} is not a document of this store: {error!r}") from error

    # writing

    def _swap(self, kind: Kind, key: str, value: Mapping[str, Any] | None, version: int) -> Document:
        folder = self._folder(kind, key)
        with self._open(folder) as fd:
            last = self._last(fd, folder)
            if last is None or last.value is None or last.version != version:
                raise StoreConflict(f"{kind} {key!r} in {self.url} is no longer at version {version}")
            return self._commit(folder, fd, last, value)

    def _commit(self, folder: str, fd: int, last: _File | None, value: Mapping[str, Any] | None) -> Document:
        """Put a value after the last one in a folder."""
        number = 1 if last is None else last.number + 1
        past = () if last is None else (last.token, *last.past)[:_PAST]
        made = _File(number, secrets.token_hex(_TOKEN_BITS // 8), past, value)
        private = f".{made.token}"
        try:
            self._write(fd, private, made.encode())
            self._link(fd, private, str(number))
        except FileExistsError as error:
            raise StoreConflict(f"{folder} was changed by somebody else") from error
        except FileNotFoundError as error:
            raise _Vanished(f"{folder} was removed by somebody else") from error
        finally:
            _remove(fd, private)
        now = self._current(folder)
        if now is None or made.token not in (now.token, *now.past):
            _remove(fd, str(number))
            raise StoreConflict(f"{folder} had been changed by somebody else")
        for older in _numbers(fd):
            if older < number:
                _remove(fd, str(older))
        return Document(value or {}, made.version)

    @staticmethod
    def _write(fd: int, name: str, content: bytes) -> None:
        with open(name, "xb", opener=_in(fd)) as file:
            os.fchmod(file.fileno(), 0o600)  # the umask cannot add to 0600, but it can take away
            file.write(content)

    @staticmethod
    def _link(fd: int, private: str, name: str) -> None:
        try:
            os.link(private, name, src_dir_fd=fd, dst_dir_fd=fd)
        except FileExistsError:
            # NFS may have made the link and lost the answer; then the file has two names (open(2), O_EXCL).
            if os.stat(private, dir_fd=fd).st_nlink != 2:
                raise

    def _bury(self, folder: str, version: int) -> None:
        """Remove the folder of a deleted document, unless somebody has made a new one in it."""
        number = version >> _TOKEN_BITS
        grave = os.path.join(os.path.dirname(folder), f".{secrets.token_hex(8)}")
        # Whatever goes wrong here, the document is deleted; a folder that is left is used by the next create.
        with contextlib.suppress(StoreError), self._open(folder) as fd:
            if _numbers(fd)[-1:] != [number]:
                return
            os.rename(folder, grave)
            if _numbers(fd)[-1:] != [number]:  # between the look and the move
                os.rename(grave, folder)
                return
            shutil.rmtree(grave, ignore_errors=True)

    def _make(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        try:
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                    os.chmod(path, 0o700)  # as for files
        except FileNotFoundError:
            return  # somebody removes it just now: whoever opens it finds out
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> StoreError:
        return StoreError(f"store {self.url}: {error.strerror} ({error.filename})")


def _in(fd: int) -> Callable[[str, int], int]:
    """Return an opener of files in an open folder."""
    return lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=fd)


def _numbers(fd: int) -> list[int]:
    """Return the numbers in an open folder, sorted. A listing during which it changed is made again."""
    while True:
        before = os.stat(fd).st_mtime_ns
        names = os.listdir(fd)
        if os.stat(fd).st_mtime_ns == before:
            return sorted(int(name) for name in names if name.isdigit())


def _remove(fd: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)
