"""Why an MPI set was lost: pure, from what its nannies and the kernel have told."""

from __future__ import annotations

from typing import Any

import pytest

from ipcluster_core.brood import Child
from ipcluster_core.mpiset import MpiSet


def lost(*gone: tuple[float, int, str], is_killed: bool = False, **settings: Any) -> MpiSet:
    """Return a set whose ranks are the engines from 4 on, some of which are gone."""
    launcher = Child("mpiexec-4", 77)
    launcher.is_killed = is_killed
    return MpiSet("solver", 4, 0, "", "", launcher, {}, list(gone), **{"mpiexec": "exit code 139"} | settings)


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        # 1. One ended, mpiexec the others.
        (
            lost((1.0, 1, "signal SIGSEGV"), (1.1, 0, "exit code 0")),
            "rank 1 (engine 5) ended: signal SIGSEGV; mpiexec: exit code 139",
        ),
        # 2. The same, but its nanny was woken late.
        (
            lost((1.0, 0, "signal SIGKILL"), (1.1, 1, "exit code 3")),
            "rank 1 (engine 5) ended: exit code 3; mpiexec: exit code 139",
        ),
        # 3. Much later is not the cause.
        (
            lost((1.0, 0, "signal SIGKILL"), (2.1, 1, "exit code 3")),
            "rank 0 (engine 4) ended: signal SIGKILL; mpiexec: exit code 139",
        ),
        # 4. Several together.
        (
            lost((1.001, 2, "signal SIGKILL"), (1.0, 0, "signal SIGKILL"), (1.1, 1, "signal SIGKILL")),
            "rank 0 (engine 4) ended: signal SIGKILL; rank 2 (engine 6) ended: signal SIGKILL; mpiexec: exit code 139",
        ),
        # 5. A kernel that has forgotten how.
        (lost((1.0, 1, "")), "rank 1 (engine 5) ended; mpiexec: exit code 139"),
        # 6. mpiexec had nothing to say: it was killed from here.
        (lost((1.0, 1, "signal SIGBUS"), is_killed=True), "rank 1 (engine 5) ended: signal SIGBUS"),
        # 7. No rank is known to have ended before it.
        (lost(), "mpiexec ended: exit code 139"),
        (lost(unwatched="rank 1 (engine 5)"), "the nanny of rank 1 (engine 5) ended"),
    ],
)
def test_the_cause_is_what_ended_first(unit: MpiSet, text: str) -> None:
    """And not what followed it."""
    assert unit.cause() == text


def test_the_death_of_mpiexec_is_the_cause_of_its_ranks() -> None:
    """Nobody else ends by a signal that was not sent from here."""
    assert lost((1.0, 1, "signal SIGKILL"), mpiexec="signal SIGTERM").cause() == "mpiexec ended: signal SIGTERM"
