"""Where the ranks of an MPI set run: how many on which host, and how mpiexec and ssh are told. Pure.

mpiexec finds hosts and its way to them in its environment: each of the two MPIs reads its own variables and leaves the
other's alone, so that nobody need know which one it is.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence

__all__ = [
    "AGENT",
    "HOSTS_MPICH",
    "HOSTS_OPEN_MPI",
    "errand_name",
    "files",
    "is_here",
    "parse",
    "share",
    "ssh_command",
    "variables",
]

#: A host as ssh and both MPIs take it, and for how many ranks it has room.
_HOST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(:(?P<slots>[1-9][0-9]{0,5}))?")

#: Files in a set's folder: the hosts in the form of each MPI, and the program that both take for their ssh.
HOSTS_OPEN_MPI = "hosts-openmpi"
HOSTS_MPICH = "hosts-mpich"
AGENT = "agent"


def parse(text: str) -> tuple[str, int | None]:
    """Understand "node1" or "node1:4".

    Returns
    -------
    tuple
        Name, and room for how many ranks; None when that is not said.

    Raises
    ------
    ValueError
        It is neither.
    """
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no host: give its name, or name:ranks, such as 'node1' or 'node1:4'")
    slots = found["slots"]
    return found["name"], None if slots is None else int(slots)


def share(ranks: int, hosts: Sequence[str]) -> dict[str, int]:
    """Decide how many ranks run on which host.

    Ranks fill the hosts in their order. Those that do not say for how many they have room share alike what the others
    leave.

    Returns
    -------
    dict
        Number of ranks by host; hosts that get none are left out.

    Raises
    ------
    ValueError
        A host is named twice, or they have no room for so many.
    """
    asked = [parse(text) for text in hosts]
    if len(dict(asked)) != len(asked):
        raise ValueError(f"a host is named twice in {list(hosts)}: name it once, with its number of ranks")
    said = sum(slots for _, slots in asked if slots is not None)
    silent = sum(slots is None for _, slots in asked)
    if not silent and ranks > said:
        raise ValueError(f"{ranks} ranks are asked for, and hosts={list(hosts)} have room for {said}")
    each = max(1, math.ceil((ranks - said) / silent)) if silent else 0
    found, left = {}, ranks
    for name, slots in asked:
        here = min(left, each if slots is None else slots)
        if here:
            found[name] = here
        left -= here
    return found


def is_here(host: str, nodename: str) -> bool:
    """Tell whether a host is the one with this name: its ranks need no way to them."""
    return host in ("localhost", nodename, nodename.partition(".")[0])


def errand_name(host: str) -> str:
    """Return the name of the socket in a set's folder that leads to a host."""
    return f"errand-{host}"


def ssh_command(ssh: Sequence[str], host: str, program: Sequence[str]) -> list[str]:
    """Return the command that runs a program on a host."""
    return [*ssh, host, shlex.join(program)]


def files(folder: str, places: Mapping[str, int], python: str) -> dict[str, str]:
    """Return what has to stand in a set's folder, by name of the file.

    Parameters
    ----------
    folder
        Of the set.
    places
        Number of ranks by host.
    python
        The interpreter.

    Returns
    -------
    dict
        Contents; `AGENT` is a program.
    """
    agent = shlex.join([python, "-P", "-m", "ipcluster_core.errand", folder])
    return {
        HOSTS_OPEN_MPI: "".join(f"{host} slots={ranks}\n" for host, ranks in places.items()),
        HOSTS_MPICH: "".join(f"{host}:{ranks}\n" for host, ranks in places.items()),
        AGENT: f'#!/bin/sh\nexec {agent} "$@"\n',
    }


def variables(folder: str) -> dict[str, str]:
    """Return the environment variables by which mpiexec finds these files."""
    agent = os.path.join(folder, AGENT)
    return {
        "PRTE_MCA_prte_default_hostfile": os.path.join(folder, HOSTS_OPEN_MPI),
        # Else cores are counted, and all ranks may come to be on the first host.
        "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": agent,
        # The way to each host begins here: none leads from one of them to the next.
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "HYDRA_HOST_FILE": os.path.join(folder, HOSTS_MPICH),
        "HYDRA_RMK": "user",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
    }
