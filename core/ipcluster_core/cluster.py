"""The live object with the verbs. Holds no socket: each verb opens, asks, closes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from . import creation, ending, reach
from ._sync import run, synced, synced_class
from .adoption import IfExists
from .backends import get_backend
from .cure import cure_record
from .ending import TeardownReport
from .errors import ClusterError, ClusterNotFound, StoreDamaged
from .incarnation import Reference, read_record
from .process import identify
from .record import Record
from .steering import Steering
from .store import Store, open_store
from .wanted import plain_spec

if TYPE_CHECKING:
    from .handle import ClusterHandle
    from .spec import ClusterSpec, SpecFields

__all__ = ["Cluster"]


class Cluster(Steering):
    """A named cluster.

    ``await Cluster.create("nightly", n=4)`` makes one, ``await Cluster.connect("nightly")`` finds it again from any
    process. Each coroutine has a blocking twin with ``_sync`` behind its name. ``with Cluster("tmp", n=4)`` creates
    and ends it; ``with Cluster.connect_sync("nightly")`` never ends it.

    Parameters
    ----------
    name, spec, if_exists, claim, store, timeout, fields
        As for `create`; nothing happens before the ``with`` block is entered.
    shutdown_on_close
        Whether leaving the ``with`` block ends the cluster.
    """

    def __init__(
        self,
        name: str,
        spec: ClusterSpec | None = None,
        *,
        if_exists: IfExists = "fail",
        claim: str | None = None,
        store: str | Store | None = None,
        timeout: float = 60.0,
        shutdown_on_close: bool = True,
        **fields: Unpack[SpecFields],
    ) -> None:
        self._name = name
        self._plan = (spec, if_exists, claim, timeout, fields)
        self._shutdown_on_close = shutdown_on_close
        self._store = _open(store)
        self._found: Record | None = None
        self._claim: str | None = None
        self._counter: int | None = None
        self._made = False

    # getting one

    @staticmethod
    async def create(
        name: str,
        spec: ClusterSpec | None = None,
        *,
        if_exists: IfExists = "fail",
        claim: str | None = None,
        store: str | Store | None = None,
        timeout: float = 60.0,
        **fields: Unpack[SpecFields],
    ) -> Cluster:
        """Create a cluster that outlives this process, or attach to the one of that name.

        Safe to repeat: of any number of concurrent creates one makes the cluster. A create that was killed half way
        is cleaned up by the next one.

        Parameters
        ----------
        name
            1 to 63 lower-case letters, digits and dashes.
        spec
            What it is to be; or give its fields (``n=4, idle_timeout=600``, see `ClusterSpec`) as keywords.
        if_exists
            What to do when there is a living cluster of that name: "fail", "attach" to it as it is, or "replace" it.
        claim
            Name of the run that uses it. A teardown with that claim ends the cluster only when no other is left.
        store
            Store or its URL; default as `open_store` has it.
        timeout
            Seconds until ``at_least`` engines (default: all) must be up.

        Returns
        -------
        Cluster
            Running, with at least ``at_least`` engines up.

        Raises
        ------
        ClusterExists
            There is one, and ``if_exists="fail"``.
        LaunchError
            It could not be started; the message ends with the last output of what failed. Nothing is left of it.
        ClusterTimeout
            It was not ready in time. Nothing is left of it.
        ValueError
            The name or the spec is not valid.
        """
        cluster = Cluster(name, spec, if_exists=if_exists, claim=claim, store=store, timeout=timeout, **fields)
        await cluster._create(owned=False)
        return cluster

    @staticmethod
    async def connect(
        cluster: str | Mapping[str, Any] | ClusterHandle,
        *,
        store: str | Store | None = None,
        timeout: float = 30.0,
        claim: str | None = None,
    ) -> Cluster:
        """Find a cluster again, from any process that reaches its store.

        Parameters
        ----------
        cluster
            Name, handle, dict or JSON string of a handle.
        store
            Store or its URL; default: the handle's, else as `open_store` has it.
        timeout
            Seconds to wait for one that is still being created.
        claim
            Name of the run that uses it from now on, see `create`.

        Returns
        -------
        Cluster
            Running.

        Raises
        ------
        ClusterNotFound
            There is no such cluster.
        ClusterEnded
            It has ended; the message says when, why and by whom.
        StaleHandle
            The handle is of an earlier incarnation.
        ClusterBroken
            Its processes are gone.
        ClusterTimeout
            It was not ready in time.
        """
        opened, record = await reach.find_running(cluster, store, timeout)
        found = Cluster(record.name, store=opened, shutdown_on_close=False)
        if claim is not None:
            taken = creation.take_claim(opened, record, claim)
            record = taken if taken is not None else read_record(opened, record.name).require_living()
            found._claim, found._counter = claim, record.claims.get(claim)
        found._found = record
        return found

    async def _create(self, *, owned: bool) -> None:
        spec, if_exists, claim, timeout, fields = self._plan
        record, created = await creation.create(
            self._store,
            self._name,
            plain_spec(spec, fields),
            if_exists=if_exists,
            claim=claim,
            owned=owned,
            timeout=timeout,
        )
        self._found = record
        self._claim, self._counter = claim, None if claim is None else record.claims[claim]
        self._made = created
        if not created:
            self._shutdown_on_close = False

    # what it is

    def _known(self) -> tuple[Store, Record]:
        if self._found is None:
            raise ClusterNotFound(f"cluster {self._name!r} is made when its with-block is entered")
        return self._store, self._found

    @property
    def _record(self) -> Record:
        return self._known()[1]

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self._name

    @property
    def handle(self) -> ClusterHandle:
        """What to pass to other steps: plain, public, reloadable."""
        from .handle import ClusterHandle

        record = self._record
        public = ("name", "incarnation", "uid", "backend", "launcher", "created")
        return ClusterHandle.model_validate({key: getattr(record, key) for key in public} | {"store": self._store.url})

    @property
    def claim_counter(self) -> int | None:
        """Counter of the claim that was taken here, to guard its giving up; None without a claim."""
        return self._counter

    @property
    def made_here(self) -> bool:
        """Whether this object has created the cluster, rather than attached or connected to it."""
        return self._made

    def client(self, *, timeout: float = 30.0) -> Any:  # noqa: ANN401 - each backend has its own kind
        """Connect a client of the backend's own kind; for the native backend a `Client`."""
        return get_backend(self._record.backend).client(self._store, self._record, timeout=timeout)

    def executor(self, *, timeout: float = 30.0) -> Executor:
        """Connect a `concurrent.futures.Executor`, whatever the backend."""
        return get_backend(self._record.backend).executor(self._store, self._record, timeout=timeout)

    # whose it is

    async def own(self, *, timeout: float = 10.0) -> None:
        """Have the cluster end when this process does, however that ends, as that of a ``with`` block does.

        Parameters
        ----------
        timeout
            Seconds for the cluster to accept it. An earlier owner is watched no longer.

        Raises
        ------
        ClusterError
            It cannot see this process: they are in containers of their own.
        """
        answer = await self._ask("own", timeout=timeout, owner=identify().to_dict())
        if not answer["seen"]:
            raise ClusterError(f"{self._record.title} cannot see process {os.getpid()}, which is to own it")
        self._shutdown_on_close = True

    async def disown(self, *, timeout: float = 10.0) -> None:
        """Have the cluster outlive this process and its ``with`` block; only a teardown or a limit ends it then.

        Parameters
        ----------
        timeout
            Seconds for the cluster to accept it.
        """
        await self._ask("own", timeout=timeout, owner=None)
        self._shutdown_on_close = False

    own_sync = synced(own)
    disown_sync = synced(disown)

    # the end

    async def teardown(self, *, claim: str | None = None, force: bool = False, timeout: float = 30.0) -> TeardownReport:
        """End the cluster, or give up a claim on it. Idempotent; "already gone" is success.

        Ends this incarnation only: a newer cluster of the same name is left alone.

        Parameters
        ----------
        claim
            The claim to give up: the cluster ends when it was the last. Default: the one taken by this object.
        force
            End it although others hold claims.
        timeout
            Seconds until what is left is given up and named.

        Returns
        -------
        TeardownReport
            What was done, and what could not be ended.

        Raises
        ------
        ClusterInUse
            Others hold claims, none was given, and `force` is not set.
        """
        mine = claim is None or claim == self._claim
        given = self._claim if mine else claim
        counter = self._counter if mine else None
        record = self._record
        try:
            return await ending.teardown(
                self._store, record, claim=given, counter=counter, force=force, timeout=timeout
            )
        except StoreDamaged:
            who = Reference(record.name, record.incarnation, record.uid)
            return await cure_record(self._store, who, claim=given, force=force, timeout=timeout)

    create_sync = synced_class(create)
    connect_sync = synced_class(connect)
    teardown_sync = synced(teardown)

    # scopes

    async def __aenter__(self) -> Self:
        """Create the cluster, unless this object is connected to one already."""
        if self._found is None:
            await self._create(owned=self._shutdown_on_close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the cluster if this scope created it."""
        if self._shutdown_on_close and self._found is not None:
            await self.teardown(force=True)

    def __enter__(self) -> Self:
        """Create the cluster, unless this object is connected to one already."""
        return run(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the cluster if this scope created it."""
        run(self.__aexit__(kind, error, traceback))

    def __repr__(self) -> str:
        state = "not made yet" if self._found is None else f"#{self._found.incarnation}"
        return f"<Cluster {self._name!r} {state}>"


def _open(store: str | Store | None) -> Store:
    return open_store(store) if store is None or isinstance(store, str) else store
