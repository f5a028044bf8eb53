"""The picture of a fleet: where the time of each client goes in a round."""

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from codedfedl.arrays import FloatArray
from codedfedl.fleet.devices import Fleet
from codedfedl.report.figures import STYLE

__all__ = ["fleet_figure", "round_parts"]

_COLOURS = ("#1f5fa8", "#d9541e", "#c9a227", "#5b6570")
_DRAWN_CLIENTS = 120  # with more, a bar stands for many
_NAMED_CLIENTS = 40


def round_parts(fleet: Fleet) -> dict[str, FloatArray]:
    """Return the mean seconds of a round in which a client processes all its points, by cause."""
    again = [tau * p / (1 - p) for tau, p in _links(fleet)]
    return {
        "compute": fleet.points / fleet.rate * (1 + 1 / fleet.alpha),
        "send": fleet.packet_time + fleet.packet_time_up,
        "send again": again[0] + again[1],
        "overhead": fleet.overhead,
    }


def _links(fleet: Fleet) -> list[tuple[FloatArray, FloatArray]]:
    return [(fleet.packet_time, fleet.erasure), (fleet.packet_time_up, fleet.erasure_up)]


def fleet_figure(fleet: Fleet) -> Figure:
    """Draw the mean time of every client for all its points, the slowest first."""
    parts = round_parts(fleet)
    order = np.argsort(-sum(parts.values(), np.zeros(len(fleet))), kind="stable")
    groups = np.array_split(order, len(order) if len(order) <= _DRAWN_CLIENTS else 100)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        ax = figure.subplots()
        place, below = np.arange(len(groups)), np.zeros(len(groups))
        for colour, (name, seconds) in zip(_COLOURS, parts.items(), strict=True):
            height = np.array([float(seconds[group].mean()) for group in groups])
            if height.any():
                ax.bar(place, height, bottom=below, color=colour, label=name)
            below += height
        ax.set(title="Where the time of a round goes", ylabel="seconds, on average", xticks=[])
        clients = f"{len(fleet):,} clients with all their points, the slowest first"
        ax.set_xlabel(clients if len(groups) == len(fleet) else f"{clients}; means of groups")
        if len(fleet) <= _NAMED_CLIENTS:
            names = [str(fleet.client[group[0]]).replace("$", r"\$") for group in groups]
            ax.set_xticks(place, names, rotation=90, fontsize=7)
        ax.legend(loc="upper right", ncols=len(parts))
    return figure
