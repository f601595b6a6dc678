"""What is measured, and what is asked of it: ours against a peer, in one run, with four engines.

"1:15" for a cost: at most a fifteenth of the peer's; "150:1" for a rate: at least 150 times the peer's. Guides are
for a quiet machine of the kind on which they were found, and are told, not judged: the first is to be kept, the
second was reached by an experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

__all__ = ["MEASURES", "Measure", "parse_ratio"]


@dataclass(frozen=True)
class Measure:
    """One row of the table.

    `figure` and `value` say where it comes from: a function of `bench.figures` and a key of what it returns (for
    "growth" see `bench.plan`). `limit` is the most that ours may have by itself. `least`: the smallest of all passes
    counts, not their median.
    """

    figure: str
    value: str
    title: str
    unit: str
    floors: Mapping[str, str] = field(default_factory=dict)
    guide: tuple[float, float] | None = None
    limit: float | None = None
    more_is_better: bool = False
    least: bool = False

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.figure}.{self.value}"


def parse_ratio(text: str) -> Fraction:
    """Return what "1:15" stands for; ValueError if it is not of that form."""
    ours, _, theirs = text.partition(":")
    return Fraction(ours) / Fraction(theirs)


def _floors(text: str) -> dict[str, str]:
    """Read "peer ratio, peer ratio"; peers as in `bench.peers`."""
    return {part.split()[0]: part.split()[1] for part in text.split(", ")}


MEASURES = (
    Measure(
        "cold",
        "wall",
        "cold process to a result from each engine",
        "s",
        _floors(
            "ipyparallel 1:15, dask 1:4, ray 1:12, parsl 1:15, executorlib 1:2.5, mpi4py 1:3, loky 1:1.2, futures 1.5:1"
        ),
        guide=(0.3, 0.15),
    ),
    Measure(
        "cold",
        "cpu",
        "CPU of a cold start",
        "s",
        _floors(
            "ipyparallel 1:10, dask 1:6, ray 1:15, parsl 1:10, executorlib 1:4, mpi4py 1:2.5, loky 1:2, futures 1.3:1"
        ),
        guide=(0.35, 0.2),
    ),
    Measure("growth", "cpu", "growth of that CPU from 2 to 8 engines", "%", limit=0.25),
    Measure(
        "connect",
        "cpu",
        "connect in a new process + one result, CPU",
        "s",
        _floors("ipyparallel 1:4, dask 1:5, ray 1:7"),
        guide=(0.085, 0.062),
    ),
    Measure("connect", "wall", "connect in a new process + one result, wall", "s"),
    Measure("imports", "own", "import of the client, own modules", "s", guide=(0.01, 0.005)),
    Measure("imports", "cpu", "import of the client over that of pyzmq, CPU", "s"),
    Measure(
        "trip",
        "min",
        "round trip of a trivial task, min",
        "s",
        _floors(
            "ipyparallel 1:8, dask 1:12, ray 1:3, parsl 1:4, executorlib 1:5, mpi4py 1:2, loky 1.5:1, futures 2.5:1"
        ),
        guide=(0.0004, 0.00024),
        least=True,
    ),
    Measure("trip", "median", "round trip of a trivial task, median", "s"),
    Measure("trip", "cpu", "round trip of a trivial task, CPU", "s"),
    Measure(
        "submits",
        "cpu",
        "single submits, CPU per task",
        "s",
        _floors(
            "ipyparallel 1:200, dask 1:120, ray 1:50, parsl 1:80, executorlib 1:15, mpi4py 1:7, loky 1:7, futures 1:6"
        ),
        guide=(2e-05, 6.5e-06),
    ),
    Measure(
        "submits",
        "rate",
        "single submits, tasks per second",
        "/s",
        _floors(
            "ipyparallel 150:1, dask 80:1, ray 30:1, parsl 50:1, executorlib 20:1, mpi4py 8:1, loky 5:1, futures 5:1"
        ),
        guide=(6e4, 2.3e5),
        more_is_better=True,
    ),
    Measure(
        "map",
        "rate",
        "map in chunks of 500, items per second",
        "/s",
        _floors("ipyparallel 5:1, mpi4py 1:1.5, loky 1:1.5, futures 1:1.5"),
        guide=(1.5e6, 2.9e6),
        more_is_better=True,
    ),
    Measure(
        "broadcast",
        "cpu",
        "broadcast of 100 MB to all, CPU",
        "s",
        _floors("ipyparallel 1:5, dask 1:4, ray 2:1, parsl 1:80, executorlib 1:5, mpi4py 1:3, loky 1:5, futures 1:6"),
        guide=(0.25, 0.1),
    ),
    Measure("broadcast", "wall", "broadcast of 100 MB to all, wall", "s"),
    Measure(
        "pull",
        "cpu",
        "result of 100 MB, CPU",
        "s",
        _floors("ipyparallel 1:3, dask 1:2, ray 1.5:1, parsl 1:40, executorlib 1:4, mpi4py 1:3, loky 1:3, futures 1:4"),
        guide=(0.13, 0.05),
    ),
    Measure("pull", "wall", "result of 100 MB, wall", "s"),
    Measure(
        "add",
        "wall",
        "four more engines, until each gave a result",
        "s",
        _floors("ipyparallel 1:50, dask 1:25, executorlib 1:4, loky 1:3"),
        guide=(0.1, 0.015),
    ),
    Measure(
        "restart",
        "wall",
        "restart of one engine, until all gave a result",
        "s",
        _floors("ipyparallel 1:40, dask 1:8"),
        guide=(0.15, 0.015),
    ),
    Measure("restart_busy", "wall", "restart of one engine, all at work", "s", _floors("ipyparallel 1:40")),
    Measure("restart_busy", "others_lost", "other engines that this costs", "#"),
    Measure(
        "teardown",
        "gone",
        "teardown of busy engines, last process gone",
        "s",
        _floors("ipyparallel 1:5, dask 1:4, ray 1:10, parsl 1:1, loky 1:1"),
        guide=(0.2, 0.02),
    ),
    Measure(
        "memory",
        "private",
        "private memory of an idle engine",
        "B",
        _floors(
            "ipyparallel 1:5, dask 1:5, ray 1:6, parsl 1:4, executorlib 1:2.5, mpi4py 1:1.5, loky 1:1.4, futures 1.4:1"
        ),
        guide=(8e6, 2.3e6),
    ),
    Measure(
        "memory",
        "others",
        "PSS of all that is neither engine nor client",
        "B",
        _floors("ipyparallel 1:4, ray 1:8, parsl 1:2.5"),
        guide=(4.5e7, 1.5e7),
    ),
    Measure(
        "kill",
        "wall",
        "kill -9 of an engine to the failed future",
        "s",
        _floors("ipyparallel 1:50, dask 2:1, ray 2:1, parsl 1:250, loky 1:1"),
        guide=(0.1, 0.01),
    ),
    Measure("kill", "survives", "is there a pool after it", "yes", more_is_better=True),
    Measure("uneven", "over_ideal", "every tenth task 30x as long: makespan over ideal", "x", guide=(1.4, 1.15)),
)
