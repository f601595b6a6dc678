"""The part of Prefect's REST API that the store needs, spoken without Prefect.

A cluster's nanny and controller use the store too. They must start in no time and hold no threads when they fork, so
they cannot import Prefect; nor are they given its environment variables. Hence the URL of the API stands in the URL of
the store, and what unlocks it is read from the variables of this process or from the active profile of the user.

References
----------
Prefect's settings: ``PREFECT_API_URL``, ``PREFECT_API_KEY``, ``PREFECT_API_AUTH_STRING``, ``PREFECT_HOME``;
``profiles.toml`` in the latter, by default ``~/.prefect``.
"""

from __future__ import annotations

import base64
import json
import os
import time
import tomllib
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from ipcluster_core.errors import StoreError

__all__ = ["Api", "setting"]

#: Seconds for the server to answer one request.
_ANSWER_SECONDS = 10.0

#: Pauses in seconds before a request is sent again to a server that is busy or cannot be reached.
_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)

#: What a server answers that is too busy; SQLite's does when it is flooded.
_BUSY = frozenset({429, 502, 503, 504})


def setting(name: str) -> str | None:
    """Return one of Prefect's settings, from the environment or else from the user's active profile."""
    if os.environ.get(name):
        return os.environ[name]
    home = os.environ.get("PREFECT_HOME") or os.path.join(os.path.expanduser("~"), ".prefect")
    try:
        with open(os.path.join(home, "profiles.toml"), "rb") as file:
            known = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or known.get("active")
    value = known.get("profiles", {}).get(active, {}).get(name)
    return None if value is None else str(value)


class Api:
    """Asks one server; each request is a connection of its own.

    Parameters
    ----------
    url
        Where the API is, as ``PREFECT_API_URL`` has it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise StoreError(f"{url!r} is not the URL of a Prefect API, such as http://127.0.0.1:4200/api")
        self.url = url.rstrip("/")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    def ask(self, method: str, path: str, content: object = None, *, allowed: tuple[int, ...] = ()) -> tuple[int, Any]:
        """Send a request, again while the server is busy or out of reach.

        Parameters
        ----------
        method, path, content
            The request; content is sent as JSON.
        allowed
            What the server may answer beside success.

        Returns
        -------
        tuple
            Status and content of the answer.

        Raises
        ------
        StoreError
            It answers something else, or not at all.
        """
        body = None if content is None else json.dumps(content)
        status, text = 0, ""
        for pause in (*_PAUSES, None):
            try:
                status, text = self._send(method, path, body)
            except (OSError, HTTPException) as error:
                status, text = 0, repr(error)
            if 200 <= status < 300 or status in allowed:
                return status, json.loads(text) if text and status < 300 else None
            if pause is None or (status and status not in _BUSY):
                break
            time.sleep(pause)  # nothing announces that a server is free again
        raise StoreError(f"Prefect API {self.url}: {method} {path} failed ({status or 'no answer'}): {text[:500]}")

    def _send(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = self._connect(self._host, self._port, timeout=_ANSWER_SECONDS)
        try:
            connection.request(method, self._path + path, body, self._headers())
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @staticmethod
    def _headers() -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        key, auth = setting("PREFECT_API_KEY"), setting("PREFECT_API_AUTH_STRING")
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        elif auth is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
        return headers
