"""C30, C31, R5: code of the client on engines that differ from it, or do not have it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import ipcluster_core
import steps
from ipcluster_core import Client, Cluster, versions, wire
from ipcluster_core.channel import Channel, connect
from ipcluster_core.wire import Kind, Notice

#: Where other versions of Python may be.
PLACES = (Path.home() / ".pyenv/versions", Path("/usr/bin"), Path("/usr/local/bin"), Path("/opt/python"))


def another_python(*minors: int) -> str | None:
    """Return an interpreter of another minor version, one of these, if this machine has one."""
    mine = sys.version_info[:2]
    for minor in minors:
        patterns = (f"3.{minor}.*/bin/python3", f"python3.{minor}", f"*/bin/python3.{minor}")
        found = [path for place in PLACES for pattern in patterns for path in place.glob(pattern)]
        if (3, minor) != mine and found:
            return str(found[0])
    return None


#: A client that is on its way to its first result; it says what stopped it.
CLIENT = """
    import sys
    from ipcluster_core import Client, errors, versions
    if len(sys.argv) > 1:
        theirs = {**versions.ours(), sys.argv[1]: sys.argv[2]}
        versions.ours = lambda packages: theirs
    try:
        with Client.connect("c30") as client:
            print("result", client.submit(pow, 2, 10).result(20))
    except errors.VersionMismatch as error:
        print(error)
    with Client.connect("c30", check_versions=False) as client:
        print("result", client.submit(pow, 2, 10).result(20))
"""


@pytest.fixture
def mixed() -> Iterator[Cluster]:
    """A cluster of this Python."""
    with Cluster("c30", n=2) as cluster:
        yield cluster


def pids(cluster: Cluster) -> list[int | None]:
    """Return its engines' pids."""
    return [engine.pid for engine in cluster.status_sync().engines]


@pytest.mark.parametrize(
    ("what", "version"), [("python", "3.99.1"), ("cloudpickle", "99.0"), ("ipcluster-core", "0.99")]
)
def test_a_client_of_another_version_is_refused_with_a_table(mixed: Cluster, what: str, version: str) -> None:
    """C30: at connect, with both sides' versions, and what to do; a switch makes it a warning; no engine dies of it."""
    before = pids(mixed)
    lines = steps.run_step(CLIENT, what, version).splitlines()
    ours = versions.ours()

    assert lines[0] == "the versions of cluster 'c30' #1 and of this client do not agree (marked *):"
    assert lines[1].split() == ["client", "controller", "engines"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2 : 2 + len(ours)]}
    assert rows == {
        name: (["*", version, here, here] if name == what else [here, here, here]) for name, here in ours.items()
    }
    assert "use the same on both sides" in lines[2 + len(ours)]
    assert lines[-1] == "result 1024"
    assert pids(mixed) == before


def test_a_client_of_another_python_is_refused_with_a_table(mixed: Cluster) -> None:
    """C30: a real one, where this machine has one; else the version is a pretended one, as in the case above."""
    python = another_python(11, 12, 13, 14)
    packages = {str(Path(ipcluster_core.__file__).parents[1])}
    command = [python or sys.executable, "-c", textwrap.dedent(CLIENT), *([] if python else ["python", "3.99.1"])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)

    assert done.returncode == 0, done.stderr
    assert "do not agree (marked *)" in done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("python *")]
    assert row[3] == row[4] == ".".join(map(str, sys.version_info[:3]))
    assert row[2].split(".")[:2] != row[3].split(".")[:2]
    assert "do not agree (marked *)" in done.stderr  # the warning of the switch
    assert done.stdout.splitlines()[-1] == "result 1024"


def test_an_odd_engine_is_refused_at_registration_and_the_others_work(mixed: Cluster) -> None:
    """C30: only that one, with a table of the versions; never first seen as a task's error."""
    record = steps.record_of("c30")
    hello = {
        "role": "engine",
        "protocol": wire.VERSION,
        "secret": steps.secret_of("c30"),
        "engine": 7,
        "incarnation": 0,
        "host": "odd",
        "versions": {**versions.ours(), "python": "3.10.13"},
    }
    channel = Channel(connect(record.folder, "task"), blocking=True)
    channel.send(Notice(Kind.HELLO, hello).encode())
    answer = Notice.decode(channel.receive()[0])
    channel.close()

    assert answer.kind is Kind.REFUSED
    assert answer.data["error"] == "VersionMismatch"
    assert "engine" in answer.data["message"].splitlines()[1]
    assert "3.10.13" in answer.data["message"]
    assert mixed.status_sync().up == 2
    assert "refused the hello of one engine" in mixed.logs_sync()["broker"]
    with Client.connect("c30") as client:
        assert set(client.run(os.getpid)) == {0, 1}


def test_packages_that_the_spec_names_are_in_the_table_and_must_agree() -> None:
    """C30: an engine that lacks one is refused, alone; a client with another version too, or warned."""
    with Cluster("c30", n=2, packages=["pytest", "no-such-package"]) as cluster:
        have = versions.ours(["pytest", "no-such-package"])
        said = steps.run_step(CLIENT, "pytest", "1.2.3").splitlines()
        with closing(Channel(connect(steps.record_of("c30").folder, "task"), blocking=True)) as channel:
            hello = {"role": "engine", "protocol": wire.VERSION, "secret": steps.secret_of("c30"), "engine": 7}
            channel.send(Notice(Kind.HELLO, {**hello, "versions": {**have, "pytest": "missing"}}).encode())
            refusal = Notice.decode(channel.receive()[0])
        rows = {line.split()[0]: line.split()[1:] for line in said if len(line.split()) > 3}

        assert rows["pytest"] == ["*", "1.2.3", pytest.__version__, pytest.__version__]
        assert rows["no-such-package"] == ["missing"] * 3
        assert said[-1] == "result 1024"
        assert re.search(rf"pytest \* +missing +{pytest.__version__}\n", refusal.data["message"])
        assert cluster.status_sync().up == 2


#: What a Python 3.10 says to what it does not know.
OLD = """#!/bin/sh
case "$1" in
    -c) echo 3 10 13 ;;
    *) echo "Unknown option: $1" >&2; exit 2 ;;
esac
"""


def test_engines_of_a_python_that_is_too_old_fail_the_create_with_both_versions(tmp_path: Path) -> None:
    """C30: a real one, where this machine has one; else what it would say. Nothing is left."""
    stand_in = tmp_path / "python3.10"
    stand_in.write_text(OLD)
    stand_in.chmod(0o755)
    done = steps.ctl("create", "c30", "--python", another_python(8, 9, 10) or str(stand_in))

    assert done.returncode == 1
    assert re.search(r"cluster 'c30' #1 needs Python 3\.11 or newer, and \S+ is Python 3\.\d+\.\d+\n", done.stderr)


def test_a_python_without_what_engines_need_fails_the_create_with_what_it_lacks(tmp_path: Path) -> None:
    """C30: it finds the product, and not the pickling library."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (site,) = bare.glob("lib/python*/site-packages")
    (site / "ipcluster_core").symlink_to(Path(ipcluster_core.__file__).parent)
    done = steps.ctl("create", "c30", "--python", str(bare / "bin/python"))

    assert done.returncode == 1
    assert done.stderr == (
        "ipclusterctl: cluster 'c30' #1 could not be started: module 'cloudpickle' cannot be preloaded: "
        "ModuleNotFoundError: No module named 'cloudpickle'\n"
    )


#: A project that is not installed: its main script, and a helper beside it.
PIPELINE = """
    import dataclasses
    from helpers import calc
    from ipcluster_core import Client

    @dataclasses.dataclass
    class Point:
        x: int

        def double(self):
            return Point(2 * self.x)

    def of_main(n):
        return calc.scale(n)

    if __name__ == "__main__":
        with Client.connect("c31") as client:
            print(
                client.submit(calc.scale, 1).result(5),
                client.submit(of_main, 1).result(5),
                client.submit(Point(4).double).result(5),
                client.submit(dataclasses.asdict, Point(5)).result(5),
                client.submit(lambda n: calc.scale(n), 1).result(5),
                list(client.map(calc.Scaler(3).scale, range(2))),
            )
"""

CALC = """
    FACTOR = 10

    def scale(n):
        return n * FACTOR

    class Scaler:
        def __init__(self, by):
            self.by = by

        def scale(self, n):
            return scale(n) * self.by
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project's folder, and a cluster whose engines were started in another."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (folder / "helpers").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "pipeline.py").write_text(textwrap.dedent(PIPELINE))
    (folder / "helpers/calc.py").write_text(textwrap.dedent(CALC))
    with Cluster("c31", n=2, cwd=str(elsewhere)):
        yield folder


def run_in(folder: Path, *how: str) -> str:
    """Run a step in a folder; return what it prints."""
    done = subprocess.run([sys.executable, *how], cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", [["pipeline.py"], ["-m", "pipeline"]], ids=" ".join)
def test_code_beside_the_script_runs_on_engines_that_do_not_have_it(project: Path, how: list[str]) -> None:
    """C31: helper, main script, method, dataclass, lambda, by script and by -m; engines keep their pids."""
    before = pids(Cluster.connect_sync("c31"))

    assert run_in(project, *how) == "10 10 Point(x=8) {'x': 5} 10 [0, 30]"
    assert pids(Cluster.connect_sync("c31")) == before


def test_code_that_engines_cannot_have_fails_with_module_place_and_cure(project: Path) -> None:
    """C31: an installed package that they lack: within 5 s, and no later task suffers."""
    (project / "site-packages").mkdir()
    (project / "site-packages/far_away.py").write_text("def call(): return 1\n")
    code = """
        import sys
        sys.path.insert(0, "site-packages")
        import far_away
        from ipcluster_core import Client
        with Client.connect("c31") as client:
            print(client.submit(far_away.call).exception(5))
            print(client.submit(abs, -1).result(5))
    """
    said = run_in(project, "-c", textwrap.dedent(code))

    for text in ("module 'far_away'", f"working folder {project.parent}/elsewhere", "sys.path", "To mend it"):
        assert text in said
    assert said.endswith("\n1")


def test_a_helper_that_is_edited_between_two_steps_is_the_new_one_in_the_second(project: Path) -> None:
    """R5: on the same engines, without a restart."""
    assert run_in(project, "pipeline.py").startswith("10 10 ")
    calc = project / "helpers/calc.py"
    calc.write_text(calc.read_text().replace("FACTOR = 10", "FACTOR = 1234"))

    assert run_in(project, "pipeline.py") == "1234 1234 Point(x=8) {'x': 5} 1234 [0, 3702]"


def test_a_package_that_one_engine_lacks_is_an_error_of_that_engine_only(tmp_path: Path) -> None:
    """C30: named in the error, with the engine; the other one has it."""
    (tmp_path / "only_here.py").write_text("VALUE = 7\n")

    def use() -> int:
        from importlib import import_module

        return int(import_module("only_here").VALUE)

    def lack() -> None:
        sys.path[:] = [folder for folder in sys.path if folder not in ("", str(Path.cwd()))]

    with Cluster("c30", n=2, cwd=str(tmp_path)) as cluster, cluster.client() as client:
        client.options(engines=[1]).submit(lack).result(10)
        error = client.options(engines=[1]).submit(use).exception(10)

        assert isinstance(error, ModuleNotFoundError)
        assert "module 'only_here' could not be imported on engine 1" in str(error)
        assert client.options(engines=[0]).submit(use).result(10) == 7
        assert cluster.status_sync().up == 2
