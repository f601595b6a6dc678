"""Settings of the plug-in: environment variables, a profile's, or ``[integrations.ipcluster]`` in prefect.toml."""

from __future__ import annotations

from typing import ClassVar

from prefect.settings.base import PrefectBaseSettings, build_settings_config
from pydantic import Field
from pydantic_settings import SettingsConfigDict  # noqa: TC002 - pydantic looks at the annotation

__all__ = ["IPClusterSettings"]


class IPClusterSettings(PrefectBaseSettings):
    """What holds for a process: each is ``PREFECT_INTEGRATIONS_IPCLUSTER_`` and its name in capitals."""

    model_config: ClassVar[SettingsConfigDict] = build_settings_config(("integrations", "ipcluster"))

    artifacts: bool = Field(default=True, description="Whether to show engines, progress and the end as artifacts.")
    events: bool = Field(default=True, description="Whether to tell a cluster's life as events.")
