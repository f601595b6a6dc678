"""What a user asks for: how many engines of what kind, where, and what ends the cluster by itself."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from .hosts import share

__all__ = ["ClusterSpec", "EngineSpec", "SpecFields"]

#: Seconds without work after which a cluster ends, unless the spec says otherwise.
DEFAULT_IDLE_TIMEOUT = 1800.0

#: A limit in seconds; "never" is None, not infinity.
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EngineSpec(BaseModel):
    """One engine set: a named group of like engines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: NonNegativeInt = Field(description="How many engines.")
    kind: Literal["process", "mpi"] = Field(
        default="process",
        description="What an engine is: an ordinary process, or a rank of an MPI program. Ranks are one unit: started, "
        "lost and restarted together. They run what names them, see `Client.run`. max_tasks and max_memory_bytes are "
        "not for them.",
    )
    mpiexec: str | None = Field(
        default=None,
        description="Command that starts the ranks; None means the one beside the interpreter, else the first on PATH.",
    )
    mpi_args: list[str] = Field(default_factory=list, description="More arguments for it, before the program.")
    hosts: list[str] = Field(
        default_factory=list,
        description="Hosts of the ranks, in order, each with room for so many if it says so: 'node1', 'node2:4'. Those "
        "that do not share alike what the others leave. None means the cluster's own host. On the others, ssh must let "
        "this user in without a question, and the same interpreter have the same packages.",
    )
    ssh: list[str] = Field(default=["ssh"], min_length=1, description="Command that runs another one on a host.")

    @model_validator(mode="after")
    def _mpi_only(self) -> Self:
        if self.kind != "mpi" and (self.mpiexec is not None or self.mpi_args or self.hosts or self.ssh != ["ssh"]):
            raise ValueError("mpiexec, mpi_args, hosts and ssh are for sets of kind 'mpi'")
        if self.hosts:
            share(self.n, self.hosts)
        return self


class ClusterSpec(BaseModel):
    """What a cluster is to be.

    `n` is short for ``engines={"default": EngineSpec(n=n)}``; give one of the two. Neither gives two engines, or
    as many as `adapt` begins with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: NonNegativeInt | None = Field(default=None, description="Number of engines in the set named default.")
    engines: dict[str, EngineSpec] = Field(default_factory=dict, description="Engine sets by name.")
    at_least: NonNegativeInt | None = Field(
        default=None, description="Engines that must be up before the cluster counts as ready; None means all."
    )
    backend: str = Field(default="native", description="What runs the tasks: name of a backend.")
    launcher: str = Field(default="local", description="Where the processes run: name of a launcher.")
    idle_timeout: Seconds | None = Field(
        default=DEFAULT_IDLE_TIMEOUT,
        description="Seconds with nothing queued, running, arriving or starting after which the cluster ends, whoever "
        "is connected and whatever results are unread; None means never.",
    )
    lifetime: Seconds | None = Field(
        default=None, description="Seconds from ready after which the cluster ends in any case; None means no limit."
    )
    no_client_timeout: Seconds | None = Field(
        default=None,
        description="Seconds without any connected client after which the cluster ends; None means no limit.",
    )
    keep_results: Seconds = Field(
        default=3600.0,
        description="Seconds for which results can be fetched by task id, also after their client is gone.",
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Labels to find the cluster by.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables set for the engines.")
    cwd: str | None = Field(default=None, description="Engines' working folder; None means the creator's.")
    preload: list[str] = Field(
        default_factory=list, description="Modules imported once, before engines are forked, so that all share them."
    )
    packages: list[str] = Field(
        default_factory=list,
        description="Packages, by the names under which they are installed, whose versions clients and engines must "
        "share with the controller, down to the second number: 2.1 of 2.1.3.",
    )
    check_versions: bool = Field(
        default=True,
        description="Whether engines whose versions do not go with the controller's are refused; otherwise they are "
        "warned of in the logs. For clients see `Client.connect`.",
    )
    python: str | None = Field(default=None, description="Interpreter of the cluster; None means the creator's.")
    start_method: Literal["fork", "spawn"] = Field(
        default="fork",
        description="How engines are made: forked from the nanny, which is quick and shares memory, or executed anew, "
        "for modules of preload that cannot be forked (threads, GPU contexts).",
    )

    adapt: tuple[NonNegativeInt, NonNegativeInt] | None = Field(
        default=None,
        description="Least and most engines of the set named default, which is then sized by its load; it begins with "
        "the least, or with `n`. None means that its size is fixed.",
    )
    max_tasks: PositiveInt | None = Field(
        default=None, description="Tasks after which an engine is replaced by a fresh one; None means no limit."
    )
    max_memory_bytes: PositiveInt | None = Field(
        default=None,
        description="Resident memory above which an engine is replaced by a fresh one, between two tasks; one above "
        "twice as much is killed at once, with its task. None means no limit.",
    )
    max_restarts: NonNegativeInt = Field(
        default=10,
        description="How many times in a row an engine that dies within 10 s of being up is started again; 0 means "
        "that no engine that dies is replaced.",
    )

    @field_validator("labels", "env")
    @classmethod
    def _no_nul(cls, value: dict[str, str]) -> dict[str, str]:
        if any("\0" in key or "\0" in text for key, text in value.items()):
            raise ValueError("names and values must not hold a NUL character")
        return value

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name or "=" in name:
                raise ValueError(f"{name!r} cannot name an environment variable")
        return value

    @model_validator(mode="after")
    def _one_way_to_ask_for_engines(self) -> Self:
        if self.n is not None and self.engines:
            raise ValueError("give n or engines, not both")
        if self.adapt is not None:
            least, most = self.adapt
            if not least <= self.sets.get("default", EngineSpec(n=least)).n <= most:
                raise ValueError(f"adapt={self.adapt} must be the least and the most engines, and the set be within")
            if self.sets.get("default", EngineSpec(n=0)).kind == "mpi":
                raise ValueError("adapt is for processes: an MPI set has the size that it was started with")
            if "default" not in self.sets:
                raise ValueError("adapt is for the set named default, and there is none")
        if self.at_least is not None and self.at_least > self.total:
            raise ValueError(f"at_least={self.at_least} is more than the {self.total} engines asked for")
        return self

    @property
    def sets(self) -> dict[str, EngineSpec]:
        """Engine sets by name, with `n` worked in."""
        least = 2 if self.adapt is None else self.adapt[0]
        return self.engines or {"default": EngineSpec(n=least if self.n is None else self.n)}

    @property
    def total(self) -> int:
        """Number of engines in all sets."""
        return sum(engines.n for engines in self.sets.values())


class SpecFields(TypedDict, total=False):
    """The fields of `ClusterSpec`, as keywords."""

    n: int | None
    engines: dict[str, EngineSpec]
    at_least: int | None
    backend: str
    launcher: str
    idle_timeout: float | None
    lifetime: float | None
    no_client_timeout: float | None
    keep_results: float
    labels: dict[str, str]
    env: dict[str, str]
    cwd: str | None
    preload: list[str]
    packages: list[str]
    check_versions: bool
    python: str | None
    start_method: Literal["fork", "spawn"]
    adapt: tuple[int, int] | None
    max_tasks: int | None
    max_memory_bytes: int | None
    max_restarts: int
