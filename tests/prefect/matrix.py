"""What becomes of a cluster, and of its flow run, whatever happens to the flow: a table.

    python tests/prefect/matrix.py              all cells, on a Prefect server of its own
    python tests/prefect/matrix.py --short      those that differ most; what the tests run
    python tests/prefect/matrix.py --only worker --only SIGKILL

Each cell is a real flow run in a process of its own: run directly, served, or started by a worker. Something happens to
it; then no process of its cluster may be alive after the time stated, and the server must know what became of the run.
The exit code is the number of cells in which that does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.request import urlopen
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import leaks

HERE = Path(__file__).parent
FLOWS_FILE = HERE / "matrix_flows.py"

#: Seconds for a flow run to begin, and for the server to know of its end.
BEGIN, KNOWN = 90.0, 60.0

T = TypeVar("T")

WAYS = ("direct", "serve", "worker")
STYLES = ("block", "steps")
POOL = "matrix"


if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@dataclass(frozen=True)
class Case:
    """What happens, and what must come of it: the state on the server, and seconds until no process is left."""

    name: str
    state: str
    within: float = 15.0
    #: Where something else must come of it; None where it cannot happen.
    direct: str | None = ""
    worker: str | None = ""

    def expected(self, way: str) -> str | None:
        """Return the states that are right, as ``A|B``."""
        other = {"direct": self.direct, "worker": self.worker}.get(way, "")
        return self.state if other == "" else other


CASES = (
    Case("task failure", "Failed"),
    Case("flow exception", "Failed"),
    Case("timeout", "TimedOut", within=20),
    Case("SIGTERM", "Crashed"),
    Case("SIGTERM twice", "Crashed", direct="Crashed|Running"),
    Case("SIGINT", "Crashed"),
    # Nobody tells the server that a process which it has not started is gone.
    Case("SIGKILL", "Crashed", within=20, direct="Running"),
    # Nor does anybody stop it: the cluster ends with the flow, by itself.
    Case("cancelled", "Cancelled", within=30, direct="Cancelling|Cancelled"),
    # Only a deployment's run can be started again.
    Case("suspend, resume", "Completed", direct=None),
    # A process worker kills its flows and tells nobody.
    Case("runner SIGTERM", "Cancelled|Crashed", within=45, direct=None, worker="Cancelled|Crashed|Running"),
)

#: Way, style and case of the cells that the tests run.
SHORT = {
    ("direct", "block", "SIGTERM twice"),
    ("direct", "steps", "SIGKILL"),
    ("serve", "steps", "SIGKILL"),
    ("serve", "block", "cancelled"),
    ("worker", "steps", "cancelled"),
    ("worker", "block", "suspend, resume"),
    ("worker", "steps", "runner SIGTERM"),
}


@dataclass(frozen=True)
class Cell:
    """One flow run to which something happens."""

    way: str
    style: str
    case: Case

    @property
    def flow(self) -> str:
        """Name of the flow."""
        return f"{self.style}-limited" if self.case.name == "timeout" else self.style


@dataclass
class Outcome:
    """What came of a cell."""

    cell: Cell
    seconds: float | None = None
    state: str = ""
    ended: str = ""
    wrong: str = ""


def wait_for(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """Wait until something is there; return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.05)
    return found


class Site:
    """A server, and for each way what starts flow runs."""

    def __init__(self, folder: Path, api: str | None) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._starters: dict[str, subprocess.Popen[bytes]] = {}
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "IPCLUSTER_STORE": f"file:{folder}/store",
        }
        self.env.pop("PYTEST_CURRENT_TEST", None)
        self.api = api or self._start_server()
        self.env["PREFECT_API_URL"] = self.api
        # Before Prefect and the core are imported below.
        os.environ.update({key: self.env[key] for key in ("PREFECT_API_URL", "PREFECT_HOME", "IPCLUSTER_STORE")})

    def close(self) -> None:
        """End all that was started."""
        self._stack.close()

    def popen(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """Start a process, with a log in the folder."""
        with (self.folder / f"{log}.log").open("ab") as file:
            return subprocess.Popen(
                [sys.executable, *command],
                env=self.env,
                cwd=self.folder,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )

    def _start(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        process = self.popen(*command, log=log)
        self._stack.callback(stop, process)
        return process

    def _start_server(self) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._start("-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), log="server")
        url = f"http://127.0.0.1:{port}/api"
        wait_for(lambda: answers(f"{url}/health"), 120, "Prefect server")
        return url

    def starter(self, way: str) -> subprocess.Popen[bytes]:
        """Return the process that starts runs in this way; it is started anew if it was ended."""
        process = self._starters.get(way)
        if process is None:
            if way == "serve":
                process = self._start(str(FLOWS_FILE), "serve", log="serve")
            else:
                self._deploy()
                process = self._start(
                    "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", log="worker"
                )
            self._starters[way] = process
        return process

    def end_starter(self, way: str) -> None:
        """Tell it to end; the next run gets another one."""
        self._starters.pop(way).terminate()

    def _deploy(self) -> None:
        deploy = """
import sys
sys.path.insert(0, sys.argv[1])
from prefect import flow
from matrix_flows import FLOWS
for name in FLOWS:
    remote = flow.from_source(sys.argv[1], f"matrix_flows.py:{name.replace('-', '_')}")
    remote.deploy("deployed", work_pool_name=sys.argv[2], print_next_steps=False, ignore_warnings=True)
"""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import WorkPoolCreate
        from prefect.exceptions import ObjectAlreadyExists

        with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        if self.popen("-c", deploy, str(HERE), POOL, log="deploy").wait(120):
            raise RuntimeError("the flows cannot be deployed:\n" + (self.folder / "deploy.log").read_text())


def answers(url: str) -> bool:
    """Tell whether somebody answers there."""
    with suppress(OSError), urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait for it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Run:
    """The flow run of a cell."""

    def __init__(self, site: Site, cell: Cell, folder: Path) -> None:
        self._site, self._cell, self._folder = site, cell, folder
        self.process: subprocess.Popen[bytes] | None = None
        if cell.way == "direct":
            self.process = site.popen(str(FLOWS_FILE), "run", cell.flow, cell.case.name, str(folder), log="direct")
        else:
            self._create()
        self.about: dict[str, Any] = json.loads(wait_for(self._about, BEGIN, "flow run"))
        self.id = UUID(self.about["run"])

    def _about(self) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / "about").read_text()
        return ""

    def _create(self) -> None:
        from prefect.exceptions import ObjectNotFound

        self._site.starter(self._cell.way)
        name = f"{self._cell.flow}/{'served' if self._cell.way == 'serve' else 'deployed'}"

        def deployment() -> UUID | None:
            with suppress(ObjectNotFound), self._client() as client:
                return client.read_deployment_by_name(name).id
            return None

        found = wait_for(deployment, BEGIN, f"deployment {name}")
        parameters = {"case": self._cell.case.name, "folder": str(self._folder)}
        with self._client() as client:
            client.create_flow_run_from_deployment(found, parameters=parameters)

    @staticmethod
    def _client() -> SyncPrefectClient:
        from prefect.client.orchestration import get_client

        return get_client(sync_client=True)

    def state(self) -> str:
        """Return the state on the server."""
        with self._client() as client:
            state = client.read_flow_run(self.id).state
        return "" if state is None else str(state.name)

    def wait_for_state(self, states: str, seconds: float = KNOWN) -> str:
        """Wait until the server knows; return what it says in the end."""
        with suppress(TimeoutError):
            wait_for(lambda: self.state() in states.split("|"), seconds, states)
        return self.state()

    def happen(self) -> None:
        """Do to it what the case is about."""
        case = self._cell.case.name
        pid = int(self.about["pid"])
        if case in ("task failure", "flow exception", "timeout"):
            return
        if case == "suspend, resume":
            self._resume()
            return
        wait_for((self._folder / "busy").exists, BEGIN, "busy engine")
        if case == "cancelled":
            from prefect.states import Cancelling

            with self._client() as client:
                client.set_flow_run_state(self.id, Cancelling())
        elif case == "runner SIGTERM":
            self._site.end_starter(self._cell.way)
        else:
            os.kill(pid, getattr(signal, case.split()[0]))
            if case.endswith("twice"):
                time.sleep(0.3)  # into the midst of what the first has begun
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _resume(self) -> None:
        from prefect.flow_runs import resume_flow_run

        if self.wait_for_state("Suspended") != "Suspended":
            raise TimeoutError(f"the run is not suspended, but {self.state()}")
        wait_for(lambda: not Path(f"/proc/{self.about['pid']}").exists(), 30, "end of the suspended process")
        if not self.living():
            raise TimeoutError("the cluster has not been kept")
        (self._folder / "about").unlink()
        resume_flow_run(self.id)
        again = json.loads(wait_for(self._about, BEGIN, "resumed run"))
        if again["cluster"] != self.about["cluster"]:
            raise TimeoutError(f"the resumed run has another cluster: {again['cluster']}")

    def living(self) -> list[int]:
        """Return the processes of its cluster."""
        from ipcluster_core.process import tagged

        handle = self.about["cluster"]
        return tagged(f"{handle['name']}/{handle['incarnation']}/{handle['uid']}")

    def ended(self) -> str:
        """Return why the cluster has ended."""
        from ipcluster_core import ClusterManager

        return str(ClusterManager().get_sync(self.about["cluster"]["name"]).reason)


def carry_out(site: Site, cell: Cell) -> Outcome:
    """Run a cell, and judge what comes of it."""
    outcome = Outcome(cell)
    folder = Path(tempfile.mkdtemp(dir=site.folder))
    run: Run | None = None
    try:
        run = Run(site, cell, folder)
        run.happen()
        start = time.monotonic()
        # What nobody stops ends by itself before that.
        limit = cell.case.within + (30 if cell.way == "direct" and cell.case.name == "cancelled" else 0)
        wait_for(lambda: not run.living(), limit, "end of the cluster's processes")
        outcome.seconds = time.monotonic() - start
        outcome.ended = run.ended()
        expected = str(cell.case.expected(cell.way))
        outcome.state = run.wait_for_state(expected)
        if outcome.state not in expected.split("|"):
            outcome.wrong = f"the run is {outcome.state}, not {expected}"
    except TimeoutError as error:
        outcome.wrong = str(error)
    finally:
        if run is not None:
            outcome.state = outcome.state or run.state()
            clean_up(run)
    return outcome


def clean_up(run: Run) -> None:
    """End what a cell has left, so that the next one is not disturbed."""
    from ipcluster_core import ClusterManager

    for pid in [run.process.pid] if run.process is not None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if run.process is not None:
        run.process.wait()
    if run.living():
        ClusterManager().teardown_sync(run.about["cluster"]["name"], force=True)


def cells(short: bool, only: list[str]) -> Iterator[Cell]:
    """Return the cells that are asked for."""
    for way, case, style in itertools.product(WAYS, CASES, STYLES):
        words = (way, style, case.name)
        wanted = words in SHORT if short else set(words).issuperset(only)
        if wanted and case.expected(way) is not None:
            yield Cell(way, style, case)


def row(outcome: Outcome) -> str:
    """Write one line of the table."""
    cell = outcome.cell
    gone = "" if outcome.seconds is None else f"{outcome.seconds:.1f} s"
    verdict = f"WRONG: {outcome.wrong}" if outcome.wrong else "ok"
    columns = (
        f"{cell.way:<7} {cell.style:<6} {cell.case.name:<16} {gone:>7} {cell.case.within:>5.0f} s {outcome.state:<11}"
    )
    return f"{columns} {verdict:<4} {outcome.ended.partition(' (')[0]}"


@contextmanager
def site_at(api: str | None) -> Iterator[Site]:
    """Make a site in a temporary folder, whose logs are kept if something is wrong."""
    with tempfile.TemporaryDirectory(prefix="matrix-", ignore_cleanup_errors=True) as folder:
        site = Site(Path(folder), api)
        try:
            yield site
        finally:
            site.close()


def main() -> int:
    """Run the cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="only the cells that differ most")
    parser.add_argument("--only", action="append", default=[], help="a way, style or case; may be given more than once")
    parser.add_argument("--api", help="URL of a Prefect server; default: one is started")
    parser.add_argument("--logs", action="store_true", help="show the logs after a cell in which something is wrong")
    arguments = parser.parse_args()
    leaks.mark_run()
    # Also when this runs in the background of a shell, which has what it starts ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"{'way':<7} {'style':<6} {'case':<16} {'gone':>7} {'limit':>7} {'run is':<11}      why the cluster ended")
    wrong = 0
    with site_at(arguments.api) as site:
        for cell in cells(arguments.short, arguments.only):
            outcome = carry_out(site, cell)
            wrong += bool(outcome.wrong)
            print(row(outcome), flush=True)
            if outcome.wrong and arguments.logs:
                logs = {path.name: path.read_text()[-3000:] for path in site.folder.glob("*.log")}
                print("\n".join(f"--- {name}\n{text}" for name, text in logs.items()), file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
