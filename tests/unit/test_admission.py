"""Who may talk to a broker."""

from __future__ import annotations

from typing import Any

import pytest

from ipcluster_core import errors, versions, wire
from ipcluster_core.admission import Admission
from ipcluster_core.testing import FakeClock

HELLO = {"role": "client", "secret": "sesame", "protocol": wire.VERSION, "versions": dict(versions.ours())}


@pytest.fixture
def door() -> Admission:
    """That of a cluster."""
    return Admission("cluster 'c' #1", "sesame")


def test_whoever_shows_the_secret_and_fits_is_let_in(door: Admission) -> None:
    """Nothing has to be said about it."""
    assert door.check(HELLO) == ""


@pytest.mark.parametrize("secret", ["", "Sesame", "sesame ", None, 5, {"x": 1}, "ä" * 5])
def test_another_secret_is_refused(door: Admission, secret: object) -> None:
    """Whatever it is."""
    with pytest.raises(errors.NotAuthorized, match="wrong secret for cluster 'c' #1"):
        door.check({**HELLO, "secret": secret})


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": 0},
        {"protocol": None},
        {"versions": None},
        {"versions": {**versions.ours(), "python": "2.7"}},
    ],
)
def test_versions_are_looked_at_once_the_secret_was_shown(door: Admission, change: dict[str, Any]) -> None:
    """A stranger does not learn them."""
    with pytest.raises(errors.VersionMismatch):
        door.check({**HELLO, **change})
    with pytest.raises(errors.NotAuthorized):
        door.check({**HELLO, **change, "secret": "guess"})


def test_who_wants_it_is_let_in_with_a_warning(door: Admission) -> None:
    """But for another protocol, which nobody here speaks."""
    old = {**HELLO, "versions": {}, "unchecked": True}

    assert "do not agree" in door.check(old)
    with pytest.raises(errors.VersionMismatch, match="speaks protocol"):
        door.check({**old, "protocol": 99})


def test_an_engine_that_is_let_in_is_in_the_table_of_the_next_client(
    door: Admission, caplog: pytest.LogCaptureFixture
) -> None:
    """And what does not agree is in the log, when it is let in all the same."""
    odd = {**versions.ours(), "python": "3.99.1"}
    door.check({**HELLO, "role": "engine", "engine": 3, "versions": odd, "unchecked": True})
    with pytest.raises(errors.VersionMismatch, match=r"python \* +2\.7 .* 3\.99\.1\n"):
        door.check({**HELLO, "versions": {**versions.ours(), "python": "2.7"}})

    assert caplog.records[0].getMessage().startswith("engine 3: the versions of cluster 'c' #1 and of this engine")


def test_refusals_are_counted_and_logged_once_in_a_while(door: Admission, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who tries for ever fills no disk."""
    clock = FakeClock(100.0)
    for _ in range(1000):
        told = door.refusal("client", errors.NotAuthorized("wrong secret"), clock.advance(0.01))
    clock.advance(60.0)
    door.refusal("engine", errors.NotAuthorized("wrong secret"), clock())

    assert told == {"error": "NotAuthorized", "message": "wrong secret"}
    assert [record.getMessage() for record in caplog.records] == [
        "refused the hello of one client (1 so far): wrong secret",
        "refused the hello of one engine (1001 so far): wrong secret",
    ]
