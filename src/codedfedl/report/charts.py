"""Interactive charts: the numbers that the page's script draws."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from codedfedl.report.curves import lowest
from codedfedl.report.palette import DASHES, scheme_colour
from codedfedl.report.results import Outcome
from codedfedl.report.units import Unit

__all__ = [
    "LARGE",
    "Line",
    "asset",
    "curve_charts",
    "drawn_lines",
    "large_gains",
    "line_key",
    "page_data",
]

_MOST_LINES = 10
_MOST_POINTS = 400  # of a line: more than a screen can show
LARGE = 10.0  # times between the shortest and the longest: then time is logarithmic


@dataclass(frozen=True)
class Line:
    """A setting that is drawn: its run and the run's place, its results and its colour."""

    run: str
    place: int
    outcome: Outcome
    colour: str

    @property
    def key(self) -> str:
        """What the line is called in all charts and tables of the page, wherever the run lies."""
        return line_key(self.place, self.outcome)

    @property
    def dash(self) -> tuple[int, ...]:
        """The dash of its run."""
        return DASHES[self.place % len(DASHES)]


def line_key(place: int, outcome: Outcome) -> str:
    """Return what a setting of a run is called in the page."""
    return f"{place}/{outcome.cell}"


def drawn_lines(every: Sequence[tuple[str, Outcome]]) -> list[Line]:
    """Choose which settings are drawn, the soonest where there are many, and how.

    Parameters
    ----------
    every
        Runs by name, with the results of each of their settings.
    """

    def hours(place: int) -> float:
        met = [hour for hour in every[place][1].total_hours if hour is not None]
        return float(np.median(met)) if len(met) == len(every[place][1].total_hours) else np.inf

    soonest = sorted(range(len(every)), key=hours)[:_MOST_LINES]
    runs = list(dict.fromkeys(run for run, _ in every))
    shades: dict[str, list[str]] = {}
    lines = []
    for run, o in (every[place] for place in sorted(soonest)):
        settings = shades.setdefault(o.scheme, [])
        if o.setting not in settings:
            settings.append(o.setting)
        colour = scheme_colour(o.scheme, settings.index(o.setting))
        lines.append(Line(run, runs.index(run), o, colour))
    return lines


def large_gains(outcomes: Sequence[Outcome]) -> bool:
    """Say whether the times to the target differ so much that only a logarithm shows them all."""
    hours = [hour for o in outcomes for hour in o.total_hours if hour]
    return bool(hours) and max(hours) > LARGE * min(hours)


def curve_charts(lines: Sequence[Line], target: float | None, unit: Unit) -> list[dict[str, Any]]:
    """Return the metric against time with set-up, against training time, and against rounds."""
    logarithmic = large_gains([line.outcome for line in lines])
    metric = lines[0].outcome.metric
    several = len({line.run for line in lines}) > 1
    everything = [curve for line in lines for curve in line.outcome.seeds]
    clocks = (
        ("total_hours", f"{unit.name} with set-up charged", unit),
        ("training_hours", f"{unit.name} of training alone, the paper's clock", unit),
        ("rounds", "rounds", None),
    )
    return [
        {
            "metric": metric,
            "xLabel": label,
            "xUnit": "" if time is None else time.sign,
            "xLog": logarithmic and time is not None,
            "yMin": lowest(everything, target),
            "target": target if target is not None and np.isfinite(target) else None,
            "lines": [
                {"name": line.outcome.setting + (f' (run "{line.run}")' if several else "")}
                | _series(line, clock, 1.0 if time is None else time.per_hour)
                for line in lines
            ],
        }
        for clock, label, time in clocks
    ]


def _series(line: Line, clock: str, scale: float) -> dict[str, Any]:
    """Return the median over seeds after each round, at its median time, and the range."""
    seeds = line.outcome.seeds
    rounds = min(len(curve.metric) for curve in seeds)  # a plan may differ from seed to seed
    places = np.unique(np.linspace(0, rounds - 1, min(rounds, _MOST_POINTS)).round().astype(int))
    x = np.median([getattr(curve, clock)[:rounds] for curve in seeds], axis=0)[places] * scale
    y = np.array([curve.metric[:rounds] for curve in seeds])[:, places]
    many = len(seeds) > 1
    return {
        "key": line.key,
        "colour": line.colour,
        "dash": list(line.dash),
        "x": _numbers(x),
        "y": _numbers(np.median(y, axis=0)),
        "low": _numbers(y.min(axis=0)) if many else None,
        "high": _numbers(y.max(axis=0)) if many else None,
    }


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """Return numbers as briefly as a screen needs them; JSON has no NaN."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


def page_data(document: Any) -> Markup:
    """Return JSON that can stand in a page's script element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # no element can begin or end in it


@cache
def asset(name: str) -> Markup:
    """Return a script or a style sheet that comes with the package, to stand in the page."""
    text = (files("codedfedl") / "report" / "assets" / name).read_text("utf-8")
    assert "</script" not in text
    return Markup(text)
