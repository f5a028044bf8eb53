"""`report.html`: one self-contained page for one run, or for several compared."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from codedfedl.report.curves import COLOURS, curve_figure, curve_panel
from codedfedl.report.federation import federation_figure, federation_headline
from codedfedl.report.figures import INK, save_figure
from codedfedl.report.results import Outcome, baseline_of, median_of_all, written
from codedfedl.report.story import PARTS, SHOWN_CLIENTS, Story, distinct
from codedfedl.report.sweep import sweep_figure
from codedfedl.report.timeline import TIMELINE, timeline_figure
from codedfedl.report.verdict import races, three_digits, verdict
from codedfedl.runs.directory import RunDirectory

__all__ = ["main_figure", "render_report"]


@dataclass(frozen=True)
class Line:
    """A setting that is drawn: its run, its results and its colour."""

    run: str
    outcome: Outcome
    colour: str


def _middle(values: list[float | None]) -> str:
    met = [value for value in values if value is not None]
    if len(met) < len(values):
        return f"{len(met)} of {len(values)} seeds" if met else "not met"
    return three_digits(float(np.median(met)))


_FILTERS: dict[str, Callable[..., str]] = {
    "times": lambda gain: "–" if gain is None else three_digits(gain) + "×",
    "middle": _middle,
    "number": lambda value: "–" if value is None else three_digits(value),
    "percent": lambda share: "–" if share is None else f"{share:.1%}",
    "score": written,
}


def render_report(*directories: RunDirectory) -> str:
    """Return the page: who won, the curves, the clients, the rounds, the set-up, the plans."""
    names = distinct(directories)
    stories = [Story(name, run) for name, run in zip(names, directories, strict=True)]
    simulated = [story for story in stories if not story.records]
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= _FILTERS
    lines = _lines(simulated)
    return pages.get_template("report.html.j2").render(
        title=" against ".join(dict.fromkeys(story.title for story in stories)),
        headlines=_headlines(stories),
        goals=list(dict.fromkeys(_goal(o) for story in simulated for o in story.outcomes)),
        race=_race(simulated, lines),
        lines=lines,
        stories=stories,
        panels=_panels(simulated, lines),
        grids={
            story.name: _svg(sweep_figure(story.experiment, story.outcomes))
            for story in stories
            if story.experiment.grid
        },
        timelines={story.name: _timelines(story) for story in stories},
        answers={
            story.name: _svg(federation_figure(story.records, story.curves[0].metric_name))
            for story in stories
            if story.records
        },
        median=lambda values: float(np.median(values)),
        colours=TIMELINE,
        parts=PARTS,
        shown_clients=SHOWN_CLIENTS,
    )


def main_figure(directory: RunDirectory) -> Figure:
    """Draw what a run is about: its grid, curves against time, or a federation's answers."""
    story = Story("", directory)
    if story.records:
        return federation_figure(story.records, story.curves[0].metric_name)
    if story.experiment.grid:
        return sweep_figure(story.experiment, story.outcomes)
    return curve_figure(story.curves, story.experiment.title, story.outcomes[0].target)


def _goal(outcome: Outcome) -> str:
    if not np.isfinite(outcome.target):
        return "no target, since nothing that could set it is above chance"
    source = f", {outcome.target_source}" if outcome.target_source else ""
    reached = written(outcome.metric, outcome.target)
    return f"an {outcome.metric} of {reached} on the test set{source}"


def _headlines(stories: Sequence[Story]) -> list[str]:
    """Say who won: among all runs where they can be compared, and in each run otherwise."""
    if _comparable(stories) and len(stories) > 1:
        return verdict([replace(o, run=story.name) for story in stories for o in story.outcomes])
    told = []
    for story in stories:
        prefix = f"{story.name}: " if len(stories) > 1 else ""
        told += [prefix + sentence for sentence in _headline(story)]
    return told


def _comparable(stories: Sequence[Story]) -> bool:
    """Whether all race on the same data to the same target, on a virtual clock."""
    outcomes = [outcome for story in stories for outcome in story.outcomes]
    return len(races(outcomes)) == 1 and not any(story.records for story in stories)


def _headline(story: Story) -> list[str]:
    if not story.records:
        return verdict(story.outcomes)
    first = story.outcomes[0]
    final = first.final[0]
    reached = "" if np.isnan(final) else f"{first.metric} {written(first.metric, final)} after "
    return [federation_headline(first.setting, story.records, reached)]


def _race(stories: Sequence[Story], lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return every setting of every run, its share of the longest time, and who is first."""
    every = [(story.name, o) for story in stories for o in story.outcomes]
    colours = {(line.run, line.outcome.cell): line.colour for line in lines}
    together = _comparable(stories)
    racing = [("" if together else name, o.dataset, o.target) for name, o in every]
    hours: dict[tuple[Any, ...], list[float]] = {}
    for key, (_, o) in zip(racing, every, strict=True):
        if (hour := median_of_all(o.total_hours)) is not None and o.above_chance:
            hours.setdefault(key, []).append(hour)
    race = []
    for key, (name, o) in zip(racing, every, strict=True):
        hour = median_of_all(o.total_hours) if o.above_chance else None
        rivals = hours.get(key, [])
        race.append(
            {
                "run": name,
                "colour": colours.get((name, o.cell)),
                "outcome": o,
                "share": 0.0 if hour is None else hour / max(rivals),
                "first": hour is not None and hour == min(rivals) and racing.count(key) > 1,
            }
        )
    return race


def _lines(stories: Sequence[Story]) -> list[Line]:
    """Choose which settings are drawn, and in which colour: the soonest, where there are many."""
    every = [(story.name, o) for story in stories for o in story.outcomes]

    def hours(place: int) -> float:
        hour = median_of_all(every[place][1].total_hours)
        return np.inf if hour is None else hour

    soonest = sorted(range(len(every)), key=hours)[: len(COLOURS)]
    drawn = [every[place] for place in sorted(soonest)]
    return [Line(run, o, colour) for (run, o), colour in zip(drawn, COLOURS, strict=False)]


def _panels(stories: Sequence[Story], lines: Sequence[Line]) -> dict[str, list[str]]:
    """Draw each metric against both clocks and the rounds, each on its own."""
    clocks = {
        "total_hours": "hours with set-up charged",
        "training_hours": "hours of training alone, the paper's clock",
        "rounds": "rounds",
    }
    targets: dict[str, set[float]] = {}
    for o in (o for story in stories for o in story.outcomes):
        targets.setdefault(o.metric, set()).add(o.target)
    panels = {}
    for metric, wanted in targets.items():
        drawn = [
            (line.colour, line.outcome.seeds) for line in lines if line.outcome.metric == metric
        ]
        target = next(iter(wanted)) if len(wanted) == 1 else None
        if drawn:
            panels[metric] = [
                _svg(curve_panel(drawn, clock, label, target)) for clock, label in clocks.items()
            ]
    return panels


def _timelines(story: Story) -> dict[str, str]:
    """Draw the first rounds of the shown settings, as much as the busiest of them has.

    How long a baseline waits does not stretch the others, unless nothing else is shown.
    """
    timelines, lengths = story.timelines, {}
    for cell, rows in timelines.items():
        clients = int((rows["round"] == rows["round"][0]).sum())
        lengths[cell] = float(rows["round_seconds"][::clients].sum())
    others = [c for c, rows in timelines.items() if not baseline_of(str(rows["scheme"][0]))]
    longest = max((lengths[cell] for cell in others or lengths), default=0.0)
    return {
        str(rows["setting"][0]): _svg(timeline_figure(rows, longest)) for rows in timelines.values()
    }


def _svg(figure: Figure) -> str:
    """Return a figure for the page: its ink is the page's, in the dark too."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :].replace(INK, "currentColor")
