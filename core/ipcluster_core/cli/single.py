"""Verbs on one cluster."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import errors
from .many import manager
from .output import Exit, progress, say, table
from .remote import run_command, run_function

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..manager import ClusterSummary
    from ..record import Record
    from ..status import ClusterStatus

__all__ = ["create", "handle", "logs", "restart", "run", "scale", "status", "wait"]


def _connect(options: argparse.Namespace) -> Cluster:
    from ..cluster import Cluster

    return Cluster.connect_sync(options.name, store=options.store)


def create(options: argparse.Namespace) -> int:
    """Create a cluster, or attach to it."""
    from ..cluster import Cluster

    fields = _fields(options)
    start = time.monotonic()
    progress(f"creating {options.name} ...")
    try:
        cluster = Cluster.create_sync(
            options.name,
            if_exists=options.if_exists,
            claim=options.claim,
            store=options.store,
            timeout=options.timeout,
            **fields,
        )
        progress(f"ready after {time.monotonic() - start:.1f} s")
        _tell_attached(options)
        print(cluster.handle.model_dump_json() if options.json else _line(manager(options).get_sync(options.name)))
    except KeyboardInterrupt:
        _undo_create(options)
        raise
    return Exit.OK


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "n": options.n,
        "at_least": options.at_least,
        "backend": options.backend,
        "launcher": options.launcher,
        "labels": dict(options.label),
        "env": dict(options.env),
        "cwd": options.cwd,
        "preload": options.preload,
        "python": options.python,
    }
    for limit in ("idle_timeout", "lifetime", "no_client_timeout"):
        value = getattr(options, limit)
        if value is not None:
            fields[limit] = None if value == "none" else value
    if fields.get("idle_timeout", 0) is None and not fields.get("lifetime") and not fields.get("no_client_timeout"):
        say(f"warning: nothing ends cluster {options.name!r} by itself; tear it down yourself")
    return fields


def _created(options: argparse.Namespace) -> tuple[Record | None, bool]:
    """Return the record of the name, and whether this very process has made it."""
    from ..incarnation import find_record
    from ..process import identify

    found = find_record(manager(options).store, options.name)
    return (found[0], found[0].creator == identify().to_dict()) if found else (None, False)


def _tell_attached(options: argparse.Namespace) -> None:
    """Say so if the cluster was there before."""
    from ..process import Identity

    record, mine = _created(options)
    if record is not None and record.creator is not None and not mine:
        who = Identity.from_dict(record.creator)
        say(f"attached to {record.title}, which was created {record.created} by {who}")


def _undo_create(options: argparse.Namespace) -> None:
    """End what was ready at the moment of the interrupt: whoever pressed the key does not expect it to be there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again, it gets that no sooner, but whole
    with suppress(errors.ClusterError):
        if _created(options)[1]:
            manager(options).teardown_sync(options.name, force=True)


def _line(summary: ClusterSummary) -> str:
    ends = f", ends by itself: {summary.ends}" if summary.ends else ""
    return f"{summary.name} #{summary.incarnation} is {summary.state} with {summary.engines} engines{ends}"


def _find(options: argparse.Namespace) -> ClusterStatus:
    """Return a status, of an ended or broken cluster too."""
    try:
        return _connect(options).status_sync()
    except (errors.ClusterEnded, errors.ClusterBroken, errors.ClusterNotFound, errors.StoreDamaged) as error:
        from ..status import ClusterStatus

        summary = manager(options).get_sync(options.name)
        # Not found, and yet there: processes without a record.
        reason = summary.reason if isinstance(error, errors.ClusterNotFound) else str(error)
        return ClusterStatus(summary.name, summary.incarnation, summary.state, reasons=(reason,))


def status(options: argparse.Namespace) -> int:
    """Show how a cluster is."""
    found = _find(options)
    if options.json:
        from dataclasses import asdict

        print(json.dumps(asdict(found), indent=2))
        return Exit.OK
    print(f"{found.name} #{found.incarnation}: {found.state}")
    for reason in found.reasons:
        print(reason)
    if found.engines:
        tasks = found.tasks
        print(f"tasks: {tasks['queued']} queued, {tasks['running']} with engines, {tasks['settled']} settled")
        print(f"clients: {found.clients}")
        for limit, seconds in found.ends_in.items():
            print(
                f"ends in {seconds:.0f} s by {limit}, unless there is work"
                if limit == "idle_timeout"
                else f"ends in {seconds:.0f} s by {limit}"
            )
        rows = [("ENGINE", "SET", "STATE", "PID", "TASKS")]
        rows += [(str(e.id), e.set, e.state, str(e.pid or ""), str(e.tasks)) for e in found.engines]
        table(rows)
    return Exit.OK


def wait(options: argparse.Namespace) -> int:
    """Wait until engines are up."""
    up = _connect(options).wait_sync(options.n, timeout=options.timeout)
    print(f"{up} engines are up")
    return Exit.OK


def scale(options: argparse.Namespace) -> int:
    """Set the number of engines."""
    cluster = _connect(options)
    cluster.scale_sync(options.n, engines=options.engines, drain=0.0 if options.force else options.drain)
    if options.wait:
        cluster.wait_sync(timeout=options.timeout)
    print(f"{options.name}: set {options.engines} has a size of {options.n}")
    return Exit.OK


def restart(options: argparse.Namespace) -> int:
    """Start engines anew under their ids."""
    _connect(options).restart_sync(options.engine, timeout=options.timeout)
    print(f"{options.name}: restarted {'all engines' if options.engine is None else options.engine}")
    return Exit.OK


def run(options: argparse.Namespace) -> int:
    """Run a function or a command on engines."""
    from ..client import Client

    if bool(options.function) == bool(options.command):
        raise ValueError("give MODULE:FUNCTION, or a command after --")
    if options.function and ":" not in options.function:
        raise ValueError(f"{options.function!r} is not MODULE:FUNCTION")
    work = run_command if options.command else run_function
    argument = options.command or options.function
    with Client.connect(options.name, store=options.store) as client:
        if options.each:
            results = client.run(work, argument, timeout=options.timeout)
        else:
            view = client if options.engine is None else client.options(engines=[options.engine])
            results = {-1: view.submit(work, argument).result(options.timeout)}
    worst = 0
    for engine, (code, output) in results.items():
        for line in output.splitlines():
            print(f"[{engine}] {line}" if options.each else line)
        worst = max(worst, code)
    return worst


def logs(options: argparse.Namespace) -> int:
    """Show what the parts of a cluster wrote."""
    cluster = _connect(options)
    if options.follow:
        for part, line in _follow(options):
            print(f"[{part}] {line}", flush=True)
        return Exit.OK
    for part, text in cluster.logs_sync(options.engine, tail=options.tail).items():
        for line in text.splitlines():
            print(f"[{part}] {line}")
    return Exit.OK


def _follow(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the last lines of a cluster's logs, and new ones until its folder is gone."""
    from ..incarnation import resolve
    from ..logs import LogFollower

    _, record = resolve(options.name, options.store)
    wanted = None if options.engine is None else {f"engine-{engine}" for engine in options.engine}
    followed: dict[str, LogFollower] = {}
    tail: int | None = options.tail
    with suppress(FileNotFoundError):
        while True:
            parts = {name.removesuffix(".log") for name in os.listdir(record.folder) if name.endswith(".log")}
            for part in sorted((parts if wanted is None else parts & wanted) - followed.keys()):
                followed[part] = LogFollower(os.path.join(record.folder, f"{part}.log"))
            for part, log in followed.items():
                lines = log.read()
                yield from ((part, line) for line in (lines if tail is None else lines[len(lines) - tail :]))
            tail = None
            time.sleep(0.2)


def handle(options: argparse.Namespace) -> int:
    """Print the handle as JSON."""
    print(_connect(options).handle.model_dump_json())
    return Exit.OK
