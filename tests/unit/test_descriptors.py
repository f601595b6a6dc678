"""Open descriptors: how many a cluster needs, and what is done where there are few."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator

import pytest

from ipcluster_core import errors
from ipcluster_core.descriptors import keep_some, lower_limit, raise_limit, require


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of this process, put back at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("engines", "start_method"), [(60, "fork"), (116, "fork"), (77, "spawn")])
def test_engines_for_which_there_is_room_are_not_refused(engines: int, start_method: str) -> None:
    """With 256 descriptors."""
    require("cluster 'narrow' #1", engines, start_method, most=256)


@pytest.mark.parametrize(
    ("engines", "start_method", "text"),
    [(117, "fork", "needs 258 .* for 117 engines.* may have 256 .* 116"), (78, "spawn", "258 .* 78 .* 256 .* 77")],
)
def test_too_many_engines_are_refused_with_the_number_needed(engines: int, start_method: str, text: str) -> None:
    """And with how many there may be."""
    with pytest.raises(errors.LaunchError, match=f"cluster 'narrow' #1.*{text} engines"):
        require("cluster 'narrow' #1", engines, start_method, most=256)


def test_no_limit_is_no_limit() -> None:
    """RLIM_INFINITY is -1."""
    require("cluster 'wide' #1", 1_000_000, "fork", most=resource.RLIM_INFINITY)


def test_the_soft_limit_is_raised_and_put_back(limits: tuple[int, int]) -> None:
    """To the hard one; what it was is returned."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))

    assert raise_limit() == 100
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1], limits[1])
    lower_limit(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100, limits[1])


def test_some_descriptors_are_kept(limits: tuple[int, int]) -> None:
    """It fails before there is none."""
    keep_some()
    resource.setrlimit(resource.RLIMIT_NOFILE, (10, limits[1]))
    with pytest.raises(OSError, match="Too many open files") as failed:
        keep_some()

    assert failed.value.errno == errno.EMFILE
