"""How the control plane grows: ``python tests/benchmarks/scale.py``.

A real broker with up to 1,000 engines that speak its protocol and do no work, up to 1,000,000 queued tasks, and up to
1,000 records in a store. For each, CPU and memory at several sizes, and the exponent with which they grow: 1 is
linear, 0 does not grow at all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.simulated import Head, Simulation

from ipcluster_core import ClusterManager
from ipcluster_core.process import identify
from ipcluster_core.record import ClusterState, Job, Record, utc_now
from ipcluster_core.store import open_store

#: What one row measured, by column.
Row = Mapping[str, float]

ENGINES = (10, 30, 100, 300, 1000)
QUEUED = (10_000, 100_000, 1_000_000)
QUEUED_SINGLY = (1_000, 10_000, 100_000)
RECORDS = (10, 100, 1000)

#: Tasks that are run at each number of engines.
TASKS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--most-engines", type=int, default=ENGINES[-1])
    parser.add_argument("--most-queued", type=int, default=QUEUED[-1])
    parser.add_argument("--most-records", type=int, default=RECORDS[-1])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    found: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="ib-") as folder:
        url = f"file:{folder}/store"
        tasks = min(TASKS, options.most_queued)
        found["engines"] = engines(url, _up_to(ENGINES, options.most_engines), tasks)
        found["queued"] = queued(url, _up_to(QUEUED, options.most_queued), each=1024)
        found["queued one by one"] = queued(
            url, _up_to(QUEUED_SINGLY, min(QUEUED_SINGLY[-1], options.most_queued)), each=1
        )
        found["records"] = records(f"file:{folder}/records", _up_to(RECORDS, options.most_records))
    for title, rows in found.items():
        _say(f"\n{table(title, rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _up_to(sizes: Sequence[int], most: int) -> list[int]:
    return [size for size in sizes if size < most] + [most]


def engines(url: str, sizes: Sequence[int], tasks: int) -> list[Row]:
    """Register more and more engines with one broker, and run the same number of tasks on them each time."""
    rows: list[Row] = []
    with Head(url) as head, Simulation(head) as simulation:
        memory, registered = head.memory(), 0
        for size in sizes:
            cpu, control = head.cpu(), head.cpu("controller")
            simulation.add_engines(size)
            joining = (head.cpu() - cpu) / (size - registered)
            control = (head.cpu("controller") - control) / (size - registered)
            registered = size
            grown = head.memory() - memory
            chunks, wanted = simulation.chunks, simulation.settled + tasks
            cpu, start = head.cpu(), time.monotonic()
            simulation.submit(tasks)
            simulation.settle(wanted)
            wall, cpu = time.monotonic() - start, head.cpu() - cpu
            chunks = simulation.chunks - chunks
            rows.append(
                {
                    "engines": size,
                    "memory kB": grown / 1e3,
                    "join us": joining * 1e6,
                    "join us (controller)": control * 1e6,
                    "chunks": chunks,
                    "CPU us/chunk": cpu / chunks * 1e6,
                    "CPU us/task": cpu / tasks * 1e6,
                    "tasks/s": tasks / wall,
                }
            )
            _say(_line("engines", rows[-1]))
    return rows


def queued(url: str, sizes: Sequence[int], *, each: int) -> list[Row]:
    """Queue tasks before there is any engine, `each` of them in a message; then have four engines drain the queue."""
    rows: list[Row] = []
    for size in sizes:
        with Head(url) as head, Simulation(head) as simulation:
            memory, cpu = head.memory(), head.cpu()
            simulation.submit(size, each=each)
            queueing, grown = head.cpu() - cpu, head.memory() - memory
            cpu, start = head.cpu(), time.monotonic()
            simulation.add_engines(4)
            simulation.settle(size)
            draining, wall = head.cpu() - cpu, time.monotonic() - start
            rows.append(
                {
                    "queued": size,
                    "memory kB": grown / 1e3,
                    "bytes/task": grown / size,
                    "queueing CPU ms": queueing * 1e3,
                    "draining CPU ms": draining * 1e3,
                    "CPU us/task": (queueing + draining) / size * 1e6,
                    "drained/s": size / wall,
                }
            )
            _say(_line("queued", rows[-1]))
    return rows


def records(url: str, sizes: Sequence[int]) -> list[Row]:
    """List the clusters of a store that holds more and more records; each looks alive, so each is looked at."""
    rows: list[Row] = []
    made = 0
    store, manager = open_store(url), ClusterManager(url)
    job = Job("local", {}, identify().to_dict())
    for size in sizes:
        start = time.process_time()
        for number in range(made, size):
            name = f"record-{number}"
            record = Record(
                name=name,
                incarnation=1,
                uid=f"{number:012x}",
                state=ClusterState.RUNNING,
                created=utc_now(),
                sets={"default": 4},
                jobs=(job,),
            )
            store.create("record", name, record.to_dict())
        making = (time.process_time() - start) / (size - made)
        made = size
        walls, cpus = [], []
        for _ in range(3):
            start, cpu = time.monotonic(), time.process_time()
            found = len(manager.list_sync())
            walls.append(time.monotonic() - start)
            cpus.append(time.process_time() - cpu)
            if found != size:
                raise RuntimeError(f"{found} clusters are listed where there are {size} records")
        start = time.monotonic()
        manager.get_sync("record-0")
        rows.append(
            {
                "records": size,
                "create CPU us": making * 1e6,
                "list ms": min(walls) * 1e3,
                "list CPU ms": min(cpus) * 1e3,
                "get ms": (time.monotonic() - start) * 1e3,
            }
        )
        _say(_line("records", rows[-1]))
    return rows


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the slope of a straight line through the logarithms; None where it has no meaning."""
    if len(sizes) < 2 or min(*sizes, *values) <= 0:
        return None
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return across / sum((a - x) ** 2 for a in xs)


def table(title: str, rows: Sequence[Row]) -> str:
    """Lay out the rows, with a last one for the exponents of growth.

    Returns
    -------
    str
        Lines.
    """
    columns = list(rows[0])
    sizes = [row[columns[0]] for row in rows]
    slopes = [exponent(sizes, [row[column] for row in rows]) for column in columns[1:]]
    cells = [columns, *([f"{row[column]:.4g}" for column in columns] for row in rows)]
    cells.append(["grows with exponent", *("-" if slope is None else f"{slope:.2f}" for slope in slopes)])
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([title, *lines])


def _line(title: str, row: Row) -> str:
    return f"{title}: " + ", ".join(f"{column} {value:.4g}" for column, value in row.items())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
