"""From measured times to a fleet: estimates, intervals, and whether the model fits at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite, isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError
from codedfedl.fitting.clients import QUANTITIES, ClientTimes, Fitted
from codedfedl.fitting.traces import Traces
from codedfedl.fleet.columns import checked_points
from codedfedl.fleet.delays import DelayModel
from codedfedl.fleet.devices import Fleet
from codedfedl.fleet.measured import MeasuredDelays, MixedDelays, rows_by_client
from codedfedl.io.notebook import drawn, html_table

if TYPE_CHECKING:
    from codedfedl.report.figures import Picture


DOES_NOT_FIT = 0.01
"""p-value below which a client's times are said not to follow the model."""

_MAX_NAMES = 5  # clients in a sentence


@dataclass(frozen=True, eq=False)
class Fit:
    """The delay model fitted to each client; arrays in the order in which clients first appear.

    Attributes
    ----------
    traces : Traces
        The measurements.
    fleet : Fleet
        The estimates, including clients whose times the model does not fit.
    measured : MeasuredDelays
        Every client's measurements, unchanged, with the fleet's points.
    fits : bool array of shape (n,)
        False if the model is rejected for the client, true otherwise.
    p_value : array of shape (n,)
        Probability of a worse fit if the model holds; NaN if there are too few replies to judge.
    n, never_came : int arrays of shape (n,)
        Measurements of each client, and those among them without a reply.
    intervals : mapping of a fleet's column to an array of shape (n, 2)
        95% confidence intervals; NaN if a value cannot be identified.
    notes, warnings : tuples of sentences
        What could not be identified; and clients for which the fleet should not be trusted.
    """

    traces: Traces
    fleet: Fleet
    measured: MeasuredDelays
    fits: npt.NDArray[np.bool_]
    p_value: FloatArray
    n: IntArray
    never_came: IntArray
    intervals: Mapping[str, FloatArray]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def delays(self) -> DelayModel:
        """The fleet; with measured delays for clients whose times do not follow the model."""
        if self.fits.all():
            return self.fleet
        return MixedDelays(self.fleet, self.measured, self.fits)

    def document(self) -> dict[str, Any]:
        """Return the fit as plain numbers and lists, for JSON: null for unidentified values."""
        clients = []
        for j, name in enumerate(self.fleet.client.tolist()):
            row: dict[str, Any] = {
                "client": name,
                "measurements": int(self.n[j]),
                "never_came": int(self.never_came[j]),
                "points": int(self.fleet.points[j]),
            }
            for quantity in QUANTITIES:
                low, high = self.intervals[quantity][j].tolist()
                row[quantity] = float(getattr(self.fleet, quantity)[j])
                interval = [low, high if isfinite(high) else None]
                row[f"{quantity}_interval"] = None if isnan(low) else interval
            p = float(self.p_value[j])
            clients.append(row | {"p_value": None if isnan(p) else p, "fits": bool(self.fits[j])})
        return {"clients": clients, "notes": list(self.notes), "warnings": list(self.warnings)}

    def plot(self) -> "Picture":
        """Draw what was measured against what the model says, client by client."""
        return drawn("fleet_figures:fit_figure", self)

    def _repr_html_(self) -> str:
        known = [name for name in QUANTITIES if not np.isnan(self.intervals[name]).all()]
        columns = {
            "client": self.fleet.client,
            "replies": [f"{n - lost}/{n}" for n, lost in zip(self.n, self.never_came, strict=True)],
            **{name: getattr(self.fleet, name) for name in known},
            "p-value": self.p_value,
            "fits": self.fits,
        }
        return html_table(columns, "Fitted fleet", " ".join((*self.warnings, *self.notes)))


def fit(
    traces: Traces,
    points: float | Mapping[Any, float] | npt.ArrayLike | None = None,
    *,
    seed: int = 0,
) -> Fit:
    """Fit the delay model to each client's measured times.

    Parameters
    ----------
    points
        Points per round of each client: one number for all, one for each in the order in which
        they first appear, or one for each name. By default what the traces say, or the largest load
        measured.
    seed
        Of the bootstrap.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> load = np.repeat([100.0, 200.0], 50)
    >>> seconds = 2 + load / 50 * (1 + rng.exponential(1 / 4, 100))
    >>> found = fit(Traces(np.repeat("phone", 100), load, total=seconds))
    >>> found.fleet.rate.round(), found.fleet.overhead.round(1), bool(found.fits[0])
    (array([50.]), array([2.]), True)
    """
    names, rows = rows_by_client(traces.client)
    held = _points(points, names, [_points_in(traces, which) for which in rows])
    streams = np.random.default_rng(seed).spawn(len(names))
    fitted = [
        ClientTimes.of(traces, which, float(most)).fitted(rng)
        for which, most, rng in zip(rows, held, streams, strict=True)
    ]
    columns = {name: [client.estimate[name] for client in fitted] for name in QUANTITIES}
    p_value = np.array([client.p_value for client in fitted])
    replies = np.array([client.replies for client in fitted])
    counts = np.array([len(which) for which in rows])
    fits = ~(p_value < DOES_NOT_FIT)
    per_point, fixed = zip(*(client.as_measured for client in fitted), strict=True)
    return Fit(
        traces=traces,
        fleet=Fleet(points=held, client=names, **columns),
        measured=MeasuredDelays(per_point, fixed, names, held),
        fits=fits,
        p_value=p_value,
        n=counts,
        never_came=counts - replies,
        intervals={
            name: np.array([client.interval[name] for client in fitted]) for name in QUANTITIES
        },
        notes=_sentences(names, [client.notes for client in fitted]),
        warnings=_sentences(names, [_warnings(client) for client in fitted]),
    )


def _points(
    points: float | Mapping[Any, float] | npt.ArrayLike | None,
    names: npt.NDArray[Any],
    by_default: list[float],
) -> FloatArray:
    """Return the points per round of each client."""
    if points is None:
        return np.array(by_default)
    if isinstance(points, Mapping):
        said = {str(name): value for name, value in points.items()}
        for name in names:
            if str(name) not in said:
                raise InputError(f"points of client {name} are not given: add them")
        for name in said:
            if name not in names.astype(str):
                raise InputError(
                    f"points are given for {name}, which was never measured: remove it"
                )
        points = [said[str(name)] for name in names]
    return checked_points(points, names)


def _points_in(traces: Traces, rows: IntArray) -> float:
    """Return a client's points per round as its measurements say them, or its largest load."""
    said = np.unique(traces.points[rows][~np.isnan(traces.points[rows])])
    if len(said) > 1:
        raise InputError(
            f"points of client {traces.client[rows[0]]} are {said[0]:g} and {said[1]:g}: write "
            "the same on all of its rows"
        )
    return float(said[0]) if len(said) else float(ceil(traces.load[rows].max()))


def _warnings(client: Fitted) -> list[str]:
    if not client.replies:
        return ["never answered: it is assumed to be always absent; measure it again, for longer"]
    if client.p_value < DOES_NOT_FIT:
        return [
            f"its times do not follow the model (p < {DOES_NOT_FIT:g}): plan with the measured "
            "delays instead of the fleet's"
        ]
    return []


def _sentences(names: npt.NDArray[Any], said: list[list[str]]) -> tuple[str, ...]:
    """Say each sentence once, with all whom it concerns."""
    concerned: dict[str, list[str]] = {}
    for name, sentences in zip(names, said, strict=True):
        for sentence in sentences:
            concerned.setdefault(sentence, []).append(str(name))
    return tuple(f"{_list(who, len(names))}: {what}" for what, who in concerned.items())


def _list(who: list[str], everybody: int) -> str:
    if len(who) == everybody > 1:
        return "every client"
    more = f" and {len(who) - _MAX_NAMES} more" if len(who) > _MAX_NAMES else ""
    return f"client{'s' if len(who) > 1 else ''} {', '.join(who[:_MAX_NAMES])}{more}"
