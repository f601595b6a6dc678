"""The store in Prefect's blocks: the contract of all stores, on a real server; and steps that share nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

import steps
from ipcluster_core import Client, ClusterManager, ClusterState, Store, open_store
from ipcluster_core.errors import StoreConflict, StoreDamaged, StoreError
from prefect_ipcluster import api, create_cluster, scale_cluster, teardown_cluster
from prefect_ipcluster.store import PrefectStore
from store_contract import *  # noqa: F403 - its tests are collected here


@pytest.fixture
def url() -> str:
    """The URL of the store of this test run's server."""
    return f"prefect:{PREFECT_API_URL.value()}"


@pytest.fixture
def store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    empty(url)
    yield open_store(url)
    empty(url)


@pytest.fixture
def rounds() -> int:
    """How often threads race: each change is some requests."""
    return 3


def empty(url: str) -> None:
    """Remove all that is in the store."""
    opened = PrefectStore(api.Api(url.partition(":")[2]))
    for kind in ("record", "secret"):
        for one in opened._list(kind, f"{kind}-"):
            opened._remove(one)


def documents() -> dict[str, dict[str, object]]:
    """Return the block documents of all stores as the UI shows them."""
    with get_client(sync_client=True) as client:
        found = client._client.post("/block_documents/filter", json={"include_secrets": False}).json()
    return {one["name"]: one["data"] for one in found if one["name"].startswith(("record-", "secret-"))}


def test_only_the_current_document_is_kept(store: Store) -> None:
    """Under a name that can be read; what was discarded leaves nothing."""
    made = store.create("record", "nightly", {"n": 0})
    for n in (1, 2):
        made = store.swap("record", "nightly", {"n": n}, made.version)
    names = list(documents())
    store.discard("record", "nightly")

    assert len(names) == 1
    assert names[0].startswith("record-nightly-")
    assert names[0].endswith("-3")
    assert documents() == {}


def test_secrets_are_masked(store: Store) -> None:
    """The server shows them to who asks for secrets only; records are shown."""
    store.create("secret", "nightly.1", {"key": "0123456789"})
    store.create("record", "nightly", {"name": "nightly"})
    secret, record = sorted(documents().items(), key=lambda item: item[0], reverse=True)

    assert secret[0].startswith("secret-nightly-1-")
    assert secret[1]["value"] == "********"
    assert record[1]["value"] == '{"name": "nightly"}'


def test_a_writer_that_comes_too_late_withdraws(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked, others have changed the document twice, and its number is free again."""
    first = store.create("record", "late", {"n": 0})
    expect = PrefectStore._expect

    def slow(self: PrefectStore, kind: str, key: str, version: int) -> object:
        found = expect(self, kind, key, version)
        with monkeypatch.context() as patched:
            patched.setattr(PrefectStore, "_expect", expect)
            second = store.swap("record", "late", {"n": 1}, version)
            store.swap("record", "late", {"n": 2}, second.version)
        return found

    monkeypatch.setattr(PrefectStore, "_expect", slow)
    with pytest.raises(StoreConflict, match="somebody else was first"):
        store.swap("record", "late", {"n": "late"}, first.version)

    found = store.read("record", "late")
    assert found is not None
    assert found.value == {"n": 2}
    assert len(documents()) == 1


def test_a_writer_that_was_first_is_told_so_although_others_have_gone_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change stands in the past of what is there now."""
    ask = api.Api.ask
    pending = [True]

    def overtaken(self: api.Api, method: str, path: str, *args: object, **kwargs: object) -> object:
        answer = ask(self, method, path, *args, **kwargs)  # type: ignore[arg-type]
        if path == "/block_documents/" and pending:
            pending.clear()
            found = store.read("record", "first")
            assert found is not None
            store.swap("record", "first", {"n": 2}, found.version)
        return answer

    monkeypatch.setattr(api.Api, "ask", overtaken)
    made = store.create("record", "first", {"n": 1})
    found = store.read("record", "first")

    assert made.value == {"n": 1}
    assert found is not None
    assert found.value == {"n": 2}


def test_a_request_that_was_sent_twice_counts_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's first answer was lost."""
    send = api.Api._send
    lost = [True]

    def lossy(self: api.Api, method: str, path: str, body: str | None) -> tuple[int, str]:
        answer = send(self, method, path, body)
        if path == "/block_documents/" and lost:
            lost.clear()
            raise ConnectionResetError("lost")
        return answer

    monkeypatch.setattr(api.Api, "_send", lossy)
    made = store.create("record", "twice", {"n": 1})

    assert store.read("record", "twice") == made


def test_a_document_that_somebody_has_edited_is_damaged(store: Store) -> None:
    """It can be discarded."""
    store.create("record", "edited", {"n": 1})
    (one,) = PrefectStore(api.Api(store.url.partition(":")[2]))._list("record", "record-edited-")
    with get_client(sync_client=True) as client:
        client._client.patch(
            f"/block_documents/{one.id}", json={"data": {"key": "edited"}, "merge_existing_data": False}
        )

    with pytest.raises(StoreDamaged, match=r"record 'edited' in prefect:http.* is not JSON"):
        store.read("record", "edited")
    assert list(store.keys("record")) == ["edited"]
    store.discard("record", "edited")
    assert store.read("record", "edited") is None


def test_what_tells_that_a_document_was_removed_is_removed_in_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no writer can be so late."""
    store.delete("record", "gone", store.create("record", "gone", {}).version)
    before = len(documents())
    monkeypatch.setattr("prefect_ipcluster.store._STALE_SECONDS", -1.0)

    assert list(store.keys("record")) == []
    assert (before, documents()) == (1, {})


def test_the_api_is_found_in_variables_or_the_active_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Prefect does it; a store without any says what to set."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="set PREFECT_API_URL, or write prefect:http"):
        open_store("prefect:")
    profiles = '[profiles.site]\nPREFECT_API_URL = "http://there/api"\nPREFECT_API_AUTH_STRING = "me:pass"\n'
    (tmp_path / "profiles.toml").write_text(f'active = "site"\n{profiles}')
    known = open_store("prefect:").url
    headers = api.Api._headers()
    monkeypatch.setenv("PREFECT_API_URL", "http://here:4200/api/")
    monkeypatch.setenv("PREFECT_API_KEY", "key")

    assert known == "prefect:http://there/api"
    assert headers["Authorization"] == "Basic bWU6cGFzcw=="
    assert open_store("prefect:").url == "prefect:http://here:4200/api"
    assert api.Api._headers()["Authorization"] == "Bearer key"


@pytest.mark.parametrize("url", ["prefect:ftp://there", "prefect:nowhere", "prefect:http://me:secret@there/api"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    """Nor may it hold a password: it stands in handles."""
    with pytest.raises(StoreError, match="is not the URL of a Prefect API"):
        open_store(url)


def test_a_server_that_is_away_is_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries."""
    monkeypatch.setattr(api, "_PAUSES", (0.0, 0.0))
    with pytest.raises(StoreError, match=r"Prefect API http://127.0.0.1:9/api: POST .* failed \(no answer\)"):
        open_store("prefect:http://127.0.0.1:9/api").read("record", "a")


def test_steps_share_a_cluster_through_the_server(store: Store) -> None:
    """By a handle, or a name and the variable; its nanny and controller use it without Prefect's variables."""

    @flow
    def sharing() -> tuple[str, int, str, str]:
        handle = create_cluster("shared", n=1, store=store.url)
        scale_cluster(handle, 2)
        with Client.connect(handle) as client:
            engines = len(client.run(abs, -1))
        listed = steps.run_step(
            f"""
            from ipcluster_core import ClusterManager
            print([(one.name, str(one.state), one.engines) for one in ClusterManager({store.url!r}).list_sync()])
            """
        )
        return handle.store, engines, listed, teardown_cluster(handle).outcome

    where, engines, listed, outcome = sharing()

    assert (where, engines, outcome) == (store.url, 2, "ended")
    assert listed == "[('shared', 'running', 2)]"
    assert ClusterManager(store).get_sync("shared").state is ClusterState.ENDED
    assert not [name for name in documents() if name.startswith("secret-")]


def test_the_store_does_not_import_prefect() -> None:
    """A nanny starts with it."""
    code = "import sys, prefect_ipcluster.store; print(sorted({'prefect', 'pydantic', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"
