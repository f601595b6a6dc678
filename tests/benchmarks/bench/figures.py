"""The figures: each a function of a running session that returns what it measured, in seconds, bytes and numbers."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

from bench import tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.meter import Meter
    from bench.peers import Peer

    Values = dict[str, float]

#: Seconds after which a killed engine's task is no longer waited for.
_LONGEST_FAILURE = 40.0

#: Seconds that the single submits of a slow peer take, about.
_SUBMIT_SECONDS = 6.0

#: Seconds after which what is slow is not done once more.
_REPEAT_SECONDS = 10.0

#: Seconds that round trips are made for.
_TRIP_SECONDS = 3.0


class Run:
    """A session at work. `quick`: so little of everything that only the machinery is tried."""

    def __init__(self, name: str, peer: Peer, meter: Meter, start_ns: int, *, quick: bool) -> None:
        self.name = name
        self.peer = peer
        self.meter = meter
        self.start_ns = start_ns
        self.quick = quick
        self.closed = False
        self.pids: list[int] = []
        self._cold: Values = {}

    def begin(self) -> None:
        """Have a result from each engine; what that took since the session was started is the figure `cold`."""
        self.pids = self.peer.pids()
        wall = (time.monotonic_ns() - self.start_ns) / 1e9
        self._cold = {"wall": wall, "cpu": self.meter.cpu()}
        distinct = len(set(self.pids))
        if distinct != self.peer.n:
            raise RuntimeError(f"{distinct} engines where {self.peer.n} were asked for")

    def cold(self) -> Values:
        """Tell what `begin` measured."""
        return self._cold

    def amount(self, full: int, quick: int) -> int:
        """Choose by the kind of run."""
        return quick if self.quick else full


def memory(run: Run) -> Values:
    """Memory of idle engines, in the mean, and of all that is neither engine nor client."""
    engines = [_memory(pid) for pid in run.pids]
    others = [_memory(pid) for pid in run.meter.others() if pid not in run.pids]
    return {
        "private": sum(private for private, _ in engines) / len(engines),
        "pss": sum(pss for _, pss in engines) / len(engines),
        "others": float(sum(pss for _, pss in others)),
        "count": float(len(others)),
    }


def _memory(pid: int) -> tuple[int, int]:
    """Return private bytes and proportional set size of a process; zeros when it has just ended."""
    private = pss = 0
    try:
        with pathlib.Path(f"/proc/{pid}/smaps_rollup").open() as file:
            lines = file.readlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    for line in lines:
        key, _, rest = line.partition(":")
        if key in ("Private_Clean", "Private_Dirty"):
            private += int(rest.split()[0]) * 1024
        elif key == "Pss":
            pss = int(rest.split()[0]) * 1024
    return private, pss


def connect(run: Run) -> Values:
    """Have one result in a new process that connects; CPU of that process alone, so that a peer's idling is not in."""
    address = run.peer.address()
    command = [sys.executable, os.path.join(os.path.dirname(__file__), "step.py"), run.name, address]
    walls, cpus = [], []
    for _ in range(run.amount(7, 2)):
        start = time.monotonic()
        pid = os.posix_spawn(command[0], command, os.environ)
        _, status, usage = os.wait4(pid, 0)
        walls.append(time.monotonic() - start)
        cpus.append(usage.ru_utime + usage.ru_stime)
        if status:
            raise RuntimeError(f"the step failed: status {status}")
    return {"wall": _median(walls), "cpu": _median(cpus), "min": min(cpus)}


def trip(run: Run) -> Values:
    """Submit one trivial task, wait for its result, again and again."""
    submit, result = run.peer.submit, run.peer.result
    for number in range(20):
        result(submit(tasks.inc, number))
    times: list[float] = []
    cpu = run.meter.cpu()
    end = time.monotonic() + _TRIP_SECONDS
    for number in range(run.amount(1000, 20)):
        start = time.perf_counter()
        if start > end:
            break
        _expect(result(submit(tasks.inc, number)), number + 1)
        times.append(time.perf_counter() - start)
    cpu = run.meter.cpu() - cpu
    return {"min": min(times), "median": _median(times), "cpu": cpu / len(times), "count": float(len(times))}


def submits(run: Run) -> Values:
    """Submit many trivial tasks one by one and wait for all; fewer for peers that would take minutes."""
    submit, results = run.peer.submit, run.peer.results
    pilot = run.amount(100, 20)
    start = time.perf_counter()
    results([submit(tasks.inc, number) for number in range(pilot)])
    rate = pilot / (time.perf_counter() - start)
    count = max(pilot, min(run.amount(20_000, 500), int(rate * _SUBMIT_SECONDS)))
    cpu = run.meter.cpu()
    start = time.perf_counter()
    handles = [submit(tasks.inc, number) for number in range(count)]
    submitted = time.perf_counter() - start
    found = results(handles)
    wall = time.perf_counter() - start
    cpu = run.meter.cpu() - cpu
    _expect(sum(found), count * (count + 1) // 2)
    return {"rate": count / wall, "cpu": cpu / count, "submit": submitted / count, "count": float(count)}


def map_chunks(run: Run) -> Values:
    """Map a trivial function over many items in chunks of 500."""
    count, chunk = run.amount(200_000, 2_000), 500
    run.peer.map(tasks.inc, range(2 * chunk), chunk)
    cpu = run.meter.cpu()
    start = time.perf_counter()
    found = run.peer.map(tasks.inc, range(count), chunk)
    wall = time.perf_counter() - start
    cpu = run.meter.cpu() - cpu
    _expect(sum(found), count * (count + 1) // 2)
    return {"rate": count / wall, "cpu": cpu / count}


def uneven(run: Run) -> Values:
    """Single tasks of 1 ms, every tenth of 30 ms: how much longer than if all engines were busy to the end."""
    lengths = [0.030 if number % 10 == 0 else 0.001 for number in range(run.amount(400, 40))]
    run.peer.results([run.peer.submit(tasks.spend, 0.001) for _ in range(2 * run.peer.n)])
    start = time.perf_counter()
    run.peer.results([run.peer.submit(tasks.spend, length) for length in lengths])
    wall = time.perf_counter() - start
    return {"wall": wall, "over_ideal": wall / (sum(lengths) / run.peer.n)}


def _array_bytes(run: Run) -> int:
    return run.amount(100_000_000, 1_000_000)


def broadcast(run: Run) -> Values:
    """Hand 100 MB to each engine, which reads it."""
    import numpy as np

    array = np.ones(_array_bytes(run) // 8)
    wanted = [tasks.touch(array)] * run.peer.n
    return _repeated(run, run.amount(5, 2), lambda: _expect(run.peer.broadcast(array), wanted))


def pull(run: Run) -> Values:
    """Have a result of 100 MB, and read it. The first ones, of each engine, are not counted."""
    size = _array_bytes(run)

    def fetch() -> float:
        return tasks.touch(run.peer.result(run.peer.submit(tasks.produce, size)))

    wanted = fetch()
    _repeated(run, 2 * run.peer.n, lambda: _expect(fetch(), wanted))
    return _repeated(run, run.amount(9, 2), lambda: _expect(fetch(), wanted))


def _repeated(run: Run, times: int, action: Callable[[], None]) -> Values:
    """Return the medians of doing something several times, or as often as there is time for."""
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(times):
        if sum(walls) > _REPEAT_SECONDS:
            break
        cpu = run.meter.cpu()
        start = time.perf_counter()
        action()
        walls.append(time.perf_counter() - start)
        cpus.append(run.meter.cpu() - cpu)
    return {"wall": _median(walls), "cpu": _median(cpus), "min": min(walls), "first": walls[0], "max": max(walls)}


def add(run: Run) -> Values:
    """Double the engines, until each has given a result."""
    count = run.peer.n
    cpu = run.meter.cpu()
    start = time.perf_counter()
    run.peer.add(count)
    run.peer.n += count
    pids = run.peer.pids()
    wall = time.perf_counter() - start
    cpu = run.meter.cpu() - cpu
    _expect(len(set(pids)), run.peer.n)
    return {"wall": wall, "cpu": cpu}


def restart(run: Run) -> Values:
    """Replace one idle engine, until all have given a result again."""
    start = time.perf_counter()
    run.peer.restart(run.pids[0])
    pids = run.peer.pids()
    wall = time.perf_counter() - start
    _expect(len(set(pids)), run.peer.n)
    _expect(run.pids[0] in pids, expected=False)
    run.pids = pids
    return {"wall": wall}


def restart_busy(run: Run) -> Values:
    """Replace one engine while all are at work, until it gives a result; and count the tasks that this costs."""
    folder = run.peer.meeting()
    handles = [run.peer.submit(tasks.stall, folder) for _ in range(run.peer.n)]
    tasks.wait_for(lambda: len(os.listdir(folder)) >= len(handles), "all engines at work")
    start = time.perf_counter()
    run.peer.restart(run.pids[0])
    # All others are at work, or have been restarted too.
    pid = run.peer.result(run.peer.submit(os.getpid))
    wall = time.perf_counter() - start
    _expect(pid == run.pids[0], expected=False)
    working = [pid for pid in run.pids[1:] if os.path.exists(f"/proc/{pid}")]
    return {"wall": wall, "others_lost": float(run.peer.n - 1 - len(working))}


def kill(run: Run) -> Values:
    """Kill an engine at work: seconds until its future fails, and whether there is a pool after it."""
    folder = run.peer.meeting()
    handle = run.peer.submit(tasks.stall, folder)
    tasks.wait_for(lambda: bool(os.listdir(folder)), "the task has begun")
    start = time.perf_counter()
    os.kill(int(os.listdir(folder)[0]), signal.SIGKILL)
    try:
        run.peer.result(handle, _LONGEST_FAILURE)
    except Exception as error:  # noqa: BLE001 - each peer has its own
        wall = time.perf_counter() - start
        if isinstance(error, TimeoutError) and wall >= _LONGEST_FAILURE:
            raise RuntimeError(f"the future did not fail within {_LONGEST_FAILURE:g} s") from None
    else:
        raise RuntimeError("the task came back to life")
    try:
        survives = run.peer.result(run.peer.submit(tasks.inc, 1), 10.0) == 2
    except Exception:  # noqa: BLE001 - whatever says that the pool is lost
        survives = False
    return {"wall": wall, "survives": float(survives)}


def teardown(run: Run) -> Values:
    """End the engines while each is at work; the supervisor adds when the last process was gone."""
    folder = run.peer.meeting()
    handles = [run.peer.submit(tasks.stall, folder) for _ in range(run.peer.n)]
    tasks.wait_for(lambda: len(os.listdir(folder)) >= len(handles), "all engines at work")
    run.meter.closing()
    run.closed = True
    start = time.monotonic()
    run.peer.close()
    return {"returned": time.monotonic() - start, "start": start}


def imports(run: Run) -> Values:
    """Import the client in new processes: what our own modules take, and CPU of it all over that of pyzmq alone."""
    own, bare, whole = [], [], []
    for _ in range(run.amount(15, 2)):
        own.append(_own_seconds("import ipcluster_core.client"))
        bare.append(_program_cpu("import zmq"))
        whole.append(_program_cpu("import zmq, ipcluster_core.client"))
    # The least is what it takes; all have noise on top.
    return {"own": min(own), "cpu": min(whole) - min(bare), "median": _median(whole) - _median(bare)}


def _program_cpu(program: str) -> float:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)
    usage = os.wait4(pid, 0)[2]
    return usage.ru_utime + usage.ru_stime


def _own_seconds(program: str) -> float:
    """Return what modules of ours take to import, without what they import from elsewhere."""
    import subprocess

    command = [sys.executable, "-X", "importtime", "-c", program]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    fields = [line.removeprefix("import time:").split("|") for line in lines if "ipcluster_core" in line]
    return sum(int(own) for own, _, _ in fields) / 1e6


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise RuntimeError(f"{found!r} came where {expected!r} was expected")


#: All figures by name.
FIGURES: dict[str, Callable[[Run], Values]] = {
    "cold": Run.cold,
    "memory": memory,
    "connect": connect,
    "trip": trip,
    "submits": submits,
    "map": map_chunks,
    "uneven": uneven,
    "broadcast": broadcast,
    "pull": pull,
    "restart": restart,
    "restart_busy": restart_busy,
    "add": add,
    "kill": kill,
    "teardown": teardown,
    "imports": imports,
}
