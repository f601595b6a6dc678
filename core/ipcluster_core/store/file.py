"""A store in a folder: works on NFS, takes no locks, leaves no lock files.

A document is a folder that holds one file, named by the version::

    <root>/records/<key>/<version>     {"token": ..., "past": [...], "value": {...}}

A change writes the next version under a private name and link(2)s it to its place. The link is the commit: it
fails if that version exists. The winner then removes older versions. A writer so slow that its next version was
already made *and* removed would succeed wrongly; it finds a higher version that does not name its token among
the past ones, takes its own back and reports the conflict. Readers take the highest version.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import StoreConflict, StoreError
from .base import Document, Kind

__all__ = ["FileStore"]

#: How many earlier writers' tokens a version names; a writer more than so many versions late sees a conflict.
_PAST = 32

_FOLDERS: dict[Kind, str] = {"record": "records", "secret": "secrets"}


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
        return None if found is None else Document(found[1]["value"], found[0])

    def create(self, kind: Kind, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none; StoreConflict where there is one."""
        folder = self._folder(kind, key)
        if self._current(folder) is not None:
            raise StoreConflict(f"{kind} {key!r} in {self.url} exists already")
        self._make(folder)
        # A delete that was cut short leaves its empty last version: count on from there.
        return self._commit(kind, key, value, max(self._versions(folder), default=0) + 1, [])

    def swap(self, kind: Kind, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version; StoreConflict if it changed."""
        found = self._current(self._folder(kind, key))
        if found is None or found[0] != version:
            raise StoreConflict(f"{kind} {key!r} in {self.url} is no longer at version {version}")
        past = [found[1]["token"], *found[1]["past"]][:_PAST]
        return self._commit(kind, key, value, version + 1, past)

    def delete(self, kind: Kind, key: str, version: int) -> None:
        """Remove the document of exactly that version; StoreConflict if it changed."""
        # An empty next version wins over any swap of this version; then nothing of the document is needed.
        self.swap(kind, key, {}, version)
        folder = self._folder(kind, key)
        for name in self._versions(folder):
            self._remove(os.path.join(folder, str(name)))
        with contextlib.suppress(OSError):
            os.rmdir(folder)

    def keys(self, kind: Kind) -> Iterator[str]:
        """Return the keys of that kind, sorted."""
        try:
            names = os.listdir(os.path.join(self._root, _FOLDERS[kind]))
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            raise self._unreachable(error) from error
        return iter(sorted(names))

    def run_folder(self, uid: str) -> str:
        """Return the folder for an incarnation's sockets and logs, in the store itself."""
        return os.path.join(self._root, "run", uid)

    def _folder(self, kind: Kind, key: str) -> str:
        if not key or "/" in key or key.startswith("."):
            raise ValueError(f"{key!r} cannot be a key of a store")
        return os.path.join(self._root, _FOLDERS[kind], key)

    def _versions(self, folder: str) -> list[int]:
        """Return the versions present. A listing during which the folder changed is made again."""
        while True:
            try:
                before = os.stat(folder).st_mtime_ns
                names = os.listdir(folder)
                if os.stat(folder).st_mtime_ns == before:
                    return sorted(int(name) for name in names if name.isdigit())
            except FileNotFoundError:
                return []
            except OSError as error:
                raise self._unreachable(error) from error

    def _current(self, folder: str) -> tuple[int, dict[str, Any]] | None:
        while True:
            versions = self._versions(folder)
            if not versions:
                return None
            path = os.path.join(folder, str(versions[-1]))
            try:
                with open(path, "rb") as file:
                    content = json.loads(file.read())
            except FileNotFoundError:
                continue  # a newer version has just replaced it
            except ValueError as error:
                raise StoreError(f"{path} is not JSON: {error}") from error
            except OSError as error:
                raise self._unreachable(error) from error
            if not isinstance(content, dict) or not {"token", "past", "value"} <= content.keys():
                raise StoreError(f"{path} is not a document of this store")
            return (versions[-1], content) if content["value"] else None

    def _commit(self, kind: Kind, key: str, value: Mapping[str, Any], version: int, past: list[str]) -> Document:
        folder = self._folder(kind, key)
        token = secrets.token_hex(8)
        private = os.path.join(folder, f".{token}")
        path = os.path.join(folder, str(version))
        try:
            self._write(private, {"token": token, "past": past, "value": dict(value)})
            try:
                os.link(private, path)
            except FileExistsError:
                # NFS may have made the link and lost the answer; then the file has two names (open(2), O_EXCL).
                if os.stat(private).st_nlink != 2:
                    raise StoreConflict(f"{kind} {key!r} in {self.url} was changed by somebody else") from None
        except FileNotFoundError as error:
            raise StoreConflict(f"{kind} {key!r} in {self.url} was removed by somebody else") from error
        except OSError as error:
            raise self._unreachable(error) from error
        finally:
            self._remove(private)
        current = self._current(folder)
        if current is not None and current[0] > version and token not in current[1]["past"]:
            self._remove(path)
            raise StoreConflict(f"{kind} {key!r} in {self.url} had been changed by somebody else")
        for older in self._versions(folder):
            if older < version:
                self._remove(os.path.join(folder, str(older)))
        return Document(value, version)

    @staticmethod
    def _write(path: str, content: dict[str, Any]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # the umask cannot add to 0600, but it can take away
            file.write(json.dumps(content, separators=(",", ":")).encode())

    @staticmethod
    def _remove(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _make(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        try:
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                    os.chmod(path, 0o700)
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> StoreError:
        return StoreError(f"store {self.url}: {error.strerror} ({error.filename})")
