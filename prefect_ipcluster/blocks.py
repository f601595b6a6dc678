"""A cluster's recipe as a Prefect block: edited in the UI, used by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field, HttpUrl, model_validator

from ipcluster_core import ClusterHandle, ClusterSpec

if TYPE_CHECKING:
    from .task_runners import IPClusterTaskRunner

__all__ = ["IPClusterSpec"]


class IPClusterSpec(Block):
    """What a cluster is to be: how many engines, where they run, and what ends the cluster by itself.

    Example:
        A cluster for one block of a flow, and one that other flows share:

        ```python
        from prefect import flow
        from prefect_ipcluster import IPClusterSpec, cluster

        recipe = IPClusterSpec.load("BLOCK_NAME")

        @flow
        def study():
            with cluster(spec=recipe.spec()) as handle:
                ...

        @flow
        def nightly():
            return recipe.create("nightly")

        @flow(task_runner=recipe.task_runner())
        def mapped():
            ...
        ```
    """

    _block_type_name: ClassVar[str | None] = "IPCluster Spec"
    _block_type_slug: ClassVar[str | None] = "ipcluster-spec"
    _logo_url: ClassVar[HttpUrl | None] = HttpUrl("https://github.com/ipython.png?size=200")
    _documentation_url: ClassVar[HttpUrl | None] = HttpUrl("https://ipython.org")

    n: int | None = Field(
        default=None, ge=0, title="Engines", description="Number of engines; 2 if nothing else says how many."
    )
    at_least: int | None = Field(
        default=None,
        ge=0,
        title="Engines At Least",
        description="Engines that must be up before the cluster counts as ready; all if not given.",
    )
    backend: str = Field(default="native", description="What runs the tasks, by the name of a backend.")
    launcher: str = Field(default="local", description="Where the processes run, by the name of a launcher.")
    idle_timeout: float | None = Field(
        default=1800.0, description="Seconds without work after which the cluster ends; never if not given."
    )
    lifetime: float | None = Field(
        default=86400.0, description="Seconds after which the cluster ends in any case; no limit if not given."
    )
    no_client_timeout: float | None = Field(
        default=None, description="Seconds without any client after which the cluster ends; no limit if not given."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels to find the cluster by.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables of the engines.")
    secret_env: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        description="Environment variables of the engines whose values are not shown.",
    )
    preload: list[str] = Field(default_factory=list, description="Modules that are imported once, for all engines.")
    python: str | None = Field(
        default=None, description="Interpreter of the cluster; that of whoever creates it if not given."
    )
    cwd: str | None = Field(
        default=None, description="Working folder of the engines; that of whoever creates them if not given."
    )
    further: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of a ClusterSpec by name, such as engines or adapt."
    )

    @model_validator(mode="after")
    def _is_a_spec(self) -> Self:
        self.spec()
        return self

    def spec(self) -> ClusterSpec:
        """Return what `create_cluster` and `cluster` take.

        Returns
        -------
        ClusterSpec
            With the secret variables among the others: it is not to be shown.

        Raises
        ------
        ValueError
            The fields do not go together, or there is no such further field.
        """
        fields = {name: getattr(self, name) for name in ClusterSpec.model_fields if name in type(self).model_fields}
        secrets = {name: str(value) for name, value in self.secret_env.get_secret_value().items()}
        return ClusterSpec.model_validate({**fields, "env": {**self.env, **secrets}, **self.further})

    def create(self, name: str | None = None, **options: Any) -> ClusterHandle:
        """Create such a cluster by the task `create_cluster`, which has the documentation."""
        from .tasks import create_cluster

        handle: ClusterHandle = create_cluster(name, self.spec(), **options)
        return handle

    async def acreate(self, name: str | None = None, **options: Any) -> ClusterHandle:
        """Create such a cluster by the task `acreate_cluster`; twin of `create`."""
        from .async_tasks import acreate_cluster

        handle: ClusterHandle = await acreate_cluster(name, self.spec(), **options)
        return handle

    def task_runner(self, **options: Any) -> IPClusterTaskRunner:
        """Return a task runner that makes such a cluster for each run of its flow, see `IPClusterTaskRunner`."""
        from .task_runners import IPClusterTaskRunner

        return IPClusterTaskRunner(spec=self.spec(), **options)
