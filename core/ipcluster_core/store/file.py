"""A store in a folder: works on NFS, takes no locks, leaves no lock files.

A document is a file in a folder of its own; both are named by its version::

    <root>/records/<key>/<version>/<version>     the value, as JSON

A version is a random number that never comes again, so the rename(2) of its folder is a compare-and-swap: it fails if
that version is not the current one. Each change is one such rename, of what was written before::

    create   records/.<new>       -> records/<key>          fails if that is there, and not empty
    swap     records/<key>/<old>  -> records/<key>/<new>    the new file stands beside the old one already
    delete   records/<key>/<old>  -> records/.<new>
    discard  records/<key>        -> records/.<new>         whatever it is

What a killed writer leaves beside a document goes with the next change of it. Names with a dot are nobody's but the
writer's that made them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ..errors import StoreConflict, StoreDamaged, StoreError
from .base import Document, Kind, check_key

__all__ = ["FileStore"]

_VERSION_BITS = 64

#: How often a reader looks again for a document that was replaced between its two looks.
_TRIES = 100

#: A writer's private folder that is older than this belongs to one that was killed, in seconds.
_STALE_SECONDS = 60.0

_FOLDERS: dict[Kind, str] = {"record": "records", "secret": "secrets"}

#: What a rename says when somebody else was first.
_TOO_LATE = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})


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
        folder = self._folder(kind, key)
        path = folder
        with self._reaching(folder):
            for _ in range(_TRIES):
                name = _current(folder)
                if name is None:
                    return None
                path = os.path.join(folder, name, name)
                # Not there: it has just been replaced.
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                    return _decode(path, file.read())
        raise StoreDamaged(f"{path} is missing")

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none; StoreConflict where there is one."""
        folder, content, new = self._folder(kind, key), _encode(value), _new_name()
        private = self._private(kind)
        self._sweep(kind)
        with self._reaching():
            if _current(folder) is None and self._place(private, folder, new, content):
                return Document(value, _version(new))
        raise StoreConflict(f"{kind} {key!r} in {self.url} exists already")

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version; StoreConflict if it changed."""
        folder, content, new = self._folder(kind, key), _encode(value), _new_name()
        before, after = os.path.join(folder, _name(version)), os.path.join(folder, new)
        swapped = False
        # No such folder, or it is removed just now: the document has changed.
        with self._reaching(), contextlib.suppress(FileNotFoundError), _opened(before) as fd:
            # Whatever stands here before the change belongs to writers that are too late if this one is not.
            left, others = [new], os.listdir(fd)
            try:
                _write(fd, new, content)
                swapped = self._rename(before, after, after)
                left = others if swapped else left
            finally:
                for name in left:
                    _remove(fd, name)
        if not swapped:
            raise self._changed(kind, key, version)
        return Document(value, _version(new))

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version; StoreConflict if it changed."""
        folder, grave = self._folder(kind, key), self._private(kind)
        with self._reaching():
            if not self._rename(os.path.join(folder, _name(version)), grave, grave):
                raise self._changed(kind, key, version)
        with contextlib.suppress(OSError):  # somebody has made the document anew
            os.rmdir(folder)
        _discard(grave)

    def discard(self, kind: Kind, key: str) -> None:
        """Remove whatever stands under a key; nothing there is no error."""
        folder, grave = self._folder(kind, key), self._private(kind)
        with self._reaching(), contextlib.suppress(FileNotFoundError):
            os.rename(folder, grave)  # a reader sees it whole or not at all
        _discard(grave)

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted."""
        with self._reaching():
            try:
                names = os.listdir(os.path.join(self._root, _FOLDERS[kind]))
            except FileNotFoundError:
                return iter(())
        return iter(sorted(name for name in names if not name.startswith(".") and self._exists(kind, name)))

    def run_folder(self, uid: str) -> str:
        """Return the folder for an incarnation's sockets and logs, in the store itself."""
        return os.path.join(self._root, "run", uid)

    def _folder(self, kind: Kind, key: str) -> str:
        return os.path.join(self._root, _FOLDERS[kind], check_key(key))

    def _private(self, kind: Kind) -> str:
        return os.path.join(self._root, _FOLDERS[kind], f".{_new_name()}")

    def _sweep(self, kind: Kind) -> None:
        """Remove what writers that were killed have left: private folders that are too old to be in use."""
        with contextlib.suppress(OSError), os.scandir(os.path.join(self._root, _FOLDERS[kind])) as entries:
            for entry in entries:
                if entry.name.startswith(".") and time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                    _discard(entry.path)

    def _exists(self, kind: Kind, key: str) -> bool:
        try:
            return _current(self._folder(kind, key)) is not None
        except OSError:
            return True  # damaged, and there

    def _place(self, private: str, folder: str, new: str, content: bytes) -> bool:
        """Make a document's folder; return False when somebody else was first."""
        try:
            _make(os.path.join(private, new))
            with _opened(os.path.join(private, new)) as fd:
                _write(fd, new, content)
            return self._rename(private, folder, os.path.join(folder, new))
        finally:
            _discard(private)  # not there any more when it became the document's folder

    @staticmethod
    def _rename(source: str, target: str, proof: str) -> bool:
        """Make a change; return False when somebody else was first. `proof` is there only if this one is made."""
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno not in _TOO_LATE:
                raise
            # NFS may have made the change and lost the answer.
            return os.path.isdir(proof)
        return True

    def _changed(self, kind: Kind, key: str, version: int) -> StoreConflict:
        return StoreConflict(f"{kind} {key!r} in {self.url} is no longer at version {version}")

    @contextlib.contextmanager
    def _reaching(self, document: str | None = None) -> Generator[None]:
        try:
            yield
        except OSError as error:
            misshapen = isinstance(error, NotADirectoryError | IsADirectoryError)
            # Else it is the store that is none.
            damaged = misshapen and document is not None and os.path.lexists(document)
            kind = StoreDamaged if damaged else StoreError
            where = "" if error.filename is None else f" ({error.filename})"
            raise kind(f"store {self.url}: {error.strerror}{where}") from error


def _new_name() -> str:
    return _name(int.from_bytes(os.urandom(_VERSION_BITS // 8)))


def _name(version: int) -> str:
    return f"{version:0{_VERSION_BITS // 4}x}"


def _version(name: str) -> int:
    return int(name, 16)


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value), separators=(",", ":")).encode()


def _decode(path: str, content: bytes) -> Document:
    try:
        value, version = json.loads(content), _version(os.path.basename(path))
    except ValueError as error:
        raise StoreDamaged(f"{path} is not JSON: {error}") from error
    except RecursionError as error:
        raise StoreDamaged(f"{path} is not a document of this store: it is nested too deeply") from error
    if not isinstance(value, dict):
        raise StoreDamaged(f"{path} is not a document of this store: it holds a {type(value).__name__}")
    return Document(value, version)


def _current(folder: str) -> str | None:
    """Return the name of the current version in a document's folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    return next((name for name in names if not name.startswith(".")), None)


@contextlib.contextmanager
def _opened(folder: str) -> Generator[int]:
    """Give a descriptor of a folder: what is done by it is done in that folder, also after it was renamed."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _write(fd: int, name: str, content: bytes) -> None:
    with open(name, "xb", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=fd)) as file:
        os.fchmod(file.fileno(), 0o600)  # the umask cannot add to 0600, but it can take away
        file.write(content)


def _remove(fd: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)


def _make(folder: str) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)  # as for files


def _discard(folder: str) -> None:
    """Remove a folder into which a writer that is too late may still put a file; or a file, or a link."""
    for _ in range(_TRIES):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(folder)
        if not os.path.lexists(folder):
            return
