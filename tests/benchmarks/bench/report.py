"""From samples to ratios, verdicts and tables. Pure: no files, no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.floors import MEASURES, Measure, parse_ratio
from bench.peers import OURS

__all__ = ["FOOTNOTE", "NO_RATIO", "Verdict", "judge", "summarize", "table", "verdict_lines"]

#: By measure, then by peer: the value, or why there is none.
Summary = Mapping[str, Mapping[str, "float | str"]]

#: What a reader of the table has to know.
FOOTNOTE = "medians of all passes, round trips the least; CPU is that of all processes of a session"

#: Units of which ours against theirs says nothing.
NO_RATIO = frozenset({"yes", "%", "#"})

_MARKS = {True: "*", False: "!!", None: ""}
_WORDS = {True: "met", False: "NOT MET", None: "not judged"}

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    "/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
}


@dataclass(frozen=True)
class Verdict:
    """One floor: what was asked, what was found. `met` is None when it could not be judged."""

    measure: str
    title: str
    peer: str
    floor: str
    found: str
    met: bool | None

    def __str__(self) -> str:
        against = f" : {self.peer}" if self.peer else ""
        return f"{_WORDS[self.met]:<11}{self.title}{against}: {self.found}, floor {self.floor}"


def summarize(samples: Mapping[tuple[str, str], Sequence[float]], reasons: Mapping[tuple[str, str], str]) -> Summary:
    """Reduce samples, by measure and peer, to one value each.

    Parameters
    ----------
    samples
        Values of all passes; their median is taken, or their least where the measure says so.
    reasons
        Why there is no sample.

    Returns
    -------
    mapping
        Only measures and peers of which something is known.
    """
    found: dict[str, dict[str, float | str]] = {}
    for measure in MEASURES:
        peers = {peer for key, peer in [*samples, *reasons] if key == measure.key}
        for peer in sorted(peers):
            values = samples.get((measure.key, peer))
            value = (min(values) if measure.least else median(values)) if values else reasons[measure.key, peer]
            found.setdefault(measure.key, {})[peer] = value
    return found


def judge(summary: Summary) -> list[Verdict]:
    """Hold the values against the floors."""
    verdicts = []
    for measure in MEASURES:
        row = summary.get(measure.key, {})
        ours = row.get(OURS)
        if ours is None:
            continue
        if measure.limit is not None:
            text, met = show(ours, measure), ours <= measure.limit if isinstance(ours, float) else None
            verdicts.append(Verdict(measure.key, measure.title, "", show(measure.limit, measure), text, met))
        for peer, floor in measure.floors.items():
            theirs = row.get(peer)
            if theirs is None:
                continue
            met = _met(measure, ours, theirs, floor)
            found = f"{ratio(ours, theirs)} ({show(ours, measure)} : {show(theirs, measure)})"
            verdicts.append(Verdict(measure.key, measure.title, peer, floor, found, met))
    return verdicts


def _met(measure: Measure, ours: float | str, theirs: float | str, floor: str) -> bool | None:
    if isinstance(ours, str) or isinstance(theirs, str) or theirs <= 0:
        return None
    asked = float(parse_ratio(floor))
    return ours / theirs >= asked if measure.more_is_better else ours / theirs <= asked


def ratio(ours: float | str, theirs: float | str) -> str:
    """Write ours : theirs with one side 1, in two digits."""
    if isinstance(ours, str) or isinstance(theirs, str) or ours <= 0 or theirs <= 0:
        return "?"
    quotient = ours / theirs
    return f"{_digits(quotient)}:1" if quotient >= 1 else f"1:{_digits(1 / quotient)}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def show(value: float | str, measure: Measure) -> str:
    """Write a value with its unit."""
    if isinstance(value, str):
        return "-"
    match measure.unit:
        case "%":
            return f"{100 * value:.0f} %"
        case "x":
            return f"{value:.2f}"
        case "#":
            return f"{value:.0f}"
        case "yes":
            return "yes" if value >= 0.5 else "no"
        case unit:
            scales = _SCALES[unit]
            scale, name = next((pair for pair in scales if abs(value) >= pair[0]), scales[-1])
            return f"{value / scale:.3g} {name}"


def table(summary: Summary, peers: Sequence[str]) -> str:
    """Lay out a line for each measure: ours, the guide, and for each peer its value and ours against it.

    Returns
    -------
    str
        Lines. ``*`` marks a floor that is met and ``!!`` one that is not.
    """
    rows = [["figure", "ours", "guide", *(peer for peer in peers if peer != OURS)]]
    for measure in MEASURES:
        row = summary.get(measure.key)
        if row is None:
            continue
        ours = row.get(OURS, "")
        guide = "" if measure.guide is None else " / ".join(show(value, measure) for value in measure.guide)
        if measure.limit is not None:
            guide = f"< {show(measure.limit, measure)}"
        cells = [_cell(measure, ours, peer, row.get(peer)) for peer in peers if peer != OURS]
        rows.append([measure.title, show(ours, measure), guide, *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cell(measure: Measure, ours: float | str, peer: str, theirs: float | str | None) -> str:
    if theirs is None or isinstance(theirs, str):
        return "-"
    text, floor = show(theirs, measure), measure.floors.get(peer)
    if measure.unit in NO_RATIO or isinstance(ours, str):
        return text
    met = None if floor is None else _met(measure, ours, theirs, floor)
    return f"{text}  {ratio(ours, theirs)}{_MARKS[met]}"


def verdict_lines(verdicts: Sequence[Verdict]) -> str:
    """List the floors that are not met or not judged, and count."""
    met = sum(verdict.met is True for verdict in verdicts)
    lines = [str(verdict) for verdict in verdicts if verdict.met is not True]
    return "\n".join([*lines, f"{met} of {len(verdicts)} floors met"])
