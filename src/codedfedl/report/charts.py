"""Interactive charts: the settings that are drawn, and the numbers that the page's script draws."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from codedfedl.report.comparison import Unit
from codedfedl.report.curves import lowest, over_seeds
from codedfedl.report.figures import DASHES, scheme_colour
from codedfedl.report.results import Outcome, median_hours

__all__ = [
    "LARGE_RATIO",
    "Line",
    "asset",
    "curve_charts",
    "drawn_lines",
    "large_gains",
    "page_data",
]

_MAX_LINES = 10
_MAX_POINTS = 400  # A screen cannot show more points of a line.
LARGE_RATIO = 10.0
"""Where the longest time is so many times the shortest, time is logarithmic."""


@dataclass(frozen=True)
class Line:
    """A setting that is drawn: its run and the run's number, its results and its colour."""

    run: str
    number: int
    outcome: Outcome
    colour: str

    @property
    def key(self) -> str:
        """What the line is called in all charts and tables of the page, wherever the run lies."""
        return f"{self.number}/{self.outcome.cell.id}"

    @property
    def dash(self) -> tuple[int, ...]:
        """The dash of its run."""
        return DASHES[self.number % len(DASHES)]


def drawn_lines(every: Sequence[tuple[str, Outcome]]) -> list[Line]:
    """Choose which settings are drawn, the soonest where there are many, and how.

    Parameters
    ----------
    every
        Runs by name, with the results of each of their settings.
    """
    soonest = sorted(range(len(every)), key=lambda at: median_hours(every[at][1]))
    runs = list(dict.fromkeys(run for run, _ in every))
    shades: dict[str, list[str]] = {}
    lines = []
    for run, o in (every[at] for at in sorted(soonest[:_MAX_LINES])):
        settings = shades.setdefault(o.scheme, [])
        if o.setting not in settings:
            settings.append(o.setting)
        colour = scheme_colour(o.scheme, settings.index(o.setting))
        lines.append(Line(run, runs.index(run), o, colour))
    return lines


def large_gains(outcomes: Sequence[Outcome]) -> bool:
    """Say whether the times to the target differ so much that only a logarithm shows them all."""
    hours = [hour for o in outcomes for hour in o.total_hours if hour]
    return bool(hours) and max(hours) > LARGE_RATIO * min(hours)


def curve_charts(lines: Sequence[Line], target: float | None, unit: Unit) -> list[dict[str, Any]]:
    """Return the metric against time with set-up, against training time, and against rounds."""
    logarithmic = large_gains([line.outcome for line in lines])
    several = len({line.run for line in lines}) > 1
    common = {
        "metric": lines[0].outcome.metric,
        "yMin": lowest([curve for line in lines for curve in line.outcome.seeds], target),
        "target": target if target is not None and np.isfinite(target) else None,
    }
    in_time = {"xUnit": unit.sign, "xLog": logarithmic}
    clocks: dict[str, dict[str, Any]] = {
        "total_hours": {"xLabel": f"{unit.name} with set-up charged"} | in_time,
        "training_hours": {"xLabel": f"{unit.name} of training alone, the paper's clock"} | in_time,
        "rounds": {"xLabel": "rounds", "xUnit": "", "xLog": False},
    }
    charts = []
    for clock, axis in clocks.items():
        scale = 1.0 if clock == "rounds" else unit.per_hour
        series = []
        for line in lines:
            name = line.outcome.setting + (f' (run "{line.run}")' if several else "")
            series.append({"name": name} | _series(line, clock, scale))
        charts.append(common | axis | {"lines": series})
    return charts


def _series(line: Line, clock: str, scale: float) -> dict[str, Any]:
    """Return the median over seeds after each round, at its median time, and the range."""
    times, *metrics = over_seeds(line.outcome.seeds, clock)
    shown = np.linspace(0, len(times) - 1, min(len(times), _MAX_POINTS)).round().astype(int)
    middle, low, high = (_numbers(values[np.unique(shown)]) for values in metrics)
    many = len(line.outcome.seeds) > 1
    return {
        "key": line.key,
        "colour": line.colour,
        "dash": list(line.dash),
        "x": _numbers(times[np.unique(shown)] * scale),
        "y": middle,
        "low": low if many else None,
        "high": high if many else None,
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
