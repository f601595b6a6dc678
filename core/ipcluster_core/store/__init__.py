"""Where records and secrets live, keyed by name: the truth that every process shares.

A store is a table of small JSON documents in two kinds. Each document has a version; every change names the
version it replaces, so of any number of concurrent writers one wins and the others get `StoreConflict`.
"""

from __future__ import annotations

import os

from .. import plugins
from ..errors import ClusterError, StoreError
from .base import KINDS, Document, Kind, Store

__all__ = ["KINDS", "Document", "Kind", "Store", "open_store"]


#: Kinds that are ours; all others are plug-ins.
_OWN = frozenset({"file", "memory"})

_EXAMPLES = "file:/some/folder or memory:some-name"


def _default_url() -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return f"file:{os.path.join(home, 'ipcluster')}"


def open_store(url: str | None = None) -> Store:
    """Open a store by its URL.

    Parameters
    ----------
    url
        ``file:/absolute/folder`` (``~`` is expanded), ``memory:name`` for one that lives in this process only, or
        what begins with the name of an installed store, such as ``prefect:``.
        Default: the environment variable ``IPCLUSTER_STORE``, else ``ipcluster`` in the per-user state folder.

    Returns
    -------
    Store
        Nothing is created until something is written.

    Raises
    ------
    StoreError
        The URL is of no known kind, or a store of that kind cannot be loaded.
    """
    url = url or os.environ.get("IPCLUSTER_STORE") or _default_url()
    scheme, _, rest = url.partition(":")
    if scheme == "file" and rest:
        from .file import FileStore

        path = os.path.expanduser(rest.removeprefix("//"))
        return FileStore(os.path.abspath(path))
    if scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore.named(rest)
    if scheme in _OWN:
        raise StoreError(f"no store for {url!r}: use {_EXAMPLES}")
    try:
        opened: Store = plugins.load("store", scheme, {})(url)
    except StoreError:
        raise
    except ClusterError as error:
        raise StoreError(f"no store for {url!r}: use {_EXAMPLES}, or install one for it ({error})") from error
    return opened
