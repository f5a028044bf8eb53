"""`report.html`: one self-contained page for one run, or for several compared."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from codedfedl.report.charts import (
    Line,
    asset,
    curve_charts,
    drawn_lines,
    large_gains,
    page_data,
)
from codedfedl.report.compare import changes_sentence, configuration_diff
from codedfedl.report.conduct import MARKS, client_marks, deadline_sentence
from codedfedl.report.curves import curve_figure, curve_panel
from codedfedl.report.federation import (
    SHOWN_ROUNDS,
    federation_figure,
    federation_headline,
    federation_panels,
)
from codedfedl.report.figures import INK, save_figure
from codedfedl.report.race import comparable, race_rows
from codedfedl.report.results import Outcome, written
from codedfedl.report.story import PARTS, SHOWN_CLIENTS, Story, distinct
from codedfedl.report.sweep import sweep_figure
from codedfedl.report.timeline import TIMELINE, timeline_figure
from codedfedl.report.units import UNITS, Unit, unit_for
from codedfedl.report.verdict import three_digits, verdict
from codedfedl.runs.advice import client_advice
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.observing import NamedRound, Status, listed

__all__ = ["main_figure", "render_report", "render_waiting"]


def _times(gain: float | None) -> str:
    return "–" if gain is None else three_digits(gain) + "×"


def _middle(values: list[float | None], scale: float = 1.0) -> str:
    met = [value for value in values if value is not None]
    if len(met) < len(values):
        return f"{len(met)} of {len(values)} seeds" if met else "not met"
    return three_digits(scale * float(np.median(met)))


def _number(value: float | None, scale: float = 1.0) -> str:
    return "–" if value is None else three_digits(scale * value)


def _filters(unit: Unit) -> dict[str, Callable[..., str]]:
    """Return how the page writes numbers; times are in its unit."""
    return {
        "times": _times,
        "middle": _middle,
        "time": partial(_middle, scale=unit.per_hour),
        "hours": partial(_number, scale=unit.per_hour),
        "seconds": partial(_number, scale=unit.per_hour / 3600),
        "number": _number,
        "percent": lambda share: "–" if share is None else f"{share:.1%}",
        "score": written,
        "listed": listed,
    }


def render_waiting(directory: RunDirectory, live: str) -> str:
    """Return the page of a federation without a round yet; `live` is as in `render_report`."""
    status = directory.status.read() or Status("running", "waiting for the server")
    title = directory.experiment().title if directory.is_run else directory.path.name
    template = _pages(UNITS[-1]).get_template("waiting.html.j2")
    return template.render(
        title=title, live=live, asset=asset, chart_data=page_data([]), status=status
    )


def _pages(unit: Unit) -> Environment:
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= _filters(unit)
    return pages


def render_report(*directories: RunDirectory, live: str = "") -> str:
    """Return the page: who won, the curves, the clients, the rounds, the set-up, the plans.

    Parameters
    ----------
    live
        Tag of the page among the states of a run in progress: the page then polls for later ones.
    """
    names = distinct(directories)
    stories = [Story(name, run) for name, run in zip(names, directories, strict=True)]
    simulated = [story for story in stories if not story.records]
    unit = _unit(stories)
    lines = drawn_lines([(story.name, o) for story in simulated for o in story.outcomes])
    by_metric = _by_metric(simulated, lines)
    charts = [chart for _, target, some in by_metric for chart in curve_charts(some, target, unit)]
    federations = {
        story.name: _federation(story, charts, unit) for story in stories if story.records
    }
    page = _pages(unit).get_template("report.html.j2")
    return page.render(
        live=live,
        marks=MARKS,
        shown_rounds=SHOWN_ROUNDS,
        federations=federations,
        title=" against ".join(dict.fromkeys(story.title for story in stories)),
        unit=unit,
        asset=asset,
        chart_data=page_data(charts),
        headlines=_headlines(stories, unit),
        goals=list(dict.fromkeys(_goal(o) for story in simulated for o in story.outcomes)),
        race=race_rows(simulated, lines),
        first_run=simulated[0].name if len(simulated) > 1 else "",
        differences=configuration_diff([story.experiment for story in stories]),
        logarithmic=large_gains([o for story in simulated for o in story.outcomes]),
        lines=lines,
        stories=stories,
        panels={metric: _panels(some, target, unit) for metric, target, some in by_metric},
        grids={
            story.name: _svg(sweep_figure(story.outcomes, unit))
            for story in stories
            if story.experiment.grid and story.tables.cells
        },
        timelines={story.name: _timelines(story, unit) for story in stories},
        median=lambda values: float(np.median(values)),
        colours=TIMELINE,
        parts=PARTS,
        shown_clients=SHOWN_CLIENTS,
    )


def _federation(story: Story, charts: list[dict[str, Any]], unit: Unit) -> dict[str, Any]:
    """Return what the page shows of a federation; its chart is added to those of the page."""
    outcome, conduct = story.outcomes[0], story.conduct
    metric, answers = federation_panels(story.records, outcome.metric)
    place = None
    if not all(np.isnan(curve.metric).all() for curve in outcome.seeds):
        lines = drawn_lines([(story.name, outcome)])
        charts += curve_charts(lines, None, unit)[:1]
        place = len(charts) - 1
    return {
        "deadline": deadline_sentence(conduct),
        "advice": client_advice(conduct),
        "chart": place,
        "metric": _svg(metric),
        "answers": _svg(answers),
        "clients": client_marks(conduct)[:SHOWN_CLIENTS],
        "rounds": [NamedRound.of(record, conduct.names) for record in story.records],
    }


def _unit(stories: Sequence[Story]) -> Unit:
    """Choose the page's unit: seconds for real clients, else by the times to the target."""
    if any(story.records for story in stories):
        return UNITS[-1]
    every = [o for story in stories for o in story.outcomes]
    hours = [hour for o in every for hour in o.total_hours if hour is not None]
    ends = [float(curve.total_hours[-1]) for o in every for curve in o.seeds]
    return unit_for(hours or ends)


def main_figure(directory: RunDirectory) -> Figure:
    """Draw what a run is about: its grid, curves against time, or a federation's answers."""
    story = Story("", directory)
    if story.records:
        return federation_figure(story.records, story.curves[0].metric_name)
    if story.experiment.grid and story.tables.cells:
        return sweep_figure(story.outcomes, _unit([story]))
    return curve_figure(story.curves, story.experiment.title, story.outcomes[0].target)


def _goal(outcome: Outcome) -> str:
    if not np.isfinite(outcome.target):
        return "no target, since nothing that could set it is above chance"
    source = f", {outcome.target_source}" if outcome.target_source else ""
    reached = written(outcome.metric, outcome.target)
    return f"an {outcome.metric} of {reached} on the test set{source}"


def _headlines(stories: Sequence[Story], unit: Unit) -> list[str]:
    """Say who won: among all runs where they can be compared, and in each run otherwise."""
    if comparable(stories) and len(stories) > 1:
        every = [replace(o, run=story.name) for story in stories for o in story.outcomes]
        runs = {story.name: story.outcomes for story in stories}
        return changes_sentence(runs, unit) + verdict(every, unit)
    told = []
    for story in stories:
        prefix = f"{story.name}: " if len(stories) > 1 else ""
        told += [prefix + sentence for sentence in _headline(story, unit)]
    return told


def _headline(story: Story, unit: Unit) -> list[str]:
    if not story.records:
        return verdict(story.outcomes, unit)
    first = story.outcomes[0]
    final = first.final[0]
    reached = "" if np.isnan(final) else f"{first.metric} {written(first.metric, final)} after "
    return [federation_headline(first.setting, story.records, reached)]


def _by_metric(
    stories: Sequence[Story], lines: Sequence[Line]
) -> list[tuple[str, float | None, list[Line]]]:
    """Return each metric with its target, where there is one, and the lines that have it."""
    targets: dict[str, set[float]] = {}
    for o in (o for story in stories for o in story.outcomes):
        targets.setdefault(o.metric, set()).add(o.target)
    found = []
    for metric, wanted in targets.items():
        some = [line for line in lines if line.outcome.metric == metric]
        if some:
            found.append((metric, next(iter(wanted)) if len(wanted) == 1 else None, some))
    return found


def _panels(lines: Sequence[Line], target: float | None, unit: Unit) -> list[str]:
    """Draw a metric against both clocks and the rounds, each on its own, for paper."""
    drawn = [(line.colour, line.dash, line.outcome.seeds) for line in lines]
    clocks = {
        "total_hours": (f"{unit.name} with set-up charged", unit.per_hour),
        "training_hours": (f"{unit.name} of training alone, the paper's clock", unit.per_hour),
        "rounds": ("rounds", None),
    }
    return [
        _svg(curve_panel(drawn, clock, label, target, scale))
        for clock, (label, scale) in clocks.items()
    ]


def _timelines(story: Story, unit: Unit) -> dict[str, str]:
    """Draw the first rounds of the shown settings, as much as the busiest of them has.

    How long a baseline waits does not stretch the others, unless nothing else is shown.
    """
    timelines, lengths = story.timelines, {}
    for cell, rows in timelines.items():
        clients = int((rows["round"] == rows["round"][0]).sum())
        lengths[cell] = float(rows["round_seconds"][::clients].sum())
    baselines = [outcome.cell for outcome in story.outcomes if outcome.baseline]
    others = [cell for cell in timelines if cell not in baselines]
    longest = max((lengths[cell] for cell in others or lengths), default=0.0)
    return {
        str(rows["setting"][0]): _svg(timeline_figure(rows, longest, unit))
        for rows in timelines.values()
    }


def _svg(figure: Figure) -> str:
    """Return a figure for the page: its ink is the page's, in the dark too."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :].replace(INK, "currentColor")
