"""A store in Prefect: records and secrets as block documents, for steps whose machines share a Prefect server only.

``prefect:http://host:4200/api``, or ``prefect:`` for the server that this process uses. The server keeps blocks
encrypted, and shows the values of secrets to nobody in its UI.

The API can make a block document under a name that is free, and nothing else that is atomic. So each change is a
document of its own, whose name ends in a number::

    record-nightly-1f3c9a02-7    {"key", "version", "past", "removed", "value"}

The highest number is the document; the next change is made by taking the next number, which one of its writers gets.
Lower numbers are removed. A writer that comes so late that its number is free again finds a higher one than its own
when it looks back, and withdraws: unless its version stands in the past of that one, which has come after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ipcluster_core import Document
from ipcluster_core.errors import StoreConflict, StoreDamaged, StoreError

from .api import Api, setting
from .documents import Found, base_of, checked, found_from

__all__ = ["PrefectStore", "open_prefect_store"]

#: Versions of the past that a document names: a writer that is later than that many changes is refused.
_PAST = 64

#: Seconds after which what says that a document was removed is removed itself: no writer is later than that.
_STALE_SECONDS = 3600.0

#: Documents that the API lists at one time; pages overlap, because others remove documents meanwhile.
_PAGE, _STEP = 200, 100

#: Fields of the two block types; what is masked in the UI is named in `secret_fields`.
_FIELDS = {
    "type": "object",
    "properties": {
        name: {"title": name.capitalize(), "type": kind}
        for name, kind in (("key", "string"), ("version", "integer"), ("removed", "boolean"), ("value", "string"))
    },
    "block_schema_references": {},
}
_SECRET_FIELDS: dict[str, list[str]] = {"record": [], "secret": ["value"]}


def open_prefect_store(url: str) -> PrefectStore:
    """Open the store of a URL ``prefect:…``; for the entry-point group ``ipcluster_core.stores``.

    Returns
    -------
    PrefectStore
        Nothing is asked of the server yet.

    Raises
    ------
    StoreError
        It names no API, and neither the environment nor the active profile does.
    """
    named = url.partition(":")[2] or setting("PREFECT_API_URL")
    if not named:
        raise StoreError(
            f"{url!r} needs the URL of a Prefect API: set PREFECT_API_URL, or write prefect:http://host:4200/api"
        )
    return PrefectStore(Api(named))


class PrefectStore:
    """See `ipcluster_core.Store` for the contract."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._types: dict[str, tuple[str, str]] = {}

    @property
    def url(self) -> str:
        """URL that opens this store from any process that reaches the server."""
        return f"prefect:{self._api.url}"

    def read(self, kind: str, key: str) -> Document | None:
        """Return the current document or None."""
        found = self._find(kind, key)
        if not found or found[-1].removed:
            return None
        try:
            value = json.loads(found[-1].text)
        except ValueError as error:
            raise StoreDamaged(f"{kind} {key!r} in {self.url} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise StoreDamaged(f"{kind} {key!r} in {self.url} holds a {type(value).__name__}")
        return Document(value, found[-1].version)

    def create(self, kind: str, key: str, value: Mapping[str, Any]) -> Document:
        """Put a document where there is none; StoreConflict where there is one."""
        text = json.dumps(dict(value))
        found = self._find(kind, key)
        if found and not found[-1].removed:
            raise StoreConflict(f"{kind} {key!r} in {self.url} exists already")
        return Document(value, self._append(kind, key, found, text))

    def swap(self, kind: str, key: str, value: Mapping[str, Any], version: int) -> Document:
        """Replace the document of exactly that version; StoreConflict if it changed."""
        text = json.dumps(dict(value))
        return Document(value, self._append(kind, key, self._expect(kind, key, version), text))

    def delete(self, kind: str, key: str, version: int) -> None:
        """Remove the document of exactly that version; StoreConflict if it changed."""
        self._append(kind, key, self._expect(kind, key, version), None)

    def discard(self, kind: str, key: str) -> None:
        """Remove whatever stands under a key; nothing there is no error."""
        for one in self._find(kind, key):
            self._remove(one)

    def keys(self, kind: str) -> Iterator[str]:
        """Return the keys of that kind, sorted."""
        latest: dict[str, Found] = {}
        for one in self._list(kind, f"{kind}-"):
            if one.key not in latest or latest[one.key].number < one.number:
                latest[one.key] = one
        for one in latest.values():
            if one.removed and one.age > _STALE_SECONDS:
                self._remove(one)
        return iter(sorted(key for key, one in latest.items() if not one.removed))

    def run_folder(self, uid: str) -> str:
        """Return a folder of this host for an incarnation's sockets and logs: in the user's state, as that of files."""
        home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        return os.path.join(home, "ipcluster", "run", uid)

    def _expect(self, kind: str, key: str, version: int) -> list[Found]:
        found = self._find(kind, key)
        if not found or found[-1].removed or found[-1].version != version:
            raise StoreConflict(f"{kind} {key!r} in {self.url} is not at version {version}")
        return found

    def _append(self, kind: str, key: str, found: list[Found], text: str | None) -> int:
        """Make the next change after those that were found; None for the text removes the document."""
        version = int.from_bytes(os.urandom(7))
        last = found[-1] if found else None
        number = 1 if last is None else last.number + 1
        past = () if last is None else (*last.past, last.version)[-_PAST:]
        data = {"key": key, "version": version, "past": past, "removed": text is None, "value": text or ""}
        block_type, schema = self._type(kind)
        name = f"{base_of(kind, key)}{number}"
        content = {"name": name, "data": data, "block_type_id": block_type, "block_schema_id": schema}
        status, _ = self._api.ask("POST", "/block_documents/", content, allowed=(409,))
        after = self._find(kind, key)
        mine = [one for one in after if one.version == version]
        # A request that was sent twice is refused the second time, although it is ours that stands there.
        if after and after[-1].version != version and version not in after[-1].past:
            for one in mine:
                self._remove(one)
            raise StoreConflict(f"somebody else was first to change {kind} {key!r} in {self.url}")
        if status == 409 and not mine and not after:
            raise StoreConflict(f"somebody else has changed and removed {kind} {key!r} in {self.url}")
        for one in after:
            if one.number < number:
                self._remove(one)
        return version

    def _find(self, kind: str, key: str) -> list[Found]:
        """Return the documents of a key, the current one last."""
        base = base_of(kind, checked(key))
        return sorted(self._list(kind, base), key=lambda one: one.number)

    def _list(self, kind: str, base: str) -> list[Found]:
        found: dict[str, Found] = {}
        wanted = {"name": {"like_": base}}
        for offset in range(0, 1 << 30, _STEP):
            query = {
                "block_documents": wanted,
                "block_types": {"slug": {"any_": [f"ipcluster-{kind}"]}},
                "include_secrets": True,
                "limit": _PAGE,
                "offset": offset,
            }
            page = self._api.ask("POST", "/block_documents/filter", query)[1]
            found |= {one["id"]: found_from(one) for one in page if one["name"].startswith(base)}
            if len(page) < _PAGE:
                break
        return list(found.values())

    def _remove(self, one: Found) -> None:
        self._api.ask("DELETE", f"/block_documents/{one.id}", allowed=(404,))

    def _type(self, kind: str) -> tuple[str, str]:
        """Return the ids of the kind's block type and schema, which are made at the first writing."""
        if kind not in self._types:
            slug = f"ipcluster-{kind}"
            named = {
                "name": f"IPCluster {kind.capitalize()}",
                "slug": slug,
                "description": f"A {kind} of ipcluster-core.",
            }
            self._api.ask("POST", "/block_types/", named, allowed=(409,))
            block_type = self._api.ask("GET", f"/block_types/slug/{slug}")[1]["id"]
            fields = {**_FIELDS, "title": named["name"], "block_type_slug": slug, "secret_fields": _SECRET_FIELDS[kind]}
            made = self._api.ask("POST", "/block_schemas/", {"fields": fields, "block_type_id": block_type})[1]
            self._types[kind] = block_type, made["id"]
        return self._types[kind]
