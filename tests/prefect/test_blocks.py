"""A recipe in a block: Prefect's own tests of blocks, and what it makes of its fields."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from PIL import Image
from prefect import flow, task
from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from prefect.testing.standard_test_suites import blocks as suite
from prefect.types import SecretDict

from ipcluster_core import Client, ClusterManager, ClusterSpec, ClusterState
from prefect_ipcluster import IPClusterSpec, cluster, flows, teardown_cluster


class TestStandards(BlockStandardTestSuite):
    """What Prefect asks of each block."""

    @pytest.fixture
    def block(self) -> type[Block]:
        """Ours."""
        return IPClusterSpec

    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the site of the logo: tests have no route to it."""
        picture = io.BytesIO()
        Image.new("RGB", (200, 200)).save(picture, "PNG")
        monkeypatch.setattr(suite, "urlopen", lambda url: io.BytesIO(picture.getvalue()))


def test_a_block_gives_a_spec() -> None:
    """Field by field; nothing given gives the defaults, and the lifetime of a day that flows have."""
    block = IPClusterSpec(
        n=3,
        env={"A": "1"},
        secret_env=SecretDict({"TOKEN": "hidden"}),
        further={"max_tasks": 5, "start_method": "spawn"},
    )

    assert block.spec() == ClusterSpec(
        n=3, env={"A": "1", "TOKEN": "hidden"}, lifetime=86400.0, max_tasks=5, start_method="spawn"
    )
    assert IPClusterSpec().spec() == ClusterSpec(lifetime=86400.0)
    assert IPClusterSpec(further={"adapt": [0, 4]}).spec().adapt == (0, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"further": {"colour": "red"}}, "colour"),
        ({"n": 1, "at_least": 2}, "at_least=2 is more than the 1 engines"),
        ({"n": -1}, "greater than or equal to 0"),
    ],
)
def test_a_block_that_is_no_spec_cannot_be_saved(fields: dict[str, Any], message: str) -> None:
    """It says what is wrong while it is edited, not when a flow runs."""
    with pytest.raises(ValueError, match=message):
        IPClusterSpec(**fields)


def test_a_saved_block_makes_clusters() -> None:
    """For a block of a flow, by its own method, and by the flow `create`; its secrets are masked, and reach engines."""
    IPClusterSpec(n=1, secret_env=SecretDict({"TOKEN": "hidden"})).save("small", overwrite=True)
    with get_client(sync_client=True) as client:
        shown = client.read_block_document_by_name("small", "ipcluster-spec", include_secrets=False)

    @flow
    def using() -> tuple[str, str]:
        recipe: Any = IPClusterSpec.load("small")
        with cluster("scoped", recipe.spec()) as handle, Client.connect(handle) as connected:
            token = connected.submit(lambda: __import__("os").environ["TOKEN"]).result()
        made = recipe.create("made")
        return token, teardown_cluster(made).outcome

    @flow
    async def using_later() -> str:
        recipe: Any = await IPClusterSpec.aload("small")
        return str(await recipe.acreate("later"))

    assert "hidden" not in str(shown.data)
    assert shown.data["secret_env"] == {"TOKEN": "********"}
    assert using() == ("hidden", "ended")
    assert asyncio.run(using_later()) == "later"

    @task
    def token() -> str:
        return __import__("os").environ["TOKEN"]  # type: ignore[no-any-return]

    recipe: Any = IPClusterSpec.load("small")

    @flow(task_runner=recipe.task_runner())
    def mapped() -> list[str]:
        return [future.result() for future in (token.submit(), token.submit())]

    assert mapped() == ["hidden"] * 2
    assert flows.create("standing", block="small").name == "standing"
    for name in ("later", "standing"):
        assert ClusterManager().get_sync(name).state is ClusterState.RUNNING
        ClusterManager().teardown_sync(name, force=True)
