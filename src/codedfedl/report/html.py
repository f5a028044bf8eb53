"""`report.html`: one self-contained page for one run, or for several compared."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from codedfedl.report.arrivals import (
    LAST_ROUNDS,
    MARKS,
    answers_figure,
    client_marks,
    deadline_sentence,
    federation_figure,
    federation_headline,
)
from codedfedl.report.charts import (
    LARGE_RATIO,
    Line,
    asset,
    curve_charts,
    drawn_lines,
    large_gains,
    page_data,
)
from codedfedl.report.comparison import (
    UNITS,
    Unit,
    change,
    changes_sentence,
    configuration_diff,
    races,
    three_digits,
    unit_for,
    verdict,
)
from codedfedl.report.curves import curve_figure
from codedfedl.report.figures import page_svg
from codedfedl.report.grids import sweep_figure
from codedfedl.report.results import Outcome, median_of_all, written
from codedfedl.report.story import SHOWN_CLIENTS, TIME_COLUMNS, Story, stories_of
from codedfedl.report.timeline import TIMELINE, timeline_figure
from codedfedl.runs.advice import client_advice
from codedfedl.runs.directory import RunDirectory, Status
from codedfedl.runs.watching import NamedRound, listed

__all__ = ["main_figure", "render_report", "render_waiting"]


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
        "times": lambda gain: "–" if gain is None else three_digits(gain) + "×",
        "middle": _middle,
        "time": partial(_middle, scale=unit.per_hour),
        "hours": partial(_number, scale=unit.per_hour),
        "seconds": partial(_number, scale=unit.per_hour / 3600),
        "number": _number,
        "percent": lambda share: "–" if share is None else f"{share:.1%}",
        "score": written,
        "listed": listed,
    }


def _rendered(template: str, unit: Unit, chart_data: Sequence[Any], **values: Any) -> str:
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= _filters(unit)
    page = pages.get_template(template)
    return page.render(asset=asset, chart_data=page_data(chart_data), unit=unit, **values)


def render_waiting(directory: RunDirectory, live: str) -> str:
    """Return the page of a federation without a round yet; `live` is as in `render_report`."""
    status = directory.status.read() or Status("running", "waiting for the server")
    title = directory.experiment().title if directory.is_run else directory.path.name
    return _rendered("waiting.html.j2", UNITS[-1], [], title=title, live=live, status=status)


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
    unit = _unit(stories)
    lines = drawn_lines([(story.name, o) for story in simulated for o in story.outcomes])
    charts: dict[str, list[dict[str, Any]]] = {}
    for metric in dict.fromkeys(line.outcome.metric for line in lines):
        targets = {o.target for o in outcomes if o.metric == metric}
        target = targets.pop() if len(targets) == 1 else None
        its_lines = [line for line in lines if line.outcome.metric == metric]
        charts[metric] = curve_charts(its_lines, target, unit)
    every_chart = [chart for its_charts in charts.values() for chart in its_charts]
    federations = {}
    for story in stories:
        if story.records:
            federations[story.name] = _federation(story, every_chart, unit)
    return _rendered(
        "report.html.j2",
        unit,
        every_chart,
        live=live,
        marks=MARKS,
        last_rounds=LAST_ROUNDS,
        federations=federations,
        title=" against ".join(dict.fromkeys(story.title for story in stories)),
        headlines=_headlines(stories, unit),
        goals=list(dict.fromkeys(_goal(o) for o in outcomes)),
        race=_race(simulated, lines),
        first_run=simulated[0].name if len(simulated) > 1 else "",
        differences=configuration_diff([story.experiment for story in stories]),
        logarithmic=large_gains(outcomes),
        lines=lines,
        stories=stories,
        charts={metric: len(its_charts) for metric, its_charts in charts.items()},
        grids={
            story.name: page_svg(sweep_figure(story.outcomes, unit))
            for story in stories
            if _is_grid(story)
        },
        timelines={story.name: _timelines(story, unit) for story in stories},
        median=lambda values: float(np.median(values)),
        colours=TIMELINE,
        parts=TIME_COLUMNS,
        shown_clients=SHOWN_CLIENTS,
    )


def _is_grid(story: Story) -> bool:
    return bool(story.experiment.grid and story.tables.cells)


def _federation(story: Story, charts: list[dict[str, Any]], unit: Unit) -> dict[str, Any]:
    """Return what the page shows of a federation; its chart is added to those of the page."""
    outcome, conduct = story.outcomes[0], story.conduct
    is_tested = not all(np.isnan(curve.metric).all() for curve in outcome.seeds)
    if is_tested:
        charts += curve_charts(drawn_lines([(story.name, outcome)]), None, unit)[:1]
    return {
        "deadline": deadline_sentence(conduct),
        "advice": client_advice(conduct),
        "chart": len(charts) - 1 if is_tested else None,
        "answers": page_svg(answers_figure(story.records)),
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
    if _is_grid(story):
        return sweep_figure(story.outcomes, _unit([story]))
    return curve_figure(story.curves, story.experiment.title, story.outcomes[0].target)


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


def _headlines(stories: Sequence[Story], unit: Unit) -> list[str]:
    """Say who won: among all runs where they can be compared, and in each run otherwise."""
    if len(stories) > 1 and _comparable(stories):
        every = [replace(o, run=story.name) for story in stories for o in story.outcomes]
        runs = {story.name: story.outcomes for story in stories}
        return changes_sentence(runs, unit) + verdict(every, unit)
    headlines = []
    for story in stories:
        prefix = f"{story.name}: " if len(stories) > 1 else ""
        headlines += [prefix + sentence for sentence in _headline(story, unit)]
    return headlines


def _headline(story: Story, unit: Unit) -> list[str]:
    if not story.records:
        return verdict(story.outcomes, unit)
    first = story.outcomes[0]
    final = first.final[0]
    reached = "" if np.isnan(final) else f"{first.metric} {written(first.metric, final)} after "
    return [federation_headline(first.setting, story.records, reached)]


def _race(stories: Sequence[Story], lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table of results, the soonest first; a setting of several runs stands together.

    A row has its run, outcome and line, if it is drawn; the change against the same setting of the
    first run, in words; the share of its bar; and whether it is the soonest of several.
    """
    line_of = {id(line.outcome): line for line in lines}
    before = {o.setting: o for story in stories[:1] for o in story.outcomes}
    every = [o for story in stories for o in story.outcomes]
    together, rows = _comparable(stories), []
    soonest: dict[str, float] = {}
    for story in stories:
        for o in story.outcomes:
            race = every if together else story.outcomes
            rivals = [r for r in race if (r.dataset, r.target) == (o.dataset, o.target)]
            met = [hour for r in rivals if r.above_chance and (hour := _hours(r)) < np.inf]
            hour = _hours(o) if o.above_chance else np.inf
            row = {
                "run": story.name,
                "outcome": o,
                "line": line_of.get(id(o)),
                "change": "" if story is stories[0] else change(before.get(o.setting), o),
                "share": 0.0 if hour == np.inf else _share(hour, met),
                "first": hour < np.inf and hour == min(met) and len(rivals) > 1,
            }
            rows.append(row)
            soonest[o.setting] = min(soonest.get(o.setting, np.inf), _hours(o))
    return sorted(rows, key=lambda row: soonest[row["outcome"].setting])


def _hours(outcome: Outcome) -> float:
    """Return the median time to the target; ∞ where it is not met on every seed."""
    hour = median_of_all(outcome.total_hours)
    return np.inf if hour is None else hour


def _share(hour: float, rivals: Sequence[float]) -> float:
    """Return how long a bar is: of the longest time, by the logarithm where they differ much."""
    least, most = min(filter(None, rivals), default=1.0), max(rivals)
    if hour <= 0 or most <= LARGE_RATIO * least:
        return hour / most if most else 0.0
    return 0.08 + 0.92 * float(np.log(hour / least) / np.log(most / least))


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
        str(rows["setting"][0]): page_svg(timeline_figure(rows, longest, unit))
        for rows in timelines.values()
    }
