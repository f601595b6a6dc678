"""Who may talk to a broker: whoever shows the secret first, and has versions that go with the cluster's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from . import versions, wire
from .errors import ClusterError, NotAuthorized, VersionMismatch
from .wire import same_secret

__all__ = ["Admission"]

logger = logging.getLogger("ipcluster.broker")

#: Seconds between two lines of the log about partners that were refused, however many there are.
_LOG_SECONDS = 60.0


class Admission:
    """The door of one cluster.

    Parameters
    ----------
    title
        How messages name the cluster.
    secret
        What each partner has to show.
    packages
        Those whose versions must go together too.
    """

    def __init__(self, title: str, secret: str, packages: Iterable[str] = ()) -> None:
        self._title = title
        self._secret = secret.encode()
        self._ours = versions.ours(packages)
        self._engines: dict[object, Mapping[str, str]] = {}  # versions by engine id
        self._refused = 0
        self._logged: float | None = None

    def check(self, hello: Mapping[str, Any]) -> str:
        """Let a partner in that introduces itself.

        Returns
        -------
        str
            Empty, or how its versions differ, if it wants to be let in all the same.

        Raises
        ------
        NotAuthorized
            It shows another secret, or none.
        VersionMismatch
            Its versions do not go with the cluster's.
        """
        if not same_secret(str(hello.get("secret")).encode(), self._secret):
            raise NotAuthorized(f"wrong secret for {self._title}")
        role = str(hello.get("role"))
        if hello.get("protocol") != wire.VERSION:
            raise VersionMismatch(
                f"{self._title} speaks protocol {wire.VERSION}, this {role} {hello.get('protocol')}: "
                "use the same version of ipcluster-core on both sides"
            )
        theirs = hello.get("versions")
        theirs = theirs if isinstance(theirs, Mapping) else {}
        warning = ""
        try:
            versions.check(self._title, role, self._ours, theirs, self._engines.values() if role == "client" else ())
        except VersionMismatch as error:
            if hello.get("unchecked") is not True:
                raise
            warning = str(error)
        if role == "engine":
            self._engines[hello.get("engine")] = theirs
            if warning:
                logger.warning("engine %s: %s", hello.get("engine"), warning)
        return warning

    def refusal(self, role: str, error: ClusterError, now: float) -> dict[str, str]:
        """Return what a partner that is refused is told; the log gets a line in a while, whoever tries how often."""
        self._refused += 1
        if self._logged is None or now - self._logged >= _LOG_SECONDS:
            logger.warning("refused the hello of one %s (%d so far): %s", role, self._refused, error)
            self._logged = now
        return {"error": type(error).__name__, "message": str(error)}
