"""Verbs on any number of clusters."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from .. import errors
from .output import Exit, complain, say, table

if TYPE_CHECKING:
    from ..manager import ClusterManager

__all__ = ["doctor", "list_", "manager", "reap", "teardown"]


def manager(options: argparse.Namespace) -> ClusterManager:
    """Return the manager of the store that was named."""
    from ..manager import ClusterManager

    return ClusterManager(options.store)


def list_(options: argparse.Namespace) -> int:
    """List clusters."""
    found = manager(options).list_sync(dict(options.label), all=options.all)
    if options.json:
        from dataclasses import asdict

        print(json.dumps([asdict(summary) for summary in found], indent=2))
        return Exit.OK
    rows = [("NAME", "TYPE", "ENGINES", "CREATED", "STATUS", "ENDS")]
    for one in found:
        kind = f"{one.backend}/{one.launcher}" if one.backend else "?"
        status = f"{one.state}: {one.reason}" if one.reason else str(one.state)
        rows.append((one.name, kind, one.size, one.created, status, one.ends))
    table(rows)
    return Exit.OK


def teardown(options: argparse.Namespace) -> int:
    """End clusters, after asking on a terminal."""
    names = ", ".join(options.names)
    if not options.yes and sys.stdin.isatty():
        answer = input(f"End {names}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            say("nothing was ended")
            return Exit.FAILED
    worst = Exit.OK
    for name in options.names:
        worst = max(worst, _teardown_one(options, name))
    return worst


def _teardown_one(options: argparse.Namespace, name: str) -> Exit:
    try:
        report = manager(options).teardown_sync(name, claim=options.claim, force=options.force, timeout=options.timeout)
    except errors.ClusterError as error:  # the others are to be ended all the same
        return complain(error)
    plain = report.outcome == "ended" and not report.cured
    print(f"{name}: {report.outcome}" + ("" if plain else f" ({report.message})"))
    for left in report.leftovers:
        say(f"{name}: could not be ended: {left}")
    return Exit.LEFTOVERS if report.leftovers else Exit.OK


def reap(options: argparse.Namespace) -> int:
    """End what nobody needs any more."""
    results = manager(options).reap_sync(
        options.max_age,
        options.idle_for,
        dict(options.label),
        broken=not options.no_broken,
        dry_run=options.dry_run,
        timeout=options.timeout,
    )
    if options.json:
        from dataclasses import asdict

        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        for one in results:
            number = f" #{one.incarnation}" if one.incarnation else ""
            print(f"{one.name}{number}: {one.outcome} ({one.why})")
    for one in results:
        for left in one.leftovers:
            say(f"{one.name}: could not be ended: {left}")
    if any(one.leftovers for one in results):
        return Exit.LEFTOVERS
    return Exit.FAILED if any(one.outcome.startswith("failed") for one in results) else Exit.OK


def doctor(options: argparse.Namespace) -> int:
    """Examine store, host and clusters."""
    from ..doctor import Level, examine

    findings = examine(options.store)
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for one in findings:
            print(f"{one.level:<8} {one.check}: {one.text}" + (f"\n         -> {one.cure}" if one.cure else ""))
    return Exit.FAILED if any(one.level is Level.FAILED for one in findings) else Exit.OK
