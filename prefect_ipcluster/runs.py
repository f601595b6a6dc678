"""What a flow run calls its clusters: name, claim, labels and limits that come from the run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefect.runtime import flow_run

from ipcluster_core import ClusterSpec, SpecFields

__all__ = [
    "CLAIM_LABEL",
    "LIFETIME",
    "RUN_LABEL",
    "Plan",
    "claim_of",
    "current_claim",
    "current_name",
    "default_name",
    "plan",
    "run_of",
    "suspended",
]

#: Seconds after which a cluster made by a flow ends in any case, unless another lifetime (or None) is asked for.
LIFETIME = 24 * 3600.0

#: Longest name of a cluster: a DNS label.
_LONGEST_NAME = 63

#: Labels of a cluster that tell which flow run has created it, and with which claim.
RUN_LABEL = "prefect-flow-run-id"
CLAIM_LABEL = "prefect-claim"

_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

#: How much of a flow run's id stands in a name.
_ID_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """A cluster to create, with all that the run decides worked in."""

    name: str
    spec: ClusterSpec
    claim: str | None


def plan(name: str | None, spec: ClusterSpec | None, claim: str | None, fields: SpecFields) -> Plan:
    """Work the current flow run's name, claim, labels and the default lifetime into what a user asks for.

    Returns
    -------
    Plan
        Never without a name.

    Raises
    ------
    ValueError
        A name is needed and there is no flow run, or both a spec and its fields are given.
    """
    if spec is not None and fields:
        raise ValueError(f"give a spec or its fields, not both: {', '.join(sorted(fields))}")
    wanted = spec or ClusterSpec(**fields)
    mine = claim or current_claim()
    changes: dict[str, object] = {"labels": {**_labels(mine), **wanted.labels}}
    if "lifetime" not in wanted.model_fields_set:
        changes["lifetime"] = LIFETIME
    return Plan(name or current_name(), wanted.model_copy(update=changes), mine)


def current_name() -> str:
    """Return the name of the current flow run's own cluster; ValueError when there is no flow run."""
    if flow_run.id is None:
        raise ValueError("outside a flow run a cluster needs a name")
    return default_name(flow_run.flow_name or "", flow_run.id)


def default_name(flow: str, run_id: str) -> str:
    """Return the name of a flow run's own cluster, such as ``nightly-report-1f3c9a02``, in all attempts of the run."""
    slug = re.sub(r"[^a-z0-9]+", "-", flow.lower())[: _LONGEST_NAME - _ID_LENGTH - 1].strip("-")
    return f"{slug or 'flow'}-{run_id[:_ID_LENGTH]}"


def claim_of(run_id: object) -> str:
    """Return the claim that stands for a flow run and its subflows."""
    return f"prefect-{run_id}"


def run_of(claim: str) -> str | None:
    """Return the id of the flow run that a claim stands for; None when it is not of such a kind."""
    found = re.fullmatch(rf"prefect-({_ID})(-suspended)?", claim)
    return None if found is None else found[1]


def suspended(claim: str) -> str:
    """Return the claim that keeps a block's cluster while the run with that claim is suspended."""
    return f"{claim}-suspended"


def current_claim() -> str | None:
    """Return the claim that stands for the current run and its subflows; None outside a flow run."""
    # The root's: what one subflow creates, its parent or another subflow may tear down. In a subflow this asks the API.
    root = flow_run.root_flow_run_id
    return None if root is None else claim_of(root)


def _labels(claim: str | None) -> dict[str, str]:
    if flow_run.id is None:
        return {}
    return {
        "prefect-flow": flow_run.flow_name or "",
        "prefect-flow-run": flow_run.name or "",
        RUN_LABEL: flow_run.id,
        CLAIM_LABEL: claim or "",
    }
