"""Deployments that share a cluster by its name: one makes it at night, one takes it back in the morning, others use it.

prefect server start                                  # in a shell of its own
python examples/prefect_nightly.py                    # serves the deployments; the rest goes by itself, or by hand:
prefect deployment run ipcluster-create/nightly
prefect deployment run months/nightly
prefect deployment run ipcluster-teardown/nightly

python examples/prefect_nightly.py --once             # the three in a row, without server and schedules
"""

from __future__ import annotations

import argparse

from flights import Row, months, statistics, table
from prefect import flow, serve
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from ipcluster_core import ClusterHandle
from prefect_ipcluster import flows, map_on_cluster

#: Name of the cluster: all that the deployments share.
NAME = "nightly"

#: For a server that Prefect starts itself: it may take longer on a busy machine, and has no network to report to.
SERVER = {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120, PREFECT_SERVER_ANALYTICS_ENABLED: False}


@flow(name="months")
def compare_months(cluster: str | ClusterHandle = NAME) -> list[Row]:
    """Describe each month's flights, on the engines: one task run. A retry does only what has not been done."""
    rows: list[Row] = map_on_cluster.with_options(retries=2)(cluster, statistics, months())
    print(table(rows))
    return rows


def once() -> None:
    """Do at once what the deployments do in the course of a night."""
    handle = flows.create(NAME, n=2, lifetime=3600.0)
    try:
        compare_months(handle)
    finally:
        print(flows.teardown(NAME).message)


def main() -> None:
    """Serve the deployments, or do their work once."""
    parser = argparse.ArgumentParser(description="Share a cluster between deployments by its name.")
    parser.add_argument("--once", action="store_true", help="create, use and tear down in a row")
    if parser.parse_args().once:
        with temporary_settings(set_defaults=SERVER):
            once()
        return
    serve(
        flows.create.to_deployment(NAME, cron="0 1 * * *", parameters={"name": NAME, "n": 2}),
        compare_months.to_deployment(NAME, cron="0 2 * * *"),
        flows.teardown.to_deployment(NAME, cron="0 6 * * *", parameters={"cluster": NAME}),
        pause_on_shutdown=False,
    )


if __name__ == "__main__":
    main()
