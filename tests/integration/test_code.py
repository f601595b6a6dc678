"""How code comes to the engines: a project's own modules by value, installed ones by name."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipcluster_core import Cluster

#: The main script of a project that is not installed.
PIPELINE = """
    import dataclasses
    from ipcluster_core import Client
    from helpers import calc

    @dataclasses.dataclass
    class Point:
        x: int
        def double(self):
            return Point(2 * self.x)

    def local(n):
        return calc.scale(n)

    if __name__ == "__main__":
        with Client.connect("project") as client:
            points = [client.submit(Point(4).double), client.submit(lambda point: point, Point(8))]
            results = [
                client.submit(calc.scale, 1).result(10),
                client.submit(local, 1).result(10),
                client.submit(lambda n: calc.scale(n), 1).result(10),
                client.submit(calc.Scaler(1).scale).result(10),
                *[point.result(10).x for point in points],
            ]
            print(results)
"""

#: Its helper.
CALC = """
    FACTOR = 10
    def scale(n):
        return n * FACTOR
    class Scaler:
        def __init__(self, n):
            self.n = n
        def scale(self):
            return scale(self.n)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two engines, in a folder of their own."""
    (tmp_path / "elsewhere").mkdir()
    with Cluster("project", n=2, cwd=str(tmp_path / "elsewhere")) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's folder."""
    folder = tmp_path / "project"
    (folder / "helpers").mkdir(parents=True)
    (folder / "pipeline.py").write_text(textwrap.dedent(PIPELINE))
    (folder / "helpers" / "calc.py").write_text(textwrap.dedent(CALC))
    return folder


def step(folder: Path, *how: str) -> str:
    """Run a step in a folder; return what it prints."""
    done = subprocess.run([sys.executable, *how], cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", [["pipeline.py"], ["-m", "pipeline"]], ids=" ".join)
def test_a_project_that_is_not_installed_runs_on_engines_that_do_not_have_it(
    cluster: Cluster, project: Path, how: list[str]
) -> None:
    """Functions of a helper and of the main script, a method, a lambda, a dataclass there and back."""
    assert step(project, *how) == "[10, 10, 10, 10, 8, 8]"


def test_a_helper_that_was_edited_runs_as_it_is_now_in_the_next_step(cluster: Cluster, project: Path) -> None:
    """On engines that have run the old one, without a restart."""
    assert step(project, "pipeline.py") == "[10, 10, 10, 10, 8, 8]"
    calc = project / "helpers" / "calc.py"
    calc.write_text(calc.read_text().replace("FACTOR = 10", "FACTOR = 1234"))

    assert step(project, "pipeline.py") == "[1234, 1234, 1234, 1234, 8, 8]"


def test_a_package_that_engines_do_not_have_is_an_error_that_helps(cluster: Cluster, tmp_path: Path) -> None:
    """As the function, in an argument, in a task's body: module, engine, its folder and path, the cure; it works on."""
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "far_away.py").write_text("class Thing: pass\ndef call(): return 1\n")
    code = f"""
        import sys
        sys.path.insert(0, {str(installed)!r})
        import far_away
        from ipcluster_core import Client
        def inside():
            import far_away
        with Client.connect("project") as client:
            client = client.options(engines=[1])
            for future in (client.submit(far_away.call), client.submit(str, far_away.Thing()), client.submit(inside)):
                error = future.exception(5)
                assert type(error) is ModuleNotFoundError, error
                assert error.name == "far_away"
                print(error)
            assert client.submit(abs, -1).result(5) == 1
    """
    text = step(tmp_path, "-c", textwrap.dedent(code))

    assert text.count("module 'far_away' could not be imported on engine 1:") == 3
    assert text.count(f"working folder {tmp_path}/elsewhere\n") == 3
    assert text.count("sys.path ") == 3
    assert text.count("To mend it: install it for that interpreter") == 3
