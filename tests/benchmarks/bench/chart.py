"""The picture of a run: for each measure, how many times better ours is than each peer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.floors import MEASURES, Measure, parse_ratio
from bench.peers import OURS
from bench.report import NO_RATIO, Summary

__all__ = ["draw"]

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000", "#999933")


def draw(summary: Summary, peers: Sequence[str], path: Path) -> None:
    """Write the chart as PNG: a dot for each peer, a bar for its floor; right of 1 ours is better."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [measure for measure in MEASURES if _comparable(summary, measure)]
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.42 * max(1, len(rows))), layout="constrained")
    others = [peer for peer in peers if peer != OURS]
    for number, peer in enumerate(others):
        colour = _COLOURS[number % len(_COLOURS)]
        offset = 0.6 * ((number + 0.5) / len(others) - 0.5)
        axes.scatter([], [], s=22, color=colour, label=peer)
        for row, measure in enumerate(rows):
            times, asked = _times_better(summary, measure, peer), _asked(measure, peer)
            if times is None:
                continue
            missed = asked is not None and times < asked
            if asked is not None:
                axes.plot([asked, times], [row + offset] * 2, color=colour, linewidth=0.8, alpha=0.5)
                axes.scatter(asked, row + offset, marker="|", s=60, color=colour, linewidths=1.5)
            axes.scatter(times, row + offset, s=22, color="white" if missed else colour, edgecolors=colour, zorder=3)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [measure.title for measure in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("times better than the peer (| the floor asked for; hollow: not met)")
    if others and rows:
        axes.legend(fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.06))
    figure.savefig(path, format="png", dpi=130)
    plt.close(figure)


def _comparable(summary: Summary, measure: Measure) -> bool:
    return measure.unit not in NO_RATIO and any(
        _times_better(summary, measure, peer) for peer in summary.get(measure.key, {})
    )


def _times_better(summary: Summary, measure: Measure, peer: str) -> float | None:
    row = summary.get(measure.key, {})
    ours, theirs = row.get(OURS), row.get(peer)
    if peer == OURS or not isinstance(ours, float) or not isinstance(theirs, float) or min(ours, theirs) <= 0:
        return None
    return ours / theirs if measure.more_is_better else theirs / ours


def _asked(measure: Measure, peer: str) -> float | None:
    if peer not in measure.floors:
        return None
    asked = float(parse_ratio(measure.floors[peer]))
    return asked if measure.more_is_better else 1 / asked
