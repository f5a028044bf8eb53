"""`report.html`: one self-contained page for one run, or for several compared."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from codedfedl.errors import InputError
from codedfedl.report.curves import COLOURS, curve_figure, curve_panel
from codedfedl.report.federation import federation_figure, federation_headline
from codedfedl.report.figures import INK, save_figure
from codedfedl.report.results import Curve, Outcome, median_of_all, span, verdict, written
from codedfedl.report.story import Story, distinct
from codedfedl.report.sweep import sweep_figure
from codedfedl.report.timeline import timeline_figure
from codedfedl.runs.directory import RunDirectory

__all__ = ["main_figure", "render_report"]

_LINES = len(COLOURS)  # as many curves as there are colours


def render_report(*directories: RunDirectory) -> str:
    """Return the page: who won, the curves, the clients, the rounds, the set-up, the plans."""
    names = distinct(directories)
    if len(set(names)) < len(names):
        raise InputError(f"the run {directories[0].path} is named twice: compare different runs")
    stories = [Story(name, run) for name, run in zip(names, directories, strict=True)]
    pages = Environment(
        loader=PackageLoader("codedfedl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "times": lambda gain: "–" if gain is None else _three_digits(gain) + "×",
        "middle": _middle,
        "number": lambda value: "–" if value is None else _three_digits(value),
        "percent": lambda share: "–" if share is None else f"{share:.1%}",
        "score": written,
        "hours": lambda value: "–" if value is None else span(value),
    }
    lines = _lines(stories)
    return pages.get_template("report.html.j2").render(
        title=" against ".join(dict.fromkeys(story.title for story in stories)),
        headlines=_headlines(stories),
        race=_race(stories, lines),
        lines=lines,
        stories=stories,
        panels=_panels(stories, lines),
        grids={s.name: _svg(sweep_figure(s.directory)) for s in stories if s.experiment.grid},
        timelines={story.name: _timelines(story) for story in stories},
        answers={
            s.name: _svg(federation_figure(s.exchanges, s.curves[0].metric_name))
            for s in stories
            if s.exchanges
        },
        median=lambda values: float(np.median(values)),
    )


def main_figure(directory: RunDirectory) -> Figure:
    """Draw what a run is about: its grid, curves against time, or a federation's answers."""
    story = Story("", directory)
    if story.exchanges:
        return federation_figure(story.exchanges, story.curves[0].metric_name)
    if story.experiment.grid:
        return sweep_figure(directory)
    return curve_figure(story.curves, story.experiment.title, story.outcomes[0].target)


def _headlines(stories: Sequence[Story]) -> list[str]:
    """Say who won: among all runs where they can be compared, and in each run otherwise."""
    if _comparable(stories) and len(stories) > 1:
        return verdict([_renamed(o, story) for story in stories for o in story.outcomes])
    told = []
    for story in stories:
        prefix = f"{story.name}: " if len(stories) > 1 else ""
        told += [prefix + sentence for sentence in _headline(story)]
    return told


def _comparable(stories: Sequence[Story]) -> bool:
    """Whether all race on the same data to the same target, on a virtual clock."""
    races = {(o.dataset, o.target) for story in stories for o in story.outcomes}
    return len(races) == 1 and not any(story.exchanges for story in stories)


def _headline(story: Story) -> list[str]:
    if not story.exchanges:
        return verdict(story.outcomes)
    first = story.outcomes[0]
    final = first.final[0]
    reached = "" if np.isnan(final) else f"{first.metric} {written(first.metric, final)} after "
    return [federation_headline(first.setting, story.exchanges, reached)]


def _renamed(outcome: Outcome, story: Story) -> Outcome:
    return replace(outcome, setting=f"{outcome.setting} of {story.name}")


def _race(stories: Sequence[Story], lines: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Return every setting of every run, its share of the longest time, and who is first."""
    found = [(story, o) for story in stories if not story.exchanges for o in story.outcomes]
    hours = [median_of_all(o.total_hours) for _, o in found]
    together = _comparable(stories)

    def rivals(story: Story) -> list[float]:
        runs = zip(found, hours, strict=True)
        return [h for (other, _), h in runs if h is not None and (together or other is story)]

    return [
        {
            "run": story.name,
            "colour": lines.get((story.name, o.setting)),
            "outcome": o,
            "share": 0.0 if hour is None else hour / max(rivals(story)),
            "first": hour is not None and hour == min(rivals(story)),
        }
        for (story, o), hour in zip(found, hours, strict=True)
    ]


def _lines(stories: Sequence[Story]) -> dict[tuple[str, str], str]:
    """Choose which settings are drawn, and in which colour: the soonest, where there are many."""
    keys = [(story.name, o.setting) for story in stories for o in story.outcomes]
    if len(keys) > _LINES:
        hours = {
            (story.name, o.setting): median_of_all(o.total_hours) or np.inf
            for story in stories
            for o in story.outcomes
        }
        soonest = sorted(keys, key=lambda key: hours[key])[:_LINES]
        keys = [key for key in keys if key in soonest]
    return dict(zip(keys, COLOURS, strict=False))


def _panels(stories: Sequence[Story], lines: dict[tuple[str, str], str]) -> dict[str, str]:
    """Draw the metric against both clocks and the rounds, each on its own."""
    drawn: list[tuple[str, list[Curve]]] = [
        (colour, [c for s in stories if s.name == run for c in s.curves if c.setting == setting])
        for (run, setting), colour in lines.items()
    ]
    targets = {o.target for story in stories for o in story.outcomes}
    target = targets.pop() if len(targets) == 1 else None
    clocks = {
        "total_hours": "hours with set-up charged",
        "training_hours": "hours of training alone, the paper's clock",
        "rounds": "rounds",
    }
    return {
        clock: _svg(curve_panel(drawn, clock, label, target)) for clock, label in clocks.items()
    }


def _timelines(story: Story) -> dict[str, str]:
    """Draw the first rounds of the shown settings, as much as the busiest of them has."""
    found = story.timelines
    coded = [setting for setting in found if not setting.startswith("uncoded")] or list(found)
    if not coded:
        return {}
    lengths = {}
    for setting in coded:
        rounds = found[setting]["round"]
        clients = int((rounds == rounds[0]).sum())
        lengths[setting] = float(found[setting]["round_seconds"][::clients].sum())
    longest = max(lengths.values())
    return {setting: _svg(timeline_figure(rows, longest)) for setting, rows in found.items()}


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _middle(values: list[float | None]) -> str:
    met = [value for value in values if value is not None]
    if len(met) < len(values):
        return f"{len(met)} of {len(values)} seeds" if met else "not met"
    return _three_digits(float(np.median(met)))


def _svg(figure: Figure) -> str:
    """Return a figure for the page: its ink is the page's, in the dark too."""
    buffer = io.BytesIO()
    save_figure(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :].replace(INK, "currentColor")
