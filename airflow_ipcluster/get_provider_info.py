"""What Airflow is told about this provider. Imports nothing: Airflow reads it in every process."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]

_TEXT = {"type": ["string", "null"]}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the shape of Airflow's ``provider_info.schema.json``."""
    name = "IPCluster"
    return {
        "package-name": "ipcluster-core",
        "name": name,
        "description": "Parallel clusters that the tasks of a DAG create, share, resize and end by name.",
        "versions": ["0.1.0"],
        "integrations": [{"integration-name": name, "tags": ["service"]}],
        "operators": [{"integration-name": name, "python-modules": ["airflow_ipcluster.operators"]}],
        "sensors": [{"integration-name": name, "python-modules": ["airflow_ipcluster.sensors"]}],
        "hooks": [{"integration-name": name, "python-modules": ["airflow_ipcluster.hooks"]}],
        "triggers": [{"integration-name": name, "python-modules": ["airflow_ipcluster.triggers"]}],
        "connection-types": [_connection_type()],
        "extra-links": ["airflow_ipcluster.links.ClusterLink", "airflow_ipcluster.links.LogsLink"],
        "task-decorators": [{"name": "ipcluster", "class-name": "airflow_ipcluster.decorators.ipcluster_task"}],
        "notifications": ["airflow_ipcluster.notifications.GiveUpClaimsNotifier"],
        "config": {"ipcluster": {"description": "Options of ipcluster-core.", "options": _options()}},
    }


def _connection_type() -> dict[str, Any]:
    page = "https://grafana.example/d/clusters?var-name={name}"
    return {
        "connection-type": "ipcluster",
        "hook-class-name": "airflow_ipcluster.hooks.ClusterHook",
        "hook-name": "IPCluster",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "login", "password", "port", "extra"],
            "relabeling": {"host": "Store URL"},
            "placeholders": {"host": "file:/path/on/all/workers; empty: the default store of each host"},
        },
        "conn-fields": {
            "spec": {
                "label": "Defaults of clusters",
                "description": 'JSON with fields of a spec: {"n": 4, "lifetime": 28800}. A task may say otherwise.',
                "schema": _TEXT,
            },
            "cluster_page": {"label": "Link to a cluster's page", "description": page, "schema": _TEXT},
            "logs_page": {"label": "Link to a cluster's logs", "description": page, "schema": _TEXT},
        },
    }


def _options() -> dict[str, Any]:
    return {
        "give_up_claims": {
            "description": "Whether the claims of a DAG run are given up at the moment at which it is over, also when "
            "it was marked so, or exceeded its timeout. Clusters that nobody else uses end then. The scheduler and the "
            "API server must reach the store of the connection ipcluster_default.",
            "version_added": "0.1.0",
            "type": "boolean",
            "example": None,
            "default": "False",
        }
    }
