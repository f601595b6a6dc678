"""Which sessions are run, in which order, and what becomes of what they measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.floors import MEASURES
from bench.peers import OURS, load

__all__ = ["FIGURES", "Kind", "kinds", "order", "samples_of"]


@dataclass(frozen=True)
class Kind:
    """Figures that can share a session: none of them leaves it in a state that the next would notice.

    `engines` is a number other than that of the whole run. `only`: sessions of that peer alone.
    """

    name: str
    figures: tuple[str, ...]
    engines: int | None = None
    only: str | None = None


#: Sessions of one pass. Those named "growth" measure "cold" with few and with many engines.
_KINDS = (
    Kind("start", ("cold", "memory", "teardown")),
    Kind("growth", ("cold",), engines=2),
    Kind("growth", ("cold",), engines=8),
    Kind("connect", ("connect",)),
    Kind("tasks", ("trip", "submits", "map", "uneven")),
    Kind("data", ("broadcast", "pull")),
    Kind("resize", ("restart", "add")),
    Kind("busy", ("restart_busy",)),
    Kind("death", ("kill",)),
    Kind("imports", ("imports",), only=OURS),
)

#: What can be asked for.
FIGURES = tuple(dict.fromkeys([*(figure for kind in _KINDS for figure in kind.figures), "growth"]))


def kinds(figures: Iterable[str], *, quick: bool) -> list[Kind]:
    """Choose the sessions that measure these figures."""
    wanted, found = set(figures), []
    for kind in _KINDS:
        if kind.name == "growth":
            if "growth" in wanted:
                found.append(replace(kind, engines=kind.engines if not quick else (kind.engines or 0) // 2))
            continue
        chosen = tuple(figure for figure in kind.figures if figure in wanted)
        if chosen:
            found.append(replace(kind, figures=chosen))
    return found


def order(chosen: Sequence[Kind], peers: Sequence[str], passes: int) -> Iterator[tuple[int, Kind, str]]:
    """Interleave: in each pass, for each kind of session, one of each peer that has any of its figures."""
    for number, kind, peer in itertools.product(range(passes), chosen, peers):
        figures = tuple(figure for figure in kind.figures if figure not in load(peer).lacks)
        if figures and kind.only in (None, peer):
            yield number, replace(kind, figures=figures), peer


def samples_of(
    sessions: Sequence[Mapping[str, Any]],
) -> tuple[dict[tuple[str, str], list[float]], dict[tuple[str, str], str]]:
    """Collect what sessions measured.

    Returns
    -------
    tuple
        Samples by key of the measure and peer; and reasons where there are none.
    """
    samples: dict[tuple[str, str], list[float]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for session in sessions:
        peer, results = session["peer"], session["results"]
        for measure in MEASURES:
            if session["kind"] == "growth" or measure.figure not in session["figures"]:
                continue
            values = results.get(measure.figure, {"error": session["error"] or "no result"})
            if measure.value in values:
                samples.setdefault((measure.key, peer), []).append(values[measure.value])
            else:
                reasons[measure.key, peer] = values.get("error") or session["error"] or "not measured"
    for peer in {session["peer"] for session in sessions}:
        growth = _growth([session for session in sessions if session["peer"] == peer and session["kind"] == "growth"])
        if growth is not None:
            samples["growth.cpu", peer] = [growth]
    return samples, reasons


def _growth(sessions: Sequence[Mapping[str, Any]]) -> float | None:
    """Return by what share the CPU of a cold start grows from the fewest engines to the most; the least of all passes.

    The least, as it is a difference of two numbers that each have noise on top.
    """
    least: dict[int, float] = {}
    for session in sessions:
        cpu = session["results"].get("cold", {}).get("cpu")
        if cpu is not None:
            least[session["engines"]] = min(cpu, least.get(session["engines"], cpu))
    return least[max(least)] / least[min(least)] - 1 if len(least) > 1 else None
