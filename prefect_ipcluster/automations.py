"""Prefect's own reaction to a flow run that ends badly: a run of the reaper for it, within seconds.

It needs no hook in the flow, and acts also where the run's process and its runner are gone, as soon as Prefect knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

__all__ = ["AUTOMATION", "install_automations"]

#: Name of the automation.
AUTOMATION = "ipcluster: reap after a run that ended badly"

#: The id of the run, as text: a bare template would be made JSON by Prefect 3.9, which its ids cannot be.
_RUN_ID = {"__prefect_kind": "jinja", "template": "{{ flow_run.id }}"}

#: Events of a run that has ended without meaning to leave its clusters.
_ENDS = ("Failed", "Crashed", "Cancelled", "TimedOut")


def install_automations(*, reaper: str = "ipcluster-reap/default", flows: Sequence[str] | None = None) -> list[UUID]:
    """Have Prefect run the reaper for each flow run that fails, crashes, is cancelled or times out.

    Safe to repeat: an automation that is there already is changed.

    Parameters
    ----------
    reaper
        Deployment of `prefect_ipcluster.flows.reap`.
    flows
        Names of the flows whose runs count. Default: all; runs without clusters cost a short run of the reaper.

    Returns
    -------
    list of UUID
        Ids of the automations.

    Raises
    ------
    prefect.exceptions.ObjectNotFound
        There is no such deployment: serve or deploy the reaper first.
    """
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(reaper)
        wanted = automation(deployment.id, flows)
        found = client.read_automations_by_name(AUTOMATION)
        if not found:
            return [client.create_automation(wanted)]
        for one in found:
            client.update_automation(one.id, wanted)
        return [one.id for one in found]


def automation(deployment: UUID, flows: Sequence[str] | None) -> AutomationCore:
    """Return what is to be installed. The reaper's own runs do not count, or it would never come to rest."""
    ends = [f"prefect.flow-run.{end}" for end in _ENDS]
    related = {"prefect.resource.role": "flow"}
    names = [*flows] if flows is not None else ["!ipcluster-reap"]
    return AutomationCore(
        name=AUTOMATION,
        description="Gives up the clusters of a flow run that is over, see prefect_ipcluster.flows.reap.",
        trigger=EventTrigger(
            expect=set(ends),
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification({**related, "prefect.resource.name": names}),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            RunDeployment(
                source="selected",
                deployment_id=deployment,
                parameters={"flow_run_id": _RUN_ID},
                job_variables=None,
            )
        ],
    )
