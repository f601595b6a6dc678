"""Messages between engine ranks against those under a bare mpiexec: ``python tests/benchmarks/mpi.py``.

Both have the same interpreter, mpiexec and environment, and live side by side; whoever does not measure waits in the
kernel. Each exchange is measured in many short rounds, in turn, so that what else the machine does hits both; of each
round by the millisecond, so that the least of all has nothing in it but the exchange. The ratio is bare over ours: 1.00
is as fast, 0.95 is asked for. Exits with 0 also when that is missed: it is judged by people.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.messages import ORDERS, RESULTS, WORK, measure

from ipcluster_core import Cluster, EngineSpec
from ipcluster_core.mpi import environment, find_mpiexec

#: Least ratio that is asked for.
FLOOR = 0.95

#: Seconds for one round of one exchange, and for an mpiexec to end.
PATIENCE = 60.0


class Row(NamedTuple):
    """One exchange: its times in seconds, by round."""

    kind: str
    size: int
    ours: list[list[float]]
    bare: list[list[float]]

    def describe(self) -> tuple[str, float]:
        """Return a line of the table, and the ratio of the least, which has the least noise on top."""
        ours, bare = (list(itertools.chain(*rounds)) for rounds in (self.ours, self.bare))
        best, middle = (of(bare) / of(ours) for of in (min, median))
        cells = [f"{min(times) * 1e6:.2f}, {median(times) * 1e6:.2f} us" for times in (ours, bare)]
        mark = "" if best >= FLOOR else "  !!"
        return f"{self.kind:<12}{self.size:>9}{cells[0]:>24}{cells[1]:>24}{best:>15.2f}, {middle:.2f}{mark}", best


class Bare:
    """Ranks under an mpiexec of their own."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._names = [ORDERS.format(rank) for rank in range(ranks)]
        for name in (*self._names, RESULTS):
            os.mkfifo(folder / name)
        # For reading and writing, so that opening waits for nobody.
        self._orders = [os.open(folder / name, os.O_RDWR) for name in self._names]
        self._results = os.open(folder / RESULTS, os.O_RDWR)
        cores = len(os.sched_getaffinity(0))
        variables = environment(os.environ, {}, mark="bare", folder=str(folder), ranks=ranks, cores=cores)
        program = [sys.executable, str(Path(__file__).parent / "bench" / "messages.py"), str(folder)]
        command = [find_mpiexec(None, sys.executable, os.environ.get("PATH")), "-n", str(ranks), *program]
        self._process = subprocess.Popen(command, env=variables)

    def measure(self, kind: str, size: int, together: int, times: int) -> list[float]:
        """Have it measured."""
        for pipe in self._orders:
            os.write(pipe, json.dumps([kind, size, together, times]).encode() + b"\n")
        poller = select.poll()
        poller.register(self._results, select.POLLIN)
        if not poller.poll(PATIENCE * 1000):
            raise TimeoutError(f"the bare ranks gave no result within {PATIENCE:g} s: {self._process.poll()=}")
        # Written at once, and shorter than what a pipe takes as a whole.
        return list(json.loads(os.read(self._results, select.PIPE_BUF)))

    def close(self) -> None:
        """End it."""
        for pipe in (*self._orders, self._results):
            os.close(pipe)
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()


@contextmanager
def bare_ranks(ranks: int) -> Iterator[Bare]:
    """Have bare ranks."""
    with tempfile.TemporaryDirectory(prefix="ib-") as folder:
        made = Bare(Path(folder), ranks)
        try:
            yield made
        finally:
            made.close()


def compare(ranks: int, rounds: int, times: int) -> list[Row]:
    """Measure each exchange in so many rounds on both, in turn."""
    rows = [Row(kind, size, [], []) for kind, size, _ in WORK]
    sets = {"ranks": EngineSpec(n=ranks, kind="mpi")}
    with (
        tempfile.TemporaryDirectory(prefix="ib-") as folder,
        Cluster("bench-mpi", engines=sets, store=f"file:{folder}") as cluster,
        cluster.client() as client,
        bare_ranks(ranks) as bare,
    ):
        # The first is not counted: before it nothing is warm.
        for _, (row, work) in itertools.product(range(rounds + 1), zip(rows, WORK, strict=True)):
            row.ours.append(client.run(measure, *work, times, engines="ranks", timeout=PATIENCE)[0])
            row.bare.append(bare.measure(*work, times))
    return [row._replace(ours=row.ours[1:], bare=row.bare[1:]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="of each (default 2)")
    parser.add_argument("--rounds", type=int, default=40, help="of each exchange (default 40)")
    parser.add_argument("--times", type=int, default=20, help="that an exchange is timed in a round (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    options = parser.parse_args(arguments)
    rows = compare(options.ranks, options.rounds, options.times)
    lines, ratios = zip(*(row.describe() for row in rows), strict=True)
    head = f"{'exchange':<12}{'bytes':>9}{'ours: least, median':>24}{'mpiexec':>24}{'ratio: least, median':>21}"
    _say("\n".join([head, *lines]))
    _say(f"{sum(ratio >= FLOOR for ratio in ratios)} of {len(rows)} are at {FLOOR} or above")
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
