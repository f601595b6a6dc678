"""What passes between steps: small, plain, public data, reloadable by name."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["ClusterHandle"]


class ClusterHandle(BaseModel):
    """Names one incarnation of a cluster and where to find it. Holds no secret and no live object.

    ``model_dump_json()`` gives the JSON form, ``str()`` the name. Any of handle, dict, JSON or name is accepted
    wherever a cluster is asked for. An unknown newer schema is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, alias="schema", description="Version of this shape.")
    name: str = Field(description="Name of the cluster.")
    incarnation: int = Field(description="Which life of the name this is, counted from 1.")
    uid: str = Field(description="Random id of this incarnation.")
    store: str = Field(description="URL of the store that holds its record.")
    backend: str = Field(description="Name of the backend.")
    launcher: str = Field(description="Name of the launcher.")
    created: str = Field(description="When it was created, UTC, ISO 8601.")

    @field_validator("schema_version", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        if value != 1:
            raise ValueError(
                f"a handle of schema {value!r} cannot be read by this version of ipcluster-core: it reads 1"
            )
        return value

    def __str__(self) -> str:
        return self.name
