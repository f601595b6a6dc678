"""How engines are made: forked from a nanny that has imported for all of them, or executed anew."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import steps
from ipcluster_core import Cluster, errors


def modules() -> list[str]:
    """Return the names of the modules that this engine has imported."""
    return sorted(sys.modules)


def test_preloaded_modules_are_there_before_the_first_task(tmp_path: Path) -> None:
    """Also one in the engines' working folder; and a module that nobody named is not."""
    (tmp_path / "beside.py").write_text("answer = 42\n")
    with Cluster("eager", n=2, cwd=str(tmp_path), preload=["decimal", "beside"]) as cluster, cluster.client() as client:
        loaded = client.run(modules)

    assert all({"decimal", "beside", "cloudpickle"} <= set(names) for names in loaded.values())
    assert not any("numpy" in names for names in loaded.values())


def test_engines_load_neither_model_library_nor_loop_nor_workflow_engine() -> None:
    """They are small."""
    with Cluster("small", n=1) as cluster, cluster.client() as client:
        loaded = client.submit(modules).result(10)

    assert not {name.partition(".")[0] for name in loaded} & {"pydantic", "asyncio", "prefect", "airflow"}


def threads() -> int:
    """Return the number of Python threads of this engine."""
    import threading

    return threading.active_count()


def test_an_engine_runs_tasks_on_its_main_thread_and_has_no_other() -> None:
    """So signals reach the task, and nothing competes with it."""
    with Cluster("single", n=1) as cluster, cluster.client() as client:
        assert client.submit(threads).result(10) == 1


def test_spawned_engines_do_what_forked_ones_do(tmp_path: Path) -> None:
    """They are programs of their own; one that dies takes one task along and comes back."""
    (tmp_path / "beside.py").write_text("answer = 42\n")
    with Cluster("spawned", n=2, cwd=str(tmp_path), start_method="spawn", preload=["beside"]) as cluster:
        with cluster.client() as client:
            commands = client.run(lambda: Path("/proc/self/cmdline").read_text())
            assert all("ipcluster_core.engine" in command for command in commands.values())
            assert all("beside" in names for names in client.run(modules).values())
            with pytest.raises(errors.EngineLost, match=r"exit code 4"):
                client.submit(os._exit, 4).result(10)
            steps.wait_until(lambda: sorted(e.incarnation for e in cluster.status_sync().engines) == [0, 1])
            assert cluster.wait_sync(2) == 2
            assert list(client.map(abs, range(-100, 0))) == list(range(100, 0, -1))
        nanny = steps.part("spawned", "nanny")
        os.kill(nanny, 9)
        steps.wait_until(lambda: not steps.living("spawned"))


def test_a_package_installed_only_for_the_engines_interpreter_is_theirs() -> None:
    """`python` names the interpreter; one that cannot be run is said to be so."""
    with Cluster("own", n=1, python=sys.executable) as cluster, cluster.client() as client:
        assert client.submit(lambda: sys.executable).result(10) == sys.executable
    with pytest.raises(errors.LaunchError, match=r"/bin/false. ended before it was ready"):
        Cluster.create_sync("own", python="/bin/false")
