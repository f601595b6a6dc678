"""The command: its verbs and their arguments, and the way from an error to an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import many, single
from .output import Exit, complain, open_streams, say

__all__ = ["main"]

_Verb = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; never ends with a traceback."""
    open_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if "--" in given:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    options = _parser().parse_args(given)
    options.command = command
    try:
        try:
            return int(options.verb(options))
        except KeyboardInterrupt:
            # Pressed again, it gets that no sooner, but with the right exit code.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # pressed again before that
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BrokenPipeError:
        # Whoever read the output has gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except Exception as error:  # noqa: BLE001 - the top: a user of the command gets a message, whatever it is
        return complain(error)
    say("interrupted")
    return Exit.INTERRUPTED


# kinds of values


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _limit(text: str) -> float | str:
    return "none" if text.lower() == "none" else float(text)


_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    """Read seconds from ``90``, ``90s``, ``15m``, ``2h`` or ``1d``."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNIT_SECONDS else (text, "s")
    try:
        seconds = float(number) * _UNIT_SECONDS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: use 90, 90s, 15m, 2h or 1d")
    return seconds


# the verbs and their arguments


class _Argument(NamedTuple):
    flags: tuple[str, ...]
    settings: dict[str, Any]


def _arg(*flags: str, **settings: Any) -> _Argument:
    """Say an argument as `argparse.ArgumentParser.add_argument` takes it."""
    return _Argument(flags, settings)


_NAME = _arg("name")
_JSON = _arg("--json", action="store_true")
_YES = _arg("-y", "--yes", action="store_true", help="do not ask")
_ENGINES = _arg("--engine", type=int, action="append", help="only this one; can be repeated (default: all)")
_LABELS = _arg("--label", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="can be repeated")


def _timeout(seconds: float | None) -> _Argument:
    return _arg("--timeout", type=float, default=seconds, metavar="SECONDS")


_ENGINES_OR_SET = (_NAME, _ENGINES, _arg("--engines", metavar="SET", help="this engine set"))

_SIGNAL = (
    _NAME,
    _arg("signal", help="SIGUSR1, USR1 or 10"),
    *_ENGINES_OR_SET[1:],
    _arg("--launcher", action="store_true", help="the mpiexec of an MPI set, and not its ranks"),
)

_CREATE = (
    _NAME,
    _arg("-n", type=int, help="number of engines (default 2)"),
    _arg("--if-exists", choices=["attach", "fail", "replace"], default="fail"),
    _arg("--claim", help="name of the run that uses it"),
    _arg("--at-least", type=int, metavar="N", help="engines that make it ready (default: all)"),
    _arg("--idle-timeout", type=_limit, metavar="SECONDS", help="or 'none' (default 1800)"),
    _arg("--lifetime", type=_limit, metavar="SECONDS", help="or 'none' (default none)"),
    _arg("--no-client-timeout", type=_limit, metavar="SECONDS", help="or 'none' (default none)"),
    _arg("--keep-results", type=float, metavar="SECONDS", help="for which results can be fetched by id (default 3600)"),
    _arg("--adapt", type=int, nargs=2, metavar=("MIN", "MAX"), help="number of engines by load"),
    _arg("--max-tasks", type=int, metavar="N", help="after which an engine is replaced"),
    _arg("--max-memory-bytes", type=int, metavar="N", help="above which an engine is replaced between tasks"),
    _arg("--max-restarts", type=int, metavar="N", help="of an engine that dies at once (default 10)"),
    _LABELS,
    _arg("--env", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="set for the engines"),
    _arg("--cwd", help="engines' working folder (default: this one)"),
    _arg("--preload", action="append", default=[], metavar="MODULE", help="import before forking engines"),
    _arg("--package", action="append", default=[], metavar="NAME", help="its version must be the same everywhere"),
    _arg("--python", metavar="PATH", help="interpreter (default: this one's)"),
    _arg("--backend", default="native"),
    _arg("--launcher", default="local"),
    _timeout(60.0),
    _arg("--json", action="store_true", help="print the handle"),
)

_WAIT = (
    _NAME,
    _arg("-n", type=int, help="number of engines (default: all that were asked for)"),
    _timeout(60.0),
)

_SCALE = (
    _NAME,
    _arg("n", type=int),
    _arg("--engines", default="default", metavar="SET", help="engine set"),
    _arg("--wait", action="store_true", help="until they are up"),
    _arg("--drain", type=float, default=300.0, metavar="SECONDS", help="that busy engines may go on (default 300)"),
    _arg("--force", action="store_true", help="end busy engines at once; their tasks fail"),
    _timeout(60.0),
)

_ADAPT = (
    _NAME,
    _arg("minimum", type=int),
    _arg("maximum", type=int),
    _arg("--engines", default="default", metavar="SET", help="engine set"),
    _timeout(10.0),
)

_EVENTS = (_NAME, _arg("--tail", type=int, default=100, metavar="EVENTS"), _JSON)

_CANCEL = (_NAME, _arg("tasks", nargs="+", metavar="task", help="id of a task"), _timeout(10.0))

_RUN = (
    _NAME,
    _arg("function", nargs="?", metavar="MODULE:FUNCTION"),
    _arg("--engine", type=int, help="on this engine"),
    _arg("--each", action="store_true", help="once on each engine"),
    _timeout(None),
)

_LOGS = (
    *_ENGINES_OR_SET,
    _arg("--tail", type=int, default=100, metavar="LINES"),
    _arg("-f", "--follow", action="store_true", help="go on until the cluster ends (on its own host)"),
)

_TEARDOWN = (
    _arg("names", nargs="+", metavar="name"),
    _arg("--claim", help="give up this claim; the cluster ends when it was the last"),
    _arg("--force", action="store_true", help="although other runs use it"),
    _YES,
    _timeout(30.0),
)

_REAP = (
    _arg("--idle-for", type=_duration, metavar="TIME", help="end those idle for so long: 90, 90s, 15m, 2h, 1d"),
    _arg("--max-age", type=_duration, metavar="TIME", help="end those created so long ago"),
    _LABELS,
    _arg("--no-broken", action="store_true", help="leave broken ones and processes without a record alone"),
    _arg("--dry-run", action="store_true", help="only say what would be ended"),
    _JSON,
    _timeout(30.0),
)

#: Each verb: its names, what it does, what it is for, its arguments.
_VERBS: tuple[tuple[str, _Verb, str, tuple[_Argument, ...]], ...] = (
    ("create", single.create, "Create a cluster that outlives this command, or attach to it.", _CREATE),
    ("list", many.list_, "List clusters.", (_arg("--all", action="store_true", help="ended ones too"), _LABELS, _JSON)),
    ("status", single.status, "Show how a cluster is.", (_NAME, _JSON)),
    ("wait", single.wait, "Wait until engines are up.", _WAIT),
    ("scale", single.scale, "Set the number of engines.", _SCALE),
    ("adapt", single.adapt, "Have the number of engines follow the load.", _ADAPT),
    ("restart", single.restart, "Start engines anew under their ids.", (*_ENGINES_OR_SET, _timeout(60.0))),
    ("signal", single.signal, "Send a signal to engines, for example SIGUSR1.", _SIGNAL),
    ("interrupt", single.interrupt, "Interrupt what engines run at this moment.", _ENGINES_OR_SET),
    ("run", single.run, "Run module:function, or a command given after --, on an engine.", _RUN),
    ("cancel", single.cancel, "Cancel tasks by id, queued or running.", _CANCEL),
    ("logs", single.logs, "Show what the parts of a cluster wrote.", _LOGS),
    ("events", single.events, "Show what happened in a cluster's life.", _EVENTS),
    ("handle", single.handle, "Print the handle as JSON.", (_NAME,)),
    ("reap", many.reap, "End idle, old and broken clusters, and what is left of some; claims do not protect.", _REAP),
    ("teardown delete", many.teardown, "End clusters. Repeating it is no error.", _TEARDOWN),
    ("doctor", many.doctor, "Examine store, host and clusters, and say what to do.", (_JSON,)),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ipclusterctl", description="Parallel clusters by name.")
    parser.add_argument(
        "--store", metavar="URL", help="store of the clusters (default: $IPCLUSTER_STORE, else per user)"
    )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for names, verb, text, arguments in _VERBS:
        name, *aliases = names.split()
        sub = verbs.add_parser(name, help=text, description=text, aliases=aliases)
        sub.set_defaults(verb=verb)
        for argument in arguments:
            sub.add_argument(*argument.flags, **argument.settings)
    return parser
