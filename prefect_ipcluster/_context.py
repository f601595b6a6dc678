"""Prefect's contexts as they are where a task is submitted, made ready to travel.

Serializing them costs more than a whole task run (settings alone some 20 ms), so it is done once for all submissions
from the same place: same flow run, parent task, tags, settings.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

from prefect import Flow, get_client
from prefect.context import FlowRunContext, SettingsContext, TagsContext, TaskRunContext, serialize_context
from prefect.settings import PREFECT_API_URL

from ._inline import EngineTaskRunner

__all__ = ["Contexts", "Surroundings"]

#: So many places are remembered: a task that runs here and submits others is one each time it runs.
_MOST_PLACES = 64

#: What of a flow stays here: its code, and what that code holds on to.
_HOOKS = ("on_completion", "on_failure", "on_cancellation", "on_crashed", "on_running")


class Surroundings(NamedTuple):
    """Serialized contexts, and the key by which an engine knows whether it has opened them already."""

    key: str
    content: Mapping[str, Any]


class Contexts:
    """Serialized contexts by the place where they were met."""

    def __init__(self) -> None:
        # The contexts themselves are kept too: so that no other object gets the identity that is the key.
        self._known: OrderedDict[tuple[object, ...], tuple[tuple[object, ...], Surroundings]] = OrderedDict()

    def current(self) -> Surroundings:
        """Return the current contexts."""
        tags = frozenset(TagsContext.get().current_tags)
        met = (FlowRunContext.get(), TaskRunContext.get(), SettingsContext.get())
        place = (tags, *map(id, met))
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = met, Surroundings(uuid4().hex, _serialize())
            if len(self._known) > _MOST_PLACES:
                self._known.popitem(last=False)
        return known[1]


def _serialize() -> Mapping[str, Any]:
    content = serialize_context()
    if "flow" in content["flow_run_context"]:
        content["flow_run_context"]["flow"] = _without_code(content["flow_run_context"]["flow"])
    settings = content["settings_context"]["settings"]
    settings.setdefault("api", {})["url"] = _api_url()
    # An engine asks nothing of the API for a task of its own accord; only the user's code may.
    settings.setdefault("client", {})["server_version_check_enabled"] = False
    return content


def _without_code(flow: Flow[..., Any]) -> Flow[..., Any]:
    """Return a copy of a flow that can travel, whatever its code refers to."""
    light = copy.copy(flow)
    light.fn = light.__dict__["__wrapped__"] = _elsewhere
    vars(light)["task_runner"] = EngineTaskRunner()
    for hooks in _HOOKS:
        setattr(light, f"{hooks}_hooks", [])
    return light


def _elsewhere(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("the code of the flow did not travel with its tasks: call the flow by its own name instead")


def _api_url() -> str:
    """Return where this process finds the API: engines must not start temporary servers of their own."""
    context = FlowRunContext.get()
    url = PREFECT_API_URL.value()
    if url is not None:
        return str(url)
    client = context.client if context is not None else get_client(sync_client=True)
    return str(client.api_url)
