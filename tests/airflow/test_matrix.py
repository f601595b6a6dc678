"""What happens to clusters when things happen to runs of a deployed Airflow: the short form of `matrix.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leaks
from cells import CELLS, SHORT, Cell, install, perform, variables
from deployment import Deployment


@pytest.fixture
def leak_policy() -> leaks.Policy:
    """Allow the processes that the deployment starts for tasks; it is ended behind the last cell."""
    return leaks.Policy(processes=("*-m airflow *", "airflow *"))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start an Airflow that has the DAGs of the cells."""
    home = tmp_path_factory.mktemp("deployment") / "airflow"
    deployment = Deployment(home, **variables(home))
    install(deployment)
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.stop()


@pytest.mark.timeout(400)  # the first of them starts Airflow, which takes half a minute by itself
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in SHORT], ids=lambda cell: cell.name)
def test_run_tasks_and_cluster_end_as_they_should(
    airflow: Deployment, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process of the cluster is left, there is no second cluster, and states are right."""
    monkeypatch.setenv("IPCLUSTER_STORE", airflow.store)

    assert perform(airflow, cell).wrong == []
