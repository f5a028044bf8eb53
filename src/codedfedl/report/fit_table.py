"""A fitted fleet as a table in the terminal."""

import numpy as np
from rich.table import Table
from rich.text import Text

from codedfedl.fitting.fit import Fit

__all__ = ["fit_view"]

_COLUMNS = {
    "rate": "rate, points/s",
    "alpha": "alpha",
    "overhead": "overhead, s",
    "packet_time": "packet, s",
    "erasure": "erasure",
    "packet_time_up": "packet up, s",
    "erasure_up": "erasure up",
    "availability": "availability",
}
_STYLE = {True: "green", False: "red"}


def fit_view(found: Fit) -> Table:
    """Return a row per client: estimates, with their intervals below."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client")
    table.add_column("replies", justify="right")
    shown = [name for name in _COLUMNS if _is_told(found, name)]
    for name in shown:
        table.add_column(_COLUMNS[name], justify="right")
    table.add_column("does the model fit?")
    for j, client in enumerate(found.fleet.client):
        came = int(found.n[j] - found.never_came[j])
        cells = [_cell(found, name, j) for name in shown]
        table.add_row(Text(str(client)), f"{came}/{found.n[j]}", *cells, _verdict(found, j))
    return table


def _is_told(found: Fit, name: str) -> bool:
    return not np.isnan(found.intervals[name]).all()


def _cell(found: Fit, name: str, j: int) -> Text:
    low, high = found.intervals[name][j]
    if np.isnan(low) and not getattr(found.fleet, name)[j]:
        return Text("–")
    without = high == np.inf or (name == "alpha" and found.intervals["rate"][j, 1] == np.inf)
    estimate = Text("not told" if without else f"{getattr(found.fleet, name)[j]:.3g}")
    interval = "" if np.isnan(low) else f"\n{low:.3g} – {high:.3g}"
    return estimate + Text(interval, style="dim")


def _verdict(found: Fit, j: int) -> Text:
    p = found.p_value[j]
    if found.never_came[j] == found.n[j]:
        return Text("never answered", style="red")
    if np.isnan(p):
        return Text("too few to judge", style="yellow")
    return Text(f"yes, p = {p:.2g}" if found.fits[j] else f"no, p = {p:.2g}", _STYLE[found.fits[j]])
