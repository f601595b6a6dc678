"""Verbs on one cluster."""

from __future__ import annotations

import argparse
import json
import os
import signal as signals
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from .. import errors
from .many import manager
from .output import Exit, progress, say, table
from .remote import run_command, run_function

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..manager import ClusterSummary
    from ..record import Record
    from ..status import ClusterStatus

__all__ = [
    "adapt",
    "cancel",
    "create",
    "events",
    "handle",
    "interrupt",
    "logs",
    "restart",
    "run",
    "scale",
    "signal",
    "status",
    "wait",
]


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
        "packages": options.package,
        "python": options.python,
    }
    for field in ("keep_results", "max_tasks", "max_memory_bytes", "max_restarts", "adapt"):
        value = getattr(options, field)
        if value is not None:
            fields[field] = value
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
    signals.signal(signals.SIGINT, signals.SIG_IGN)  # pressed again, it gets that no sooner, but whole
    with suppress(errors.ClusterError):
        if _created(options)[1]:
            manager(options).teardown_sync(options.name, force=True)


def _line(summary: ClusterSummary) -> str:
    ends = f", ends by itself: {summary.ends}" if summary.ends else ""
    return f"{summary.name} #{summary.incarnation} is {summary.state} with {summary.size} engines{ends}"


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
        rows = [("ENGINE", "SET", "STATE", "PID", "TASKS", "NOTE")]
        rows += [(str(e.id), e.set, e.state, str(e.pid or ""), str(e.tasks), e.note) for e in found.engines]
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


def adapt(options: argparse.Namespace) -> int:
    """Have a set sized by its load."""
    least, most = options.minimum, options.maximum
    _connect(options).adapt_sync(least, most, engines=options.engines, timeout=options.timeout)
    print(f"{options.name}: set {options.engines} has between {least} and {most} engines, by its load")
    return Exit.OK


def events(options: argparse.Namespace) -> int:
    """Show what happened in a cluster's life."""
    found = _connect(options).events_sync(tail=options.tail)
    if options.json:
        from dataclasses import asdict

        print(json.dumps([asdict(event) for event in found], indent=2))
        return Exit.OK
    rows = [("AT", "EVENT", "ENGINE", "WHAT")]
    rows += [(event.at, event.kind, "" if event.engine is None else str(event.engine), event.text) for event in found]
    table(rows)
    return Exit.OK


def cancel(options: argparse.Namespace) -> int:
    """Cancel tasks by id."""
    from ..client import Client

    with Client.connect(options.name, store=options.store) as client:
        cancelled = client.cancel(options.tasks, timeout=options.timeout)
    for task, done in cancelled.items():
        print(f"{task}: {'cancelled' if done else 'not cancelled: it is over, unknown, or cannot be interrupted'}")
    return Exit.OK if all(cancelled.values()) else Exit.FAILED


def restart(options: argparse.Namespace) -> int:
    """Start engines anew under their ids."""
    engines = _engines(options)
    _connect(options).restart_sync(engines, timeout=options.timeout)
    print(f"{options.name}: restarted {'all engines' if engines is None else engines}")
    return Exit.OK


def _engines(options: argparse.Namespace) -> str | list[int] | None:
    """Return the engines that are meant: ids, a set's name, or all."""
    if options.engine is not None and options.engines is not None:
        raise ValueError("give --engine or --engines, not both")
    return options.engine if options.engines is None else str(options.engines)


def signal(options: argparse.Namespace) -> int:
    """Send a signal to engines."""
    number = _signal_number(options.signal)
    target: Literal["launcher", "engines"] = "launcher" if options.launcher else "engines"
    reached = _connect(options).signal_sync(number, _engines(options), target=target)
    print(f"{options.name}: signal {number} sent to {target if options.launcher else f'engines {reached}'}")
    return Exit.OK


def _signal_number(text: str) -> int:
    if text.isdecimal():
        return int(text)
    name = text.upper()
    found = getattr(signals, name if name.startswith("SIG") else f"SIG{name}", None)
    if not isinstance(found, signals.Signals):
        raise ValueError(f"there is no signal {text!r}")  # noqa: TRY004 - a name that a person typed
    return int(found)


def interrupt(options: argparse.Namespace) -> int:
    """Interrupt what engines run; fails when something goes on."""
    outcomes = _connect(options).interrupt_sync(_engines(options))
    for engine, outcome in outcomes.items():
        print(f"[{engine}] {outcome}")
    return Exit.FAILED if any(outcome.startswith("goes on") for outcome in outcomes.values()) else Exit.OK


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
    engines = _engines(options)
    cluster = _connect(options)
    if options.follow:
        for part, line in _follow(options, None if engines is None else set(cluster.logs_sync(engines, tail=0))):
            print(f"[{part}] {line}", flush=True)
        return Exit.OK
    for part, text in cluster.logs_sync(engines, tail=options.tail).items():
        for line in text.splitlines():
            print(f"[{part}] {line}")
    return Exit.OK


def _follow(options: argparse.Namespace, wanted: set[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the last lines of the logs of the wanted parts, or all, and new ones until the cluster's folder is gone."""
    from ..incarnation import resolve
    from ..logs import LogFollower

    _, record = resolve(options.name, options.store)
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
