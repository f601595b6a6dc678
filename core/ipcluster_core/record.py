"""The store's entry for one name: what was asked for, what runs, who uses it, how it ended.

States: ``creating -> running -> ending -> ended``. A record is plain data with a schema version; it is read on
the client's fast path and written by the nanny, so it is a dataclass with checks of its own and no model library.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from .errors import ClusterEnded, StoreDamaged

__all__ = [
    "LIVING",
    "NAME_RULE",
    "SCHEMA",
    "ClusterState",
    "Ended",
    "Job",
    "Liveness",
    "Record",
    "check_name",
    "seconds_since",
    "secret_key_of",
    "title_of",
    "utc_now",
]

#: Version of the record's and the handle's shape; newer ones are refused.
SCHEMA = 1

#: A DNS label (RFC 1123): fits Kubernetes objects, Prefect blocks and Slurm job names as well.
NAME_RULE = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

_NAME = re.compile(NAME_RULE)

#: What stands in a record's plain data; a record that is otherwise is damaged.
_TYPES: dict[str, Any] = {
    "name": str,
    "incarnation": int,
    "uid": str,
    "backend": str,
    "launcher": str,
    "created": str,
    "spec": dict,
    "sets": dict,
    "adapting": dict,
    "labels": dict,
    "creator": (dict, type(None)),
    "folder": str,
    "claims": dict,
    "claims_taken": int,
}

#: What the values of some of them are.
_VALUE_TYPES: dict[str, type] = {"sets": int, "labels": str, "claims": int}


class ClusterState(enum.StrEnum):
    """Where a cluster is in its life.

    BROKEN and UNKNOWN are computed, never stored: record and reality disagree; reality cannot be seen from here.
    """

    CREATING = "creating"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Liveness(enum.Enum):
    """What can be said about a process from here."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


#: States in which a cluster can still do work or come to do it.
LIVING = frozenset({ClusterState.CREATING, ClusterState.RUNNING})


def utc_now() -> str:
    """Return the time as a record keeps it: UTC, ISO 8601, whole seconds, ``Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def seconds_since(stamp: str, now: float) -> float | None:
    """Return the seconds from a time in a record to `now` (as `time.time` has it); None when it is no time."""
    from datetime import datetime

    try:
        return now - datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def title_of(tag: str) -> str:
    """Return how messages name the incarnation that has this tag."""
    name, incarnation, _ = tag.split("/")
    return f"cluster {name!r} #{incarnation}"


def secret_key_of(tag: str) -> str:
    """Return the key, in the store, of the secret of the incarnation that has this tag."""
    name, incarnation, _ = tag.split("/")
    return f"{name}.{incarnation}"


def check_name(name: str) -> str:
    """Return `name` when it may name a cluster; ValueError otherwise."""
    if not _NAME.fullmatch(name) or name.endswith("\n"):
        raise ValueError(
            f"{name!r} cannot name a cluster: use 1 to 63 lower-case letters, digits and dashes, "
            "with a letter or digit first and last"
        )
    return name


#: What tells a process apart, see `process.Identity`.
_IDENTITY: dict[str, type] = {"host": str, "boot": str, "namespace": str, "pid": int, "start": int}


def _check_types(data: Mapping[str, Any]) -> None:
    for key, kind in _TYPES.items():
        if key in data and not isinstance(data[key], kind):
            raise TypeError(f"{key} is {data[key]!r}")
    for key, kind in _VALUE_TYPES.items():
        if not all(isinstance(value, kind) for value in data.get(key, {}).values()):
            raise TypeError(f"{key} is {data[key]!r}")
    if "/" in check_name(data["name"]) + data["uid"]:
        raise ValueError(f"uid is {data['uid']!r}")


def _check_identity(who: str, data: Mapping[str, Any] | None) -> None:
    if data is None:
        return
    for key, kind in _IDENTITY.items():
        if not isinstance(data[key], kind):
            raise TypeError(f"{key} of its {who} is {data[key]!r}")


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Job(NamedTuple):
    """One thing that a launcher started: its reference for that launcher, and its nanny's identity once known."""

    launcher: str
    reference: Mapping[str, Any]
    nanny: Mapping[str, Any] | None = None


class Ended(NamedTuple):
    """How an incarnation ended: why, when (UTC), who did it, and the last output where something failed."""

    reason: str
    at: str
    by: str
    tail: str = ""

    def message(self, title: str) -> str:
        """Say how the cluster of that title ended."""
        text = f"{title} ended {self.at}: {self.reason} (by {self.by})"
        return f"{text}\nlast output:\n{self.tail}" if self.tail else text


def _check_end(state: ClusterState, ended: Ended | None) -> None:
    if state is ClusterState.BROKEN or not all(isinstance(text, str) for text in ended or ()):
        raise ValueError(f"it is {state}, {ended}")


class Record(NamedTuple):
    """One name's entry. Frozen: every change is a new record that replaces the old by its store version."""

    name: str
    incarnation: int
    uid: str
    state: ClusterState
    backend: str = "native"
    launcher: str = "local"
    created: str = ""
    spec: Mapping[str, Any] = _NOTHING
    sets: Mapping[str, int] = _NOTHING
    adapting: Mapping[str, tuple[int, int]] = _NOTHING
    labels: Mapping[str, str] = _NOTHING
    creator: Mapping[str, Any] | None = None
    folder: str = ""
    jobs: tuple[Job, ...] = ()
    claims: Mapping[str, int] = _NOTHING
    claims_taken: int = 0
    ended: Ended | None = None
    schema: int = SCHEMA

    @property
    def tag(self) -> str:
        """What marks every process of this incarnation."""
        return f"{self.name}/{self.incarnation}/{self.uid}"

    @property
    def title(self) -> str:
        """How messages name it."""
        return title_of(self.tag)

    @property
    def head(self) -> Job | None:
        """The head job, None when its nanny has not registered."""
        return self.jobs[0] if self.jobs else None

    @property
    def secret(self) -> str:
        """Key of this incarnation's secret in the store."""
        return secret_key_of(self.tag)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the store."""
        jobs = [{**job._asdict(), "reference": dict(job.reference)} for job in self.jobs]
        ended = None if self.ended is None else self.ended._asdict()
        plain = {key: dict(value) for key, value in self._asdict().items() if isinstance(value, Mapping)}
        return {**self._asdict(), **plain, "state": str(self.state), "jobs": jobs, "ended": ended}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from the store's data.

        Returns
        -------
        Record
            Equal to the one that wrote the data.

        Raises
        ------
        StoreDamaged
            The data is damaged or of a newer schema.
        """
        name = data.get("name", "?")
        schema = data.get("schema")
        if schema != SCHEMA:
            raise StoreDamaged(
                f"the record of cluster {name!r} has schema {schema!r}, this version reads {SCHEMA}: "
                "use the version of ipcluster-core that wrote it, or a newer one"
            )
        try:
            _check_types(data)
            jobs = tuple(Job(str(j["launcher"]), dict(j["reference"]), j.get("nanny")) for j in data["jobs"])
            for job in jobs:
                _check_identity("nanny", job.nanny)
            _check_identity("creator", data.get("creator"))
            ended = None if data["ended"] is None else Ended(**data["ended"])
            state = ClusterState(data["state"])
            _check_end(state, ended)
            fields: dict[str, Any] = {**data, "state": state, "jobs": jobs, "ended": ended}
            return cls(**fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreDamaged(
                f"the record of cluster {name!r} is damaged ({error}): tear it down to clean up"
            ) from error

    def with_state(self, state: ClusterState, *, ended: Ended | None = None) -> Self:
        """Return this record in another state."""
        return self._replace(state=state, ended=ended if ended is not None else self.ended)

    def end_message(self) -> str:
        """Say how the cluster ended, or that it is about to."""
        if self.ended is None:
            return f"{self.title} is {self.state}"
        return self.ended.message(self.title)

    def require_living(self) -> Self:
        """Return this record if the cluster is not ending or ended.

        Returns
        -------
        Record
            This one.

        Raises
        ------
        ClusterEnded
            It is; the message says when, why and by whom.
        """
        if self.state not in LIVING:
            raise ClusterEnded(self.end_message())
        return self
