"""What Airflow is told about this provider. Imports nothing: Airflow reads it in every process."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the shape of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "ipcluster-core",
        "name": "IPCluster",
        "description": "Parallel clusters that the tasks of a DAG create, share, resize and end by name.",
        "versions": ["0.1.0"],
        "integrations": [{"integration-name": "IPCluster", "tags": ["service"]}],
        "operators": [{"integration-name": "IPCluster", "python-modules": ["airflow_ipcluster.operators"]}],
        "hooks": [{"integration-name": "IPCluster", "python-modules": ["airflow_ipcluster.hooks"]}],
        "connection-types": [
            {
                "connection-type": "ipcluster",
                "hook-class-name": "airflow_ipcluster.hooks.ClusterHook",
                "hook-name": "IPCluster",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "password", "port", "extra"],
                    "relabeling": {"host": "Store URL"},
                    "placeholders": {"host": "file:/path/on/all/workers; empty: the default store of each host"},
                },
                "conn-fields": {},
            }
        ],
    }
