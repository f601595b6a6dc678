"""A site's reaper: ends the clusters of runs that died, those that are idle or too old, and broken ones.

    prefect server start                                  # in a shell of its own
    python examples/prefect_reaper.py                     # runs every five minutes, and after each run that ends badly

Clusters end by themselves when their flow does, see the table in README; this is for what is left when a runner is
killed together with its flow, and for clusters that were made without limits.
"""

from __future__ import annotations

import argparse
from datetime import timedelta

from prefect import serve

from prefect_ipcluster import flows
from prefect_ipcluster.automations import install_automations


def main() -> None:
    """Serve the reaper."""
    parser = argparse.ArgumentParser(description="Reap clusters that nobody needs.")
    parser.add_argument("--every", type=float, default=300.0, help="seconds between two rounds")
    parser.add_argument(
        "--idle-for", type=float, default=7200.0, help="seconds without work after which any cluster ends"
    )
    parser.add_argument("--max-age", type=float, default=7 * 86400.0, help="seconds after which any cluster ends")
    arguments = parser.parse_args()
    limits = {"idle_for": arguments.idle_for, "max_age": arguments.max_age}
    reaper = flows.reap.to_deployment("default", interval=timedelta(seconds=arguments.every), parameters=limits)
    reaper.apply()
    install_automations(reaper="ipcluster-reap/default")
    serve(reaper, pause_on_shutdown=False)


if __name__ == "__main__":
    main()
