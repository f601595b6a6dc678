"""What Airflow sees of the provider before a task runs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import airflow
import jsonschema
import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers_manager import ProvidersManager
from airflow.sdk import task

import ipcluster_core
from airflow_ipcluster import ClusterHook, CreateClusterOperator
from airflow_ipcluster.get_provider_info import get_provider_info
from ipcluster_core import Cluster, ClusterSpec


def modules_after(*statements: str) -> list[set[str]]:
    """Return the modules that a new interpreter has loaded after each of some statements."""
    code = "import sys, json\n" + "\n".join(f"{line}\nprint(json.dumps(list(sys.modules)))" for line in statements)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in result.stdout.splitlines() if line.startswith("[")]


def require_installed() -> str:
    """Return the version that is installed; without one Airflow finds nothing of ours."""
    try:
        return importlib.metadata.version("ipcluster-core")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is used from its sources and not installed")


def test_the_description_fits_the_schema_of_airflow() -> None:
    """Airflow ignores a provider whose description does not."""
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())

    jsonschema.validate(get_provider_info(), schema)


def test_the_description_names_what_exists() -> None:
    """Airflow imports the hook by the name in the description; lists of modules are shown to people."""
    info = get_provider_info()
    [connection] = info["connection-types"]
    module, _, name = connection["hook-class-name"].rpartition(".")

    assert getattr(import_module(module), name) is ClusterHook
    assert connection["connection-type"] == ClusterHook.conn_type
    assert connection["hook-name"] == ClusterHook.hook_name
    for part in ("operators", "sensors", "hooks", "triggers"):
        assert all(import_module(module) for module in info[part][0]["python-modules"])
    paths = [*info["extra-links"], *info["notifications"]]
    paths += [entry["class-name"] for entry in info["task-decorators"]]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert callable(getattr(import_module(module), name))


def test_the_description_has_the_version_of_the_project() -> None:
    """It is written twice, since the description reads no file."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert get_provider_info()["versions"][0] == ipcluster_core.__version__
    assert get_provider_info()["package-name"] == project["name"]


def test_airflow_finds_the_provider_that_is_installed() -> None:
    """By its entry point; then the connection type is on offer in the user interface."""
    version = require_installed()

    manager = ProvidersManager()
    assert manager.providers["ipcluster-core"].version == version
    assert manager.field_behaviours["ipcluster"]["relabeling"] == {"host": "Store URL"}
    assert callable(task.ipcluster)
    assert "airflow_ipcluster.links.ClusterLink" in manager.extra_links_class_names
    assert "airflow_ipcluster.notifications.GiveUpClaimsNotifier" in manager.notification


def test_the_description_is_read_without_loading_anything_else() -> None:
    """Every process of Airflow reads it."""
    before, after = modules_after("import __future__, typing", "import airflow_ipcluster.get_provider_info")

    assert after - before == {"airflow_ipcluster", "airflow_ipcluster.get_provider_info"}


def test_a_dag_file_that_imports_the_operators_loads_nothing_of_the_core() -> None:
    """The import is paid for at each parse of the DAG file and at the start of each task."""
    before, after = modules_after("from airflow.sdk import DAG", "from airflow_ipcluster import *")
    allowed = ("airflow_ipcluster", "airflow.providers.common.compat", "airflow.sdk")

    new = {name for name in after - before if not name.startswith(allowed)}
    assert new <= {"airflow.providers", "airflow.providers.common"}
    assert not any(name.startswith("ipcluster_core") for name in after)


#: Seconds of a processor that all our names may add to the parse of a DAG file that imports Airflow; they take 8 ms.
PARSE_SECONDS = 0.05

#: Tells them, without the time in which others had the processor.
MEASURE = """
import time
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, task
before = time.process_time()
from airflow_ipcluster import *
print(time.process_time() - before)
"""


def test_parsing_a_dag_file_takes_little_longer_with_our_names() -> None:
    """Each parse, and each start of a task, pays for it: the best of three is judged."""
    command = [sys.executable, "-c", MEASURE]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]

    assert min(float(run.split()[-1]) for run in runs) < PARSE_SECONDS


#: Tells which listeners of ours Airflow itself has found.
LISTENERS = """
from airflow.listeners.listener import get_listener_manager
print(*(module.__name__ for module in get_listener_manager().pm.get_plugins() if "ipcluster" in module.__name__), ".")
"""


def test_airflow_has_the_listener_only_where_it_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener works in the scheduler and in the API server, which may not reach the store."""
    require_installed()
    command = [sys.executable, "-c", LISTENERS]
    off = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("AIRFLOW__IPCLUSTER__GIVE_UP_CLAIMS", "True")
    on = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert off.split()[-1] == "."
    assert on.split()[-2:] == ["airflow_ipcluster.listener", "."]


def test_making_a_hook_asks_nobody_and_without_a_connection_the_store_is_the_default(store_url: str) -> None:
    """Hooks are made while DAG files are parsed."""
    hook = ClusterHook()

    assert hook.store.url == store_url
    assert hook.test_connection() == (True, f"{store_url} holds 0 living clusters")


def test_a_connection_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is the store's URL; of a name, the cluster is looked for there; a handle brings its own store."""
    connection = {"conn_type": "ipcluster", "host": f"file:{tmp_path}/other"}
    monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps(connection))
    hook = ClusterHook("elsewhere")
    with Cluster("there", n=1, store=f"file:{tmp_path}/other") as there, Cluster("here", n=1) as here:
        assert hook.store.url == f"file:{tmp_path}/other"
        assert hook.find("there").handle == there.handle
        assert hook.find(here.handle.model_dump()).handle == here.handle


def test_a_connection_that_was_asked_for_must_exist() -> None:
    """A misspelt one must not quietly become the default."""
    with pytest.raises(AirflowNotFoundException, match="elsewehre"):
        _ = ClusterHook("elsewehre").store


def test_the_default_idle_timeout_is_that_of_the_core() -> None:
    """The operator's module repeats the number, since it does not import the core."""
    assert CreateClusterOperator(task_id="create").idle_timeout == ClusterSpec().idle_timeout
