"""Which versions go together."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from ipcluster_core import errors, versions

HERE = {"python": "3.12.4", "ipcluster-core": "0.3.1", "cloudpickle": "3.1.2"}


def test_ours_are_those_that_are_installed() -> None:
    """Found without their metadata being read."""
    found = versions.ours()

    assert found["python"] == platform.python_version()
    assert found["cloudpickle"] == importlib.metadata.version("cloudpickle")
    assert found["ipcluster-core"].count(".") == 2


@pytest.mark.parametrize(
    ("name", "version"),
    [("python", "3.12.0"), ("ipcluster-core", "0.3.9"), ("cloudpickle", "3.0.0"), ("cloudpickle", "3.9")],
)
def test_what_reads_the_other_s_pickles_goes_together(name: str, version: str) -> None:
    """Down to the number that matters."""
    versions.check("cluster 'c' #1", "client", HERE, {**HERE, name: version})


@pytest.mark.parametrize(
    ("name", "version"),
    [("python", "3.11.4"), ("python", "4.12"), ("ipcluster-core", "0.4.0"), ("cloudpickle", "2.9"), ("numpy", "2.0.0")],
)
def test_what_does_not_is_refused_with_a_table(name: str, version: str) -> None:
    """Of all, with those that matter marked."""
    with pytest.raises(errors.VersionMismatch) as caught:
        versions.check("cluster 'c' #1", "engine", HERE, {**HERE, name: version})
    lines = str(caught.value).splitlines()

    assert lines[0] == "the versions of cluster 'c' #1 and of this engine do not agree (marked *):"
    assert [line.split() for line in lines if "*" in line][1:] == [[name, "*", version, HERE.get(name, "missing")]]
    assert lines[1].split() == ["engine", "controller"]
    assert lines[-1].startswith("use the same on both sides")


def test_packages_that_are_named_are_compared_down_to_their_second_number() -> None:
    """Whatever their names; what is not installed is said to be missing."""
    found = versions.ours(["pytest", "no-such-package"])
    here = {**HERE, "numpy": "2.1.3"}
    versions.check("cluster 'c' #1", "client", here, {**here, "numpy": "2.1.0"})

    assert (found["pytest"], found["no-such-package"]) == (pytest.__version__, "missing")
    assert found.items() > versions.ours().items()


def test_the_table_shows_engines_to_a_client() -> None:
    """All that are up, each version once."""
    engines = [{**HERE, "python": "3.12.5"}, HERE, HERE]
    with pytest.raises(errors.VersionMismatch) as caught:
        versions.check("cluster 'c' #1", "client", HERE, {**HERE, "python": "3.13.0"}, engines)
    lines = str(caught.value).splitlines()

    assert lines[1].split() == ["client", "controller", "engines"]
    assert lines[2].split() == ["python", "*", "3.13.0", "3.12.4", "3.12.4,", "3.12.5"]


def test_one_that_says_nothing_is_refused() -> None:
    """It is of a time before versions were told."""
    with pytest.raises(errors.VersionMismatch, match=r"python \*\s+missing\s+3\.12\.4"):
        versions.check("cluster 'c' #1", "client", HERE, {})
