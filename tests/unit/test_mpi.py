"""How ranks are started, and how each learns its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipcluster_core import ClusterSpec, EngineSpec
from ipcluster_core.mpi import command, environment, find_mpiexec, mark_of, rank_of


def program(path: Path) -> str:
    """Make a program that does nothing."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_mpiexec_beside_the_interpreter_comes_before_that_on_path(tmp_path: Path) -> None:
    """The wheels put it there; what the spec names comes first."""
    python, on_path = str(tmp_path / "venv" / "python"), program(tmp_path / "path" / "mpiexec")
    other = program(tmp_path / "path" / "srun")
    path = str(tmp_path / "path")
    without = find_mpiexec(None, python, path)
    beside = program(tmp_path / "venv" / "mpiexec")

    assert without == on_path
    assert find_mpiexec(None, python, path) == beside
    assert find_mpiexec("srun", python, path) == other
    assert find_mpiexec("/nowhere/mpiexec", python, path) == "/nowhere/mpiexec"
    assert find_mpiexec(None, "/nowhere/python", "") == "mpiexec"


def test_the_command_has_the_users_arguments_before_the_program() -> None:
    """As both MPIs want it."""
    line = command("mpiexec", 3, ["--bind-to", "core"], "python", "/folder")

    assert line == ["mpiexec", "-n", "3", "--bind-to", "core", "python", "-P", "-m", "ipcluster_core.rank", "/folder"]


def test_the_preset_for_one_machine_gives_way_to_what_the_user_says() -> None:
    """The spec is stronger than the nanny's environment, which is stronger than the preset."""
    given, asked = {"OMPI_MCA_mtl": "a", "OMPI_MCA_btl": "b", "X": "1"}, {"OMPI_MCA_btl": "c"}
    found = environment(given, asked, mark="2/0", folder="/f", ranks=2, cores=2)

    assert (found["OMPI_MCA_mtl"], found["OMPI_MCA_btl"], found["X"]) == ("a", "c", "1")
    assert found["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert (found["IPCLUSTER_MPI"], found["PRTE_MCA_prte_local_tmpdir_base"]) == ("2/0", "/f")
    assert "OMPI_MCA_mpi_yield_when_idle" not in found


def test_more_ranks_than_cores_give_up_their_core_while_they_wait() -> None:
    """Else they would keep those from working that they wait for."""
    found = environment({}, {}, mark="0/0", folder="/f", ranks=3, cores=2)

    assert found["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"])
def test_a_rank_learns_what_it_is_from_its_environment(variable: str) -> None:
    """Whichever MPI has started it."""
    assert rank_of({variable: "2", "OTHER": "5"}) == 2


def test_a_process_that_no_mpiexec_has_started_is_no_rank() -> None:
    """And says what it looked for."""
    with pytest.raises(ValueError, match="none of OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK is set"):
        rank_of({})


def test_what_is_for_mpi_sets_is_refused_for_others() -> None:
    """An MPI set, in its turn, does not adapt."""
    with pytest.raises(ValueError, match="mpiexec, mpi_args, hosts and ssh are for sets of kind 'mpi'"):
        EngineSpec(n=2, mpiexec="mpiexec")
    with pytest.raises(ValueError, match="adapt is for processes"):
        ClusterSpec(engines={"default": EngineSpec(n=2, kind="mpi")}, adapt=(1, 2))
    assert EngineSpec(n=2, kind="mpi", mpi_args=["-quiet"]).mpi_args == ["-quiet"]


def test_the_mark_of_a_set_is_that_of_one_cluster_and_one_life() -> None:
    """Whoever ends what carries it ends nothing else of the user's."""
    marks = {mark_of(tag, first, life) for tag in ("a/1/x", "a/2/y") for first in (0, 4) for life in (0, 1)}

    assert len(marks) == 8
    assert mark_of("waves/3/5eed", 4, 1) == "waves/3/5eed/4/1"
