"""What mpiexec gives to its ssh, understood."""

from __future__ import annotations

import pytest

from ipcluster_core.errand import split


def test_both_mpis_call_it_as_they_call_ssh() -> None:
    """Open MPI without options, Hydra with one; what follows the host is for a shell."""
    assert split(["node1", "PRTE_PREFIX=/x;export PRTE_PREFIX;prted", "-a", '"b c"']) == (
        "node1",
        'PRTE_PREFIX=/x;export PRTE_PREFIX;prted -a "b c"',
    )
    assert split(["-x", "node2", '"/bin/hydra_pmi_proxy"', "--retries", "10"]) == (
        "node2",
        '"/bin/hydra_pmi_proxy" --retries 10',
    )
    with pytest.raises(ValueError, match="no host in"):
        split(["-x"])
