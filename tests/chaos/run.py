"""Chaos: rounds from seeds on real processes, and what broke: ``python tests/chaos/run.py --seeds 0:200``.

Each round makes a cluster, submits work, disturbs it at random moments, and checks what is promised whatever happens.
``--seed 17`` repeats a round: the plan is the same, the kernel's timing is not. Exits with 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import leaks
from chaos.check import violations
from chaos.perform import Report, perform
from chaos.plan import Plan, make_plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds that the command line asks for; return the exit code."""
    options = _parse(arguments)
    leaks.mark_run()
    # What is there below the common one may be another run's.
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="chaos-")
    try:
        return _rounds(options)
    finally:
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)


def _rounds(options: argparse.Namespace) -> int:
    deadline = time.monotonic() + options.seconds
    done, broken = 0, []
    for seed in options.seeds:
        if time.monotonic() > deadline:
            break
        plan = make_plan(seed)
        if options.plan:
            print(plan)
            continue
        done += 1
        if not _round(plan, verbose=options.verbose):
            broken.append(seed)
    print(f"{done} rounds, {len(broken)} of them broken{': ' if broken else ''}{' '.join(map(str, broken))}")
    return int(bool(broken))


def _round(plan: Plan, *, verbose: bool) -> bool:
    folder = Path(tempfile.mkdtemp())
    try:
        report = perform(plan, folder)
        wrong = violations(plan, report)
        print(_line(plan, report, wrong), flush=True)
        if wrong or verbose:
            print(plan)
            print("".join(f"  ! {text}\n" for text in wrong), end="", flush=True)
        if wrong:
            print(f"  refused: {report.refusals}\n  said: {report.said}\n  record: {report.record}", flush=True)
        return not wrong
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _line(plan: Plan, report: Report, wrong: list[str]) -> str:
    kinds: dict[str, int] = {}
    for outcome in report.outcomes:
        kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
    what = ", ".join(sorted(report.performed)) or "nothing"
    return f"{'BAD' if wrong else 'ok '} {plan.seed} {report.seconds:.1f} s {plan.create}; {what}: {kinds}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=_range, default=range(200), metavar="FIRST:END", help="default 0:200")
    which.add_argument("--seed", type=lambda text: [int(text)], dest="seeds", help="one round")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--plan", action="store_true", help="print the plans and run nothing")
    parser.add_argument("--verbose", action="store_true", help="print the plan of each round")
    return parser.parse_args(arguments)


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end))


if __name__ == "__main__":
    sys.exit(main())
