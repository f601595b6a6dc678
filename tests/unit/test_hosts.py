"""How ranks are laid out on hosts, and how both MPIs are told."""

from __future__ import annotations

import pytest

from ipcluster_core import EngineSpec
from ipcluster_core.hosts import files, is_here, parse, share, ssh_command, variables


@pytest.mark.parametrize(
    ("ranks", "hosts", "found"),
    [
        (4, ["node1", "node2:2"], {"node1": 2, "node2": 2}),
        (2, ["node1", "node2:2"], {"node1": 1, "node2": 1}),
        (5, ["a", "b"], {"a": 3, "b": 2}),
        (3, ["a:1", "b", "c:1"], {"a": 1, "b": 1, "c": 1}),
        (2, ["a:4", "b:4"], {"a": 2}),
        (1, ["a", "b", "c"], {"a": 1}),
        (0, ["a"], {}),
    ],
)
def test_ranks_fill_the_hosts_in_their_order(ranks: int, hosts: list[str], found: dict[str, int]) -> None:
    """Those that do not say how many share alike what is left; those that get none are not used."""
    assert share(ranks, hosts) == found


def test_more_ranks_than_room_is_an_error_with_both_numbers() -> None:
    """Not a surprise on some machine."""
    with pytest.raises(ValueError, match=r"5 ranks are asked for, and hosts=\['a:1', 'b:3'\] have room for 4"):
        share(5, ["a:1", "b:3"])
    with pytest.raises(ValueError, match="named twice"):
        share(2, ["a:1", "a"])


@pytest.mark.parametrize("text", ["", "-oProxyCommand=x", "a b", "a:0", "a:", "a:x", "user@a", "a;b", "$(a)"])
def test_what_is_no_host_is_refused(text: str) -> None:
    """It stands in commands: none that ssh or a shell would take for something else."""
    with pytest.raises(ValueError, match="is no host"):
        parse(text)


def test_the_spec_refuses_hosts_that_do_not_fit() -> None:
    """Where it is written, not when it is started."""
    with pytest.raises(ValueError, match="have room for 2"):
        EngineSpec(n=3, kind="mpi", hosts=["a:2"])
    with pytest.raises(ValueError, match="for sets of kind 'mpi'"):
        EngineSpec(n=3, hosts=["a"])
    with pytest.raises(ValueError, match="at least 1 item"):
        EngineSpec(n=3, kind="mpi", hosts=["a"], ssh=[])
    assert EngineSpec(n=3, kind="mpi", hosts=["a", "b"]).ssh == ["ssh"]


def test_both_mpis_find_hosts_and_the_way_to_them() -> None:
    """Each in its own form, by its own variables."""
    found, told = files("/run set", {"a": 1, "b": 2}, "/usr/bin/python3"), variables("/run set")

    assert found["hosts-openmpi"] == "a slots=1\nb slots=2\n"
    assert found["hosts-mpich"] == "a:1\nb:2\n"
    assert found["agent"] == "#!/bin/sh\nexec /usr/bin/python3 -P -m ipcluster_core.errand '/run set' \"$@\"\n"
    assert told["PRTE_MCA_plm_ssh_agent"] == told["HYDRA_LAUNCHER_EXEC"] == "/run set/agent"
    assert told["PRTE_MCA_prte_default_hostfile"] == "/run set/hosts-openmpi"
    assert told["HYDRA_HOST_FILE"] == "/run set/hosts-mpich"


def test_the_heads_own_host_needs_no_way_to_it() -> None:
    """By any of the names that it has for itself."""
    assert is_here("localhost", "node1.example.org")
    assert is_here("node1", "node1.example.org")
    assert is_here("node1.example.org", "node1.example.org")
    assert not is_here("node", "node1.example.org")
    assert not is_here("node2", "node1")


def test_a_command_for_ssh_is_quoted_for_the_shell_there() -> None:
    """Which ssh gives it to as one line."""
    line = ssh_command(["ssh", "-F", "my config"], "node1", ["/opt/my python", "-m", "x"])

    assert line == ["ssh", "-F", "my config", "node1", "'/opt/my python' -m x"]
