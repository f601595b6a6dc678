"""C01, C04, C05, C08, C31, C33 where Prefect's own code has a part in it."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_API_URL
from prefect.states import State

import steps
from ipcluster_core import Client, ClusterHandle, ClusterManager, errors
from prefect_ipcluster import connect_cluster, create_cluster, teardown_cluster
from speech import SPEAKERS, spoken

#: A flow whose cluster outlives it, and which is at work when it is told to stop.
STOPPED = """
    import time
    from prefect import flow
    from ipcluster_core import Client
    from prefect_ipcluster import create_cluster

    @flow
    def nightly():
        with Client.connect(create_cluster("nightly", n=1, idle_timeout=5)) as client:
            future = client.submit(time.sleep, 4)
            print("ready", flush=True)
            future.result()

    nightly()
"""


def test_the_cluster_of_a_flow_that_was_stopped_and_killed_ends_by_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C01 (b): SIGTERM, then SIGKILL; it ends when the task of 4 s (not 60 s) is done, and 5 s (not 20 s) later."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    with steps.started_step(STOPPED) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(1)  # the time that is given to it, before it is killed
    steps.wait_until(lambda: not steps.living("nightly"), 40)

    assert time.monotonic() - start > 4
    with pytest.raises(errors.ClusterEnded, match=r"ended 20\S+Z: idle limit of 5 s reached \(by idle_timeout\)"):
        Client.connect("nightly")


#: A step that creates; a line tells when it is about to, and one when it has.
CREATOR = """
    from prefect import flow
    from prefect_ipcluster import create_cluster

    @flow
    def nightly():
        print("begins", flush=True)
        print(create_cluster("c04", n=3, claim="run-7"), flush=True)

    nightly()
"""

#: Seconds after the start of the task at which its process is killed.
KILLS = (0.05, 0.2, 0.4)


def test_a_create_task_that_was_killed_and_is_tried_again_makes_one_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """C04: three creates (not ten) are killed; each retry adopts or removes what is there; all answer."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    for moment in KILLS:
        with steps.started_step(CREATOR) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "begins\n"
            # The moment of the kill is what is tried here; there is no condition to wait for.
            time.sleep(moment)
        assert steps.run_step(CREATOR).split() == ["begins", "c04"]

        with Client.connect("c04") as client:
            engines = set(client.run(os.getpid).values())
        parts = {steps.part("c04", which) for which in ("nanny", "controller", "broker")}
        assert len(engines) == 3
        assert set(steps.living("c04")) == engines | parts
        assert list(steps.record_of("c04").claims) == ["run-7"]
        assert ClusterManager().teardown_sync("c04", claim="run-7").outcome == "ended"
        assert not steps.living("c04")


@task(cache_policy=NO_CACHE)
def engine_pids(cluster: ClusterHandle) -> set[int]:
    """Use a cluster, and close the client twice."""
    with Client.connect(cluster) as client:
        found = set(client.run(os.getpid).values())
        client.shutdown()
    client.shutdown()
    return found


def test_flows_that_only_connect_leave_the_cluster_to_others() -> None:
    """C05: three flows in turn, of which the second raises; all meet the same engines."""
    assert steps.ctl("create", "shared", "-n", "2").returncode == 0
    before = set(steps.living("shared"))

    @flow
    def use(*, fail: bool) -> set[int]:
        found = engine_pids(connect_cluster("shared"))
        if fail:
            raise LookupError("in the flow")
        return found

    first, second, third = use(fail=False), use(fail=True, return_state=True), use(fail=False)  # type: ignore[call-overload]

    assert first == third
    assert second.is_failed()
    assert set(steps.living("shared")) == before
    assert steps.ctl("teardown", "shared", "--force").returncode == 0


@task(cache_policy=NO_CACHE)
def wait_long(cluster: ClusterHandle) -> None:
    """Wait without a limit."""
    with Client.connect(cluster) as client:
        client.submit(time.sleep, 300).result()


def test_a_task_that_waits_for_a_cluster_that_is_gone_ends_failed() -> None:
    """C08: within 10 s of the teardown; neither the task nor the flow stays in Running."""
    times: list[float] = []

    def tear_down() -> None:
        steps.wait_until(lambda: "c08" in steps.ctl("list").stdout, 30)
        steps.wait_until(lambda: " 1 with engines" in steps.ctl("status", "c08").stdout, 30)
        times.append(time.monotonic())
        steps.ctl("teardown", "c08", "--force")

    thread = threading.Thread(target=tear_down)
    thread.start()

    @flow
    def waiting() -> State[None]:
        state = wait_long(create_cluster("c08", n=1), return_state=True)
        times.append(time.monotonic())
        return state  # type: ignore[no-any-return]  # what return_state makes of it

    state = waiting(return_state=True)  # type: ignore[call-overload]
    thread.join()

    assert times[1] - times[0] < 10
    assert state.is_failed()
    with pytest.raises(errors.ClusterEnded, match=r"cluster 'c08' #1 ended 20\S+Z: torn down"):
        state.result()

    @flow
    def clean_up() -> str:
        return teardown_cluster("c08").outcome

    assert clean_up() == "already gone"
    assert ClusterManager().get_sync("c08").state == "ended"


PROJECT = """
    import dataclasses
    from helpers import calc
    from ipcluster_core import Client
    from prefect import flow, task
    from prefect.cache_policies import NO_CACHE

    @dataclasses.dataclass
    class Point:
        x: int

        def double(self):
            return Point(2 * self.x)

    def of_main(n):
        return calc.scale(n)

    @task(cache_policy=NO_CACHE)
    def work():
        with Client.connect("c31") as client:
            return [
                client.submit(calc.scale, 1).result(5),
                client.submit(of_main, 1).result(5),
                client.submit(Point(4).double).result(5).x,
                client.submit(lambda n: calc.scale(n), 1).result(5),
            ]

    @flow
    def study():
        return work()

    if __name__ == "__main__":
        print(study())
"""

#: How a worker runs a deployment: it loads the flow from the file that the entry point names, under no module's name.
DEPLOYED = """
    import os, sys
    from prefect.flows import load_flow_from_entrypoint
    os.chdir(sys.argv[1])
    print(load_flow_from_entrypoint("pipeline.py:study")())
"""


#: How a shell runs it as a script.
SCRIPT = """
    import os, runpy, sys
    os.chdir(sys.argv[1])
    sys.path.insert(0, os.getcwd())
    runpy.run_path("pipeline.py", run_name="__main__")
"""


@pytest.mark.parametrize("deployed", [False, True], ids=["script", "deployment"])
def test_code_beside_a_flow_runs_on_engines_that_do_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deployed: bool
) -> None:
    """C31: a helper, the flow's own file, a method, a dataclass, a lambda; engines were started elsewhere."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    folder = tmp_path / "project"
    (folder / "helpers").mkdir(parents=True)
    (folder / "pipeline.py").write_text(textwrap.dedent(PROJECT))
    (folder / "helpers/calc.py").write_text("FACTOR = 10\ndef scale(n):\n    return n * FACTOR\n")
    assert steps.ctl("create", "c31", "-n", "2", "--cwd", "/").returncode == 0
    code = DEPLOYED if deployed else SCRIPT

    assert steps.run_step(code, str(folder)).splitlines()[-1] == "[10, 10, 8, 10]"
    assert steps.ctl("teardown", "c31").returncode == 0


#: A step that attaches to somebody else's cluster, has a task write in every way to its death, and one flood.
SPEAKER = f"""{SPEAKERS}
    from prefect import flow
    from prefect_ipcluster import run_on_cluster

    @flow
    def speaking():
        spoken = run_on_cluster("c33", speak, log_output=True, return_state=True)
        print(spoken.name, spoken.message)
        run_on_cluster("c33", flood, log_output=True)

    speaking()
"""


def test_what_a_task_writes_is_in_the_log_of_its_run_to_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """C33: prints, log records, a child, C; the engine dies. It is somebody else's cluster. A flood is cut."""
    monkeypatch.setenv("PREFECT_API_URL", PREFECT_API_URL.value())
    assert steps.ctl("create", "c33", "-n", "1").returncode == 0
    with steps.started_step(SPEAKER) as process:
        output, log = process.communicate(timeout=90)
    assert process.returncode == 0, log

    assert spoken(log) == {"print": [*range(100)], "log": [*range(100)], "child": [*range(10)], "C": [*range(5)]}
    assert log.count("[engine 0] flood") < 20_000
    assert re.search(r"\d+ lines of engines are not shown here: ipclusterctl logs c33", log)
    assert "lines dropped" in steps.ctl("logs", "c33").stdout
    assert output.startswith("Failed")
    assert "SIGKILL" in output
    assert steps.ctl("teardown", "c33").returncode == 0
