"""Examines whether clusters can work here: store, host, versions, plug-ins, and what is broken.

Each check returns findings, and changes nothing but for one document that it writes into the store and takes out
again. A finding that is not "ok" says what to do.
"""

from __future__ import annotations

import enum
import os
import resource
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module, metadata
from typing import NamedTuple

from .errors import StoreError
from .manager import ClusterManager
from .record import ClusterState
from .store import Store, open_store

__all__ = ["Finding", "Level", "examine", "examine_store", "file_system_of"]

#: File systems that other hosts may see too.
_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3"}
)

#: Longest path that fits a socket's address (unix(7)), less the name of the socket in its folder.
_SOCKET_PATH = 100

#: Fewer free bytes of shared memory are worth a warning: 64 MB is what a container gets unless more is asked for.
_SHARED_BYTES = 256 << 20

#: Fewer descriptors are worth a warning: an engine takes about three of its broker's.
_DESCRIPTORS = 1024

#: Seconds that the look-up of the own host name may take.
_RESOLVE_SECONDS = 5.0

#: Most paths that one finding names.
_MOST_PATHS = 3

_SHARED = "/dev/shm"  # noqa: S108 - only looked at


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(NamedTuple):
    """What one check found, and what to do about it."""

    check: str
    level: Level
    text: str
    cure: str = ""


def examine(url: str | None = None) -> list[Finding]:
    """Make all checks.

    Parameters
    ----------
    url
        Of the store; default as `open_store` has it.

    Returns
    -------
    list of Finding
        At least one of each check; a check that cannot be made is a finding too.
    """
    findings: list[Finding] = []
    try:
        store = open_store(url)
    except StoreError as error:
        findings.append(Finding("store", Level.FAILED, str(error), "set IPCLUSTER_STORE, or give --store"))
    else:
        for name, check in _STORE_CHECKS.items():
            findings += _made(name, lambda check=check: check(store))  # type: ignore[misc]
    for name, examine_host in _HOST_CHECKS.items():
        findings += _made(name, examine_host)
    return findings


def _made(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - the top of one check: the others are made whatever is wrong with it
        return [Finding(name, Level.FAILED, f"cannot be checked: {error}", "see to what the message names")]


# the store


def examine_store(store: Store) -> Iterator[Finding]:
    """Read the store, and write into it and remove what was written, unless it is to be made yet."""
    path = _folder(store)
    if path is not None and not os.path.lexists(path):
        above = path
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK):
            yield Finding("store", Level.OK, f"{store.url} is not there yet; the first cluster makes it")
        else:
            yield Finding(
                "store", Level.FAILED, f"{store.url} cannot be made in {above}", "take another, by IPCLUSTER_STORE"
            )
        return
    key = f"doctor-{os.urandom(8).hex()}"
    try:
        records = len(list(store.keys("record")))
        store.create("secret", key, {})
    except StoreError as error:
        yield Finding("store", Level.FAILED, str(error), "make it readable and writable for this user, or take another")
        return
    finally:
        _try_discard(store, key)
    yield Finding("store", Level.OK, f"{store.url} can be read and written; it holds {records} records")


def _try_discard(store: Store, key: str) -> None:
    try:
        store.discard("secret", key)
    except StoreError:
        return  # nothing could be written either


def _folder(store: Store) -> str | None:
    scheme, _, path = store.url.partition(":")
    return path if scheme == "file" else None


def _privacy(store: Store) -> Iterator[Finding]:
    path = _folder(store)
    if path is None or not os.path.isdir(path):
        yield Finding("privacy", Level.OK, "nothing to look at")
        return
    open_to_others, foreign = [], []
    for one in _paths(path):
        try:
            found = os.lstat(one)
        except FileNotFoundError:
            continue  # removed just now
        if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
            open_to_others.append(one)
        if found.st_uid != os.geteuid():
            foreign.append(one)
    if foreign:
        yield Finding("privacy", Level.FAILED, f"of another user: {_some(foreign)}", "take a store of your own")
    if open_to_others:
        secret = [one for one in open_to_others if one.startswith(os.path.join(path, "secrets"))]
        level = Level.FAILED if secret else Level.WARNING
        yield Finding("privacy", level, f"open to others: {_some(open_to_others)}", f"chmod -R go= {path}")
    if not foreign and not open_to_others:
        yield Finding("privacy", Level.OK, "the store is this user's alone")


def _paths(root: str) -> Iterator[str]:
    """Yield a store's folder, its kinds, and what holds secrets."""
    yield root
    for name in ("records", "secrets", "run"):
        if os.path.isdir(os.path.join(root, name)):
            yield os.path.join(root, name)
    for folder, folders, files in os.walk(os.path.join(root, "secrets")):
        yield from (os.path.join(folder, name) for name in (*folders, *files))


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    return ", ".join(paths[:_MOST_PATHS]) + more


def file_system_of(path: str, mounts: str) -> tuple[str, str]:
    """Return mount point and type of the file system that holds a path, from the text of ``/proc/mounts``."""
    best = ("/", "unknown")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best


def _file_system(store: Store) -> Iterator[Finding]:
    path = _folder(store)
    if path is None:
        yield Finding("file system", Level.OK, f"{store.url} is in no folder")
        return
    with open("/proc/mounts") as file:
        point, kind = file_system_of(os.path.realpath(path), file.read())
    if kind in _NETWORK:
        text = f"{point} is a network file system ({kind}): other hosts see the store, and not a cluster's sockets"
        yield Finding("file system", Level.WARNING, text, "run all steps of a cluster on one host")
    else:
        yield Finding("file system", Level.OK, f"{point} is {kind}")


def _sockets(store: Store) -> Iterator[Finding]:
    length = len(os.fsencode(os.path.join(store.run_folder("0" * 12), "control")))
    if length <= _SOCKET_PATH:
        yield Finding("sockets", Level.OK, f"their paths have {length} bytes")
    elif os.path.isdir("/proc/self/fd"):
        yield Finding("sockets", Level.OK, f"their paths have {length} bytes, and are reached through /proc/self/fd")
    else:
        text = f"their paths have {length} bytes, more than {_SOCKET_PATH}, and there is no /proc/self/fd"
        yield Finding("sockets", Level.FAILED, text, "take a store with a shorter path, or mount /proc")


def _clusters(store: Store) -> Iterator[Finding]:
    broken = [one for one in ClusterManager(store).list_sync() if one.state is ClusterState.BROKEN]
    for one in broken:
        text = f"{one.name} is broken: {one.reason}"
        yield Finding("clusters", Level.WARNING, text, f"ipclusterctl teardown {one.name}")
    if not broken:
        yield Finding("clusters", Level.OK, "none is broken, and no process is without a record")


# the host


def _shared_memory() -> Iterator[Finding]:
    cure = "large arrays are slower; in a container, give it more with --shm-size"
    try:
        found = os.statvfs(_SHARED)
    except OSError as error:
        yield Finding("shared memory", Level.WARNING, f"{_SHARED}: {error.strerror}", cure)
        return
    free = found.f_bavail * found.f_frsize
    text = f"{_SHARED} has {free >> 20} MB free"
    if not os.access(_SHARED, os.W_OK):
        yield Finding("shared memory", Level.WARNING, f"{_SHARED} cannot be written", cure)
    elif free < _SHARED_BYTES:
        yield Finding("shared memory", Level.WARNING, text, cure)
    else:
        yield Finding("shared memory", Level.OK, text)


def _descriptors() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {_limit(soft)} files ({_limit(hard)} at most)"
    if soft != resource.RLIM_INFINITY and soft < _DESCRIPTORS:
        yield Finding(
            "descriptors", Level.WARNING, text, f"raise it for clusters of many engines: ulimit -n {_DESCRIPTORS}"
        )
    else:
        yield Finding("descriptors", Level.OK, text)


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else str(number)


def _hostname() -> Iterator[Finding]:
    name = socket.gethostname()
    answer: list[str] = []

    def look_up() -> None:
        try:
            socket.getaddrinfo(name, None)
            answer.append("")
        except OSError as error:
            answer.append(str(error))

    thread = threading.Thread(target=look_up, name="ipcluster-doctor", daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    why = answer[0] if answer else f"no answer within {_RESOLVE_SECONDS:g} s"
    if why:
        text = f"the name of this host, {name!r}, does not resolve: {why}"
        yield Finding("host name", Level.WARNING, text, "clusters of this host do not need it; see /etc/hosts")
    else:
        yield Finding("host name", Level.OK, f"{name!r} resolves")


def _versions() -> Iterator[Finding]:
    yield Finding("versions", Level.OK, f"Python {sys.version.split()[0]} ({sys.executable})")
    try:
        yield Finding("versions", Level.OK, f"ipcluster-core {metadata.version('ipcluster-core')}")
    except metadata.PackageNotFoundError:
        text = f"ipcluster-core runs from {os.path.dirname(__file__)} and is not installed"
        yield Finding("versions", Level.WARNING, text, "install it, so that engines find it wherever they run")
    for package, module in {"cloudpickle": "cloudpickle", "pydantic": "pydantic"}.items():
        try:
            import_module(module)
            yield Finding("versions", Level.OK, f"{package} {metadata.version(package)}")
        except ImportError as error:  # that it is not installed is one too
            yield Finding("versions", Level.FAILED, f"{package}: {error}", f"pip install {package}")


def _plugins() -> Iterator[Finding]:
    for kind in ("backend", "launcher"):
        entries = metadata.entry_points(group=f"ipcluster_core.{kind}s")
        if not entries:
            yield Finding("plug-ins", Level.OK, f"no {kind} is installed besides our own")
        for entry in sorted(entries, key=lambda one: one.name):
            yield _plugin(kind, entry)


def _plugin(kind: str, entry: metadata.EntryPoint) -> Finding:
    try:
        entry.load()
    except Exception as error:  # noqa: BLE001 - other people's code is imported: whatever it raises is told
        package = "its package" if entry.dist is None else entry.dist.name
        text = f"{kind} {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        return Finding("plug-ins", Level.FAILED, text, f"install what it needs, or uninstall {package}")
    return Finding("plug-ins", Level.OK, f"{kind} {entry.name!r} can be loaded")


_STORE_CHECKS: dict[str, Callable[[Store], Iterator[Finding]]] = {
    "store": examine_store,
    "privacy": _privacy,
    "file system": _file_system,
    "sockets": _sockets,
    "clusters": _clusters,
}

_HOST_CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "shared memory": _shared_memory,
    "descriptors": _descriptors,
    "host name": _hostname,
    "versions": _versions,
    "plug-ins": _plugins,
}
