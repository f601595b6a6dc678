"""Airflow's plugin: the listener that gives up the claims of runs that are over, where it is switched on.

Every process of Airflow imports this; so it imports nothing else until a run is over.
"""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

from . import listener

__all__ = ["ClusterPlugin"]


class ClusterPlugin(AirflowPlugin):
    """Has the listener if ``[ipcluster] give_up_claims`` says so; the default is no."""

    name = "ipcluster"
    listeners = [listener] if conf.getboolean("ipcluster", "give_up_claims", fallback=False) else []
