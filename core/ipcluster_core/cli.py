"""``ipclusterctl``: create, find, use and end clusters by name from a shell.

Exit codes: 0 done, 1 failed, 2 usage, 3 no such cluster, 4 refused because it is in use, 5 something was left over,
130 interrupted. Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .cluster import Cluster
    from .manager import ClusterManager, ClusterSummary
    from .status import ClusterStatus

__all__ = ["Exit", "main"]


class Exit(enum.IntEnum):
    """What the command's exit code means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    IN_USE = 4
    LEFTOVERS = 5
    INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never ends with a traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    options = _parser().parse_args(given)
    options.command = command
    try:
        return int(options.verb(options))
    except KeyboardInterrupt:
        _say("interrupted")
        return Exit.INTERRUPTED
    except errors.ClusterNotFound as error:
        _say(str(error))
        return Exit.NOT_FOUND
    except errors.ClusterInUse as error:
        _say(str(error))
        return Exit.IN_USE
    except ValueError as error:
        _say(_readable(error))
        return Exit.USAGE
    except BrokenPipeError:
        # Whoever read the output has gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 - the top: a user of the command gets a message, whatever it is
        _say(str(error) if isinstance(error, errors.ClusterError) else f"{type(error).__name__}: {error}")
        return Exit.FAILED


def _say(text: str) -> None:
    print(f"ipclusterctl: {text}", file=sys.stderr)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _readable(error: ValueError) -> str:
    """Return a model's complaints without the model library's own words around them."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'spec'}: {one['msg']}" for one in details())


# arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ipclusterctl", description="Parallel clusters by name.")
    parser.add_argument(
        "--store", metavar="URL", help="store of the clusters (default: $IPCLUSTER_STORE, else per user)"
    )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, verb: Callable[[argparse.Namespace], int], text: str, **kw: Any) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text, **kw)
        sub.set_defaults(verb=verb)
        return sub

    _add_create(add("create", _create, "Create a cluster that outlives this command, or attach to it."))
    sub = add("list", _list, "List clusters.")
    sub.add_argument("--all", action="store_true", help="ended ones too")
    sub.add_argument("--label", action="append", type=_pair, default=[], metavar="KEY=VALUE")
    sub.add_argument("--json", action="store_true")
    sub = add("status", _status, "Show how a cluster is.")
    sub.add_argument("name")
    sub.add_argument("--json", action="store_true")
    sub = add("wait", _wait, "Wait until engines are up.")
    sub.add_argument("name")
    sub.add_argument("-n", type=int, help="number of engines (default: all that were asked for)")
    sub.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    sub = add("scale", _scale, "Set the number of engines.")
    sub.add_argument("name")
    sub.add_argument("n", type=int)
    sub.add_argument("--engines", default="default", metavar="SET", help="engine set")
    sub.add_argument("--wait", action="store_true", help="until they are up")
    sub.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    sub = add("restart", _restart, "Start engines anew under their ids.")
    sub.add_argument("name")
    sub.add_argument("--engine", type=int, action="append", help="this one (default: all)")
    sub.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    sub = add("run", _run, "Run module:function, or a command given after --, on an engine.")
    sub.add_argument("name")
    sub.add_argument("function", nargs="?", metavar="MODULE:FUNCTION")
    sub.add_argument("--engine", type=int, help="on this engine")
    sub.add_argument("--each", action="store_true", help="once on each engine")
    sub.add_argument("--timeout", type=float, metavar="SECONDS")
    sub = add("logs", _logs, "Show what the parts of a cluster wrote.")
    sub.add_argument("name")
    sub.add_argument("--engine", type=int, action="append", help="only of this engine")
    sub.add_argument("--tail", type=int, default=100, metavar="LINES")
    sub.add_argument("-f", "--follow", action="store_true", help="go on until the cluster ends (on its own host)")
    sub = add("handle", _handle, "Print the handle as JSON.")
    sub.add_argument("name")
    sub = add("teardown", _teardown, "End clusters. Repeating it is no error.", aliases=["delete"])
    sub.add_argument("names", nargs="+", metavar="name")
    sub.add_argument("--claim", help="give up this claim; the cluster ends when it was the last")
    sub.add_argument("--force", action="store_true", help="although other runs use it")
    sub.add_argument("-y", "--yes", action="store_true", help="do not ask")
    sub.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    return parser


def _add_create(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("name")
    sub.add_argument("-n", type=int, help="number of engines (default 2)")
    sub.add_argument("--if-exists", choices=["attach", "fail", "replace"], default="fail")
    sub.add_argument("--claim", help="name of the run that uses it")
    sub.add_argument("--at-least", type=int, metavar="N", help="engines that make it ready (default: all)")
    sub.add_argument("--idle-timeout", type=_limit, metavar="SECONDS", help="or 'none' (default 1800)")
    sub.add_argument("--lifetime", type=_limit, metavar="SECONDS", help="or 'none' (default none)")
    sub.add_argument("--no-client-timeout", type=_limit, metavar="SECONDS", help="or 'none' (default none)")
    sub.add_argument("--label", action="append", type=_pair, default=[], metavar="KEY=VALUE")
    sub.add_argument("--env", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="set for the engines")
    sub.add_argument("--cwd", help="engines' working folder (default: this one)")
    sub.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import before forking engines")
    sub.add_argument("--python", metavar="PATH", help="interpreter (default: this one's)")
    sub.add_argument("--backend", default="native")
    sub.add_argument("--launcher", default="local")
    sub.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    sub.add_argument("--json", action="store_true", help="print the handle")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _limit(text: str) -> float | str:
    return "none" if text.lower() == "none" else float(text)


# commands


def _manager(options: argparse.Namespace) -> ClusterManager:
    from .manager import ClusterManager

    return ClusterManager(options.store)


def _connect(options: argparse.Namespace) -> Cluster:
    from .cluster import Cluster

    return Cluster.connect_sync(options.name, store=options.store)


def _create(options: argparse.Namespace) -> int:
    from .cluster import Cluster

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
        _say(f"warning: nothing ends cluster {options.name!r} by itself; tear it down yourself")
    start = time.monotonic()
    _progress(f"creating {options.name} ...")
    cluster = Cluster.create_sync(
        options.name,
        if_exists=options.if_exists,
        claim=options.claim,
        store=options.store,
        timeout=options.timeout,
        **fields,
    )
    _progress(f"ready after {time.monotonic() - start:.1f} s")
    if options.json:
        print(cluster.handle.model_dump_json())
    else:
        print(_line(_manager(options).get_sync(options.name)))
    return Exit.OK


def _line(summary: ClusterSummary) -> str:
    ends = f", ends by itself: {summary.ends}" if summary.ends else ""
    return f"{summary.name} #{summary.incarnation} is {summary.state} with {summary.engines} engines{ends}"


def _list(options: argparse.Namespace) -> int:
    found = _manager(options).list_sync(dict(options.label), all=options.all)
    if options.json:
        from dataclasses import asdict

        print(json.dumps([asdict(summary) for summary in found], indent=2))
        return Exit.OK
    rows = [("NAME", "TYPE", "ENGINES", "CREATED", "STATUS", "ENDS")]
    for one in found:
        kind = f"{one.backend}/{one.launcher}" if one.backend else "?"
        status = f"{one.state}: {one.reason}" if one.reason else str(one.state)
        rows.append((one.name, kind, str(one.engines), one.created, status, one.ends))
    _table(rows)
    return Exit.OK


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [
        max(len(row[column].splitlines()[0] if row[column] else "") for row in rows) for column in range(len(rows[0]))
    ]
    for row in rows:
        cells = (cell.splitlines()[0] if cell else "" for cell in row)
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def _find(options: argparse.Namespace) -> ClusterStatus:
    """Return a status, of an ended or broken cluster too."""
    try:
        return _connect(options).status_sync()
    except (errors.ClusterEnded, errors.ClusterBroken) as error:
        from .status import ClusterStatus

        summary = _manager(options).get_sync(options.name)
        return ClusterStatus(summary.name, summary.incarnation, summary.state, reasons=(str(error),))


def _status(options: argparse.Namespace) -> int:
    status = _find(options)
    if options.json:
        from dataclasses import asdict

        print(json.dumps(asdict(status), indent=2))
        return Exit.OK
    print(f"{status.name} #{status.incarnation}: {status.state}")
    for reason in status.reasons:
        print(reason)
    if status.engines:
        tasks = status.tasks
        print(f"tasks: {tasks['queued']} queued, {tasks['running']} with engines, {tasks['settled']} settled")
        print(f"clients: {status.clients}")
        for limit, seconds in status.ends_in.items():
            print(
                f"ends in {seconds:.0f} s by {limit}, unless there is work"
                if limit == "idle_timeout"
                else f"ends in {seconds:.0f} s by {limit}"
            )
        rows = [("ENGINE", "SET", "STATE", "PID", "TASKS")]
        rows += [(str(e.id), e.set, e.state, str(e.pid or ""), str(e.tasks)) for e in status.engines]
        _table(rows)
    return Exit.OK


def _wait(options: argparse.Namespace) -> int:
    up = _connect(options).wait_sync(options.n, timeout=options.timeout)
    print(f"{up} engines are up")
    return Exit.OK


def _scale(options: argparse.Namespace) -> int:
    cluster = _connect(options)
    cluster.scale_sync(options.n, engines=options.engines)
    if options.wait:
        cluster.wait_sync(timeout=options.timeout)
    print(f"{options.name}: set {options.engines} has a size of {options.n}")
    return Exit.OK


def _restart(options: argparse.Namespace) -> int:
    _connect(options).restart_sync(options.engine, timeout=options.timeout)
    print(f"{options.name}: restarted {'all engines' if options.engine is None else options.engine}")
    return Exit.OK


def _run(options: argparse.Namespace) -> int:
    from .client import Client

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


def run_command(command: list[str]) -> tuple[int, str]:
    """Run a command on an engine; return its exit code and what it wrote."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, errors="replace")
    return done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout


def run_function(path: str) -> tuple[int, str]:
    """Call ``module:function`` on an engine; return 0 and its result as text."""
    module, _, name = path.partition(":")
    value = getattr(import_module(module), name)()
    return 0, "" if value is None else str(value)


def _logs(options: argparse.Namespace) -> int:
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
    from .incarnation import resolve
    from .logs import LogFollower

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


def _handle(options: argparse.Namespace) -> int:
    print(_connect(options).handle.model_dump_json())
    return Exit.OK


def _teardown(options: argparse.Namespace) -> int:
    names = ", ".join(options.names)
    if not options.yes and sys.stdin.isatty():
        answer = input(f"End {names}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            _say("nothing was ended")
            return Exit.FAILED
    worst = Exit.OK
    for name in options.names:
        worst = max(worst, _teardown_one(options, name))
    return worst


def _teardown_one(options: argparse.Namespace, name: str) -> Exit:
    try:
        report = _manager(options).teardown_sync(
            name, claim=options.claim, force=options.force, timeout=options.timeout
        )
    except errors.ClusterNotFound as error:
        _say(str(error))
        return Exit.NOT_FOUND
    except errors.ClusterInUse as error:
        _say(str(error))
        return Exit.IN_USE
    except errors.ClusterError as error:
        _say(str(error))
        return Exit.FAILED
    print(f"{name}: {report.outcome}" + (f" ({report.message})" if report.outcome != "ended" else ""))
    for left in report.leftovers:
        _say(f"{name}: could not be ended: {left}")
    return Exit.LEFTOVERS if report.leftovers else Exit.OK


if __name__ == "__main__":
    sys.exit(main())
