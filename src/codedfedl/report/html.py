"""`report.html`: one self-contained page for one run, or for several compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from codedfedl.report import arrivals, comparison
from codedfedl.report.comparison import UNITS, Unit, races, three_digits, unit_for, verdict
from codedfedl.report.curves import (
    LARGE_RATIO,
    PANELS,
    Line,
    curve_charts,
    curve_figure,
    drawn_lines,
    large_gains,
)
from codedfedl.report.figures import page_svg
from codedfedl.report.grids import sweep_figure
from codedfedl.report.outcome_tables import plain_rows
from codedfedl.report.results import Outcome, median_hours, written
from codedfedl.report.story import SHOWN_CLIENTS, TIME_COLUMNS, Story, stories_of
from codedfedl.runs.advice import client_advice
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.status import Status
from codedfedl.runs.watching import NamedRound, listed


def _number(value: float | None) -> str:
    return "–" if value is None else three_digits(value)


def _of_seeds(values: Sequence[float | None]) -> float | str:
    """Return the median over seeds, or how many of them have a value."""
    met = [value for value in values if value is not None]
    if len(met) < len(values):
        return f"{len(met)} of {len(values)} seeds" if met else "not met"
    return float(np.median(met))


_FILTERS = {
    "times": lambda gain: "–" if gain is None else three_digits(gain) + "×",
    "of_seeds": _of_seeds,
    "span": comparison.span,
    "number": _number,
    "percent": lambda share: "–" if share is None else f"{share:.1%}",
    "score": written,
    "listed": listed,
    "rows": plain_rows,
    "median": lambda values: float(np.median(values)),
}
"""How the page writes numbers."""


def rendered(template: str, charts: Mapping[str, Any], **values: Any) -> str:
    """Return a page of the package."""
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= _FILTERS
    return pages.get_template(template).render(
        asset=_asset, chart_data=page_data(charts), charts=charts, **values
    )


def page_data(document: Any) -> Markup:
    """Return JSON that can stand in a page's script element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # no element can begin or end in it


@cache
def _asset(name: str) -> Markup:
    """Return a script or a style sheet that comes with the package, to stand in the page."""
    text = (files("codedfedl") / "report" / "assets" / name).read_text("utf-8")
    assert "</script" not in text
    return Markup(text)


def render_waiting(directory: RunDirectory, live: str) -> str:
    """Return the page of a federation without a round yet; `live` is as in `render_report`."""
    status = directory.status.read() or Status("running", "waiting for the server")
    title = directory.experiment().title if directory.is_run else directory.path.name
    return rendered("waiting.html.j2", {}, title=title, live=live, status=status)


def render_report(*directories: RunDirectory, live: str = "") -> str:
    """Return the page: who won, the curves, the clients, the rounds, the set-up, the plans.

    Parameters
    ----------
    live
        Tag of the page among the states of a run in progress: the page then polls for later ones.
    """
    stories = stories_of(directories)
    simulated = [story for story in stories if not story.records]
    outcomes = [o for story in simulated for o in story.outcomes]
    lines = drawn_lines([(story.name, story.outcomes) for story in simulated])
    return rendered(
        "report.html.j2",
        _charts(stories, lines),
        live=live,
        marks=arrivals.MARKS,
        last_rounds=arrivals.LAST_ROUNDS,
        federations={story.name: _federation(story) for story in stories if story.records},
        title=" against ".join(dict.fromkeys(story.title for story in stories)),
        headlines=_headlines(stories),
        goals=list(dict.fromkeys(_goal(o) for o in outcomes)),
        race=_race(simulated, lines),
        first_run=simulated[0].name if len(simulated) > 1 else "",
        differences=comparison.configuration_diff([story.experiment for story in stories]),
        logarithmic=large_gains(outcomes),
        lines=lines,
        stories=stories,
        grids={
            story.name: page_svg(sweep_figure(story.outcomes, _unit([story])))
            for story in stories
            if _is_grid(story)
        },
        timelines={story.name: _timelines(story) for story in stories},
        colours=arrivals.TIMELINE,
        parts=TIME_COLUMNS,
        shown_clients=SHOWN_CLIENTS,
    )


def _is_grid(story: Story) -> bool:
    return bool(story.experiment.grid and story.outcomes[0].cell.values)


def _charts(stories: Sequence[Story], lines: Sequence[Line]) -> dict[str, dict[str, Any]]:
    """Return the charts: of each metric of the simulations, and of each federation by its name."""
    unit, charts = _unit(stories), {}
    for metric in dict.fromkeys(line.outcome.metric for line in lines):
        its_lines = [line for line in lines if line.outcome.metric == metric]
        targets = {line.outcome.target for line in its_lines}
        target = targets.pop() if len(targets) == 1 else None
        for number, chart in enumerate(curve_charts(its_lines, target, unit)):
            charts[f"{metric} {number}"] = chart
    for story in stories:
        if story.records and not all(np.isnan(curve.metric).all() for curve in story.curves):
            line = drawn_lines([(story.name, story.outcomes[:1])])
            charts[story.name] = curve_charts(line, None, unit)[0]
    return charts


def _federation(story: Story) -> dict[str, Any]:
    """Return what the page shows of a federation."""
    return {
        "deadline": arrivals.deadline_sentence(story.conduct),
        "advice": client_advice(story.conduct),
        "answers": page_svg(arrivals.answers_figure(story.records)),
        "clients": arrivals.client_marks(story.conduct)[:SHOWN_CLIENTS],
        "rounds": [NamedRound.of(record, story.conduct.names) for record in story.records],
    }


def _unit(stories: Sequence[Story]) -> Unit:
    """Choose the charts' unit: seconds for real clients, else by the times to the target."""
    if any(story.records for story in stories):
        return UNITS[-1]
    every = [o for story in stories for o in story.outcomes]
    hours = [hour for o in every for hour in o.total_hours if hour is not None]
    return unit_for(hours or [float(c.total_hours[-1]) for o in every for c in o.seeds])


def main_figure(
    directory: RunDirectory, panels: Sequence[str] = (), width: float | None = None
) -> Figure:
    """Draw what a run is about: its grid, curves against time, or a federation's answers.

    With `panels`, some of `curves.PANELS`, the curves; `width` is in inches.
    """
    story = Story(directory)
    if panels or not (story.records or _is_grid(story)):
        target = story.outcomes[0].target
        return curve_figure(
            story.curves, story.experiment.title, target, panels or tuple(PANELS), width
        )
    if story.records:
        figure = arrivals.federation_figure(story.records, story.curves[0].metric_name)
    else:
        figure = sweep_figure(story.outcomes, _unit([story]))
    if width is not None:
        figure.set_size_inches(width, figure.get_figheight())
    return figure


def _goal(outcome: Outcome) -> str:
    if not np.isfinite(outcome.target):
        return "no target, since nothing that could set it is above chance"
    source = f", {outcome.target_source}" if outcome.target_source else ""
    reached = written(outcome.metric, outcome.target)
    return f"an {outcome.metric} of {reached} on the test set{source}"


def _comparable(stories: Sequence[Story]) -> bool:
    """Whether all race on the same data to the same target, on a virtual clock."""
    outcomes = [outcome for story in stories for outcome in story.outcomes]
    return len(races(outcomes)) == 1 and not any(story.records for story in stories)


def _headlines(stories: Sequence[Story]) -> list[str]:
    """Say who won: among all runs where they can be compared, and in each run otherwise."""
    if len(stories) > 1 and _comparable(stories):
        every = [replace(o, run=story.name) for story in stories for o in story.outcomes]
        runs = {story.name: story.outcomes for story in stories}
        return comparison.changes_sentence(runs) + verdict(every)
    return [
        (f"{story.name}: " if len(stories) > 1 else "") + sentence
        for story in stories
        for sentence in (
            [arrivals.federation_headline(story.outcomes[0], story.records)]
            if story.records
            else verdict(story.outcomes)
        )
    ]


def _race(stories: Sequence[Story], lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table of results, the soonest first; a setting of several runs stands together.

    A row has its run, outcome and line, if it is drawn; the change against the same setting of the
    first run, in words; the share of its bar; and whether it is the soonest of several.
    """
    line_of = {id(line.outcome): line for line in lines}
    run_of = {id(o): story for story in stories for o in story.outcomes}
    before = {o.setting: o for story in stories[:1] for o in story.outcomes}
    every = [o for story in stories for o in story.outcomes]
    rivals = [every] if _comparable(stories) else [story.outcomes for story in stories]
    soonest: dict[str, float] = {}
    rows = []
    for race in [race for outcomes in rivals for race in races(outcomes)]:
        winner = comparison.best(race, "total_hours") if len(race) > 1 else None
        met = [hours for o in race if o.above_chance and (hours := median_hours(o)) < np.inf]
        for o in race:
            hours, story = median_hours(o), run_of[id(o)]
            soonest[o.setting] = min(soonest.get(o.setting, np.inf), hours)
            row = {
                "run": story.name,
                "outcome": o,
                "line": line_of.get(id(o)),
                "change": ""
                if story is stories[0]
                else comparison.change(before.get(o.setting), o),
                "share": _share(hours, met) if o.above_chance and hours < np.inf else 0.0,
                "first": o is winner,
            }
            rows.append(row)
    return sorted(rows, key=lambda row: soonest[row["outcome"].setting])


def _share(hours: float, rivals: Sequence[float]) -> float:
    """Return how long a bar is: of the longest time, by the logarithm where they differ much."""
    least, most = min(filter(None, rivals), default=1.0), max(rivals)
    if hours <= 0 or most <= LARGE_RATIO * least:
        return hours / most if most else 0.0
    return 0.08 + 0.92 * float(np.log(hours / least) / np.log(most / least))


def _timelines(story: Story) -> dict[str, str]:
    """Draw the first rounds of the shown settings, as much as the busiest of them has.

    How long a baseline waits does not stretch the others, unless nothing else is shown.
    """
    timelines, lengths = story.timelines, {}
    for cell, rows in timelines.items():
        clients = int((rows["round"] == rows["round"][0]).sum())
        lengths[cell] = float(rows["round_seconds"][::clients].sum())
    baselines = [o.cell.id for o in story.outcomes if o.cell.baseline]
    others = [cell for cell in timelines if cell not in baselines]
    longest = max((lengths[cell] for cell in others or lengths), default=0.0)
    return {
        str(rows["setting"][0]): page_svg(
            arrivals.timeline_figure(rows, longest, unit_for([longest / 3600]))
        )
        for rows in timelines.values()
    }
