"""A Prefect flow whose tasks share a cluster: made with 2 engines, used, scaled to 4, used again, ended for sure.

    python examples/prefect_flights.py [PICTURE]

Needs no Prefect server: without one, Prefect starts its own for the time of the flow. That takes most of the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flights import Row, carriers, months, plot, statistics, table
from prefect import flow, task
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from ipcluster_core import Client, ClusterHandle
from prefect_ipcluster import cluster, scale_cluster

#: For a server that Prefect starts itself. On a busy machine that takes longer than the 20 s that it waits by default;
#: its statistics of use fail noisily without network.
SERVER = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120, PREFECT_SERVER_ANALYTICS_ENABLED: False}


@task
def describe_months(handle: ClusterHandle) -> list[Row]:
    """Describe each month, on the engines. The handle is all that this step gets."""
    with Client.connect(handle) as client:
        return list(client.map(statistics, months()))


@task
def describe_carriers(handle: ClusterHandle) -> list[Row]:
    """Describe each carrier, on the engines."""
    with Client.connect(handle) as client:
        return list(client.map(statistics, carriers()))


@flow(name="flights")
def flights(picture: Path, name: str | None = None) -> str:
    """Compare months and carriers; the cluster is named after this flow run unless a name is given."""
    with cluster(name, n=2, preload=["pandas"]) as handle:
        by_month = describe_months(handle)
        scale_cluster(handle, 4)
        by_carrier = describe_carriers(handle)
    plot(by_month, by_carrier, picture)
    return f"{table(by_month)}\n\n{table(by_carrier)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the flights of months and carriers on a cluster.")
    parser.add_argument("picture", nargs="?", type=Path, default=Path("flights.png"), help="PNG file to write")
    parser.add_argument("--name", help="name of the cluster")
    arguments = parser.parse_args()
    with temporary_settings(set_defaults=SERVER):
        print(flights(arguments.picture, arguments.name))
    print(f"\npicture: {arguments.picture}")
