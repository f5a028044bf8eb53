"""Runs side by side, units of time, and how lines look: what the pages are made of."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from codedfedl.report.comparison import (
    UNITS,
    change,
    changes_sentence,
    configuration_diff,
    unit_for,
)
from codedfedl.report.figures import DASHES, scheme_colour
from codedfedl.report.html import page_data
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes import SCHEMES
from codedfedl.simulation.experiment import simulate
from tests.conftest import Run
from tests.virtual import small

HOURS, MINUTES, SECONDS = UNITS


def outcome(setting: str, *hours: float | None, target: float = 0.9) -> Any:
    return SimpleNamespace(
        setting=setting,
        total_hours=list(hours),
        target=target,
        dataset="digits",
        metric="accuracy",
        above_chance=True,
    )


def test_only_what_differs_is_in_the_diff() -> None:
    first = small(fleet={"clients": 6, "erasure": 0.1})
    second = small(fleet={"clients": 6, "erasure": 0.6}, seeds=[0, 1], title="another title")
    assert configuration_diff([first, second]) == [
        {"key": "seeds", "values": ["[0]", "[0, 1]"]},
        {"key": "fleet.erasure", "values": ["0.1", "0.6"]},
    ]
    assert configuration_diff([first, first]) == []
    schemes = small(schemes=[{"name": "coded", "redundancy": 0.3}])
    assert "coded 30%" in configuration_diff([first, schemes])[-1]["values"][1]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((1.0, 2.0, 3.0), (4.0, 4.0, 4.0), "2× longer"),
        ((2.0,), (0.5,), "4× shorter"),
        ((2.0,), (2.001,), "same"),
        ((0.0,), (0.0,), "same"),
        ((2.0,), (None,), "no longer met"),
        ((None,), (2.0,), "met only here"),
        ((None,), (None,), "met in neither"),
    ],
)
def test_a_change_in_words(before: Any, after: Any, words: str) -> None:
    assert change(outcome("a", *before), outcome("a", *after)) == words


def test_a_setting_that_the_first_run_does_not_have() -> None:
    assert change(None, outcome("a", 1.0)) == "only here"


def test_the_verdict_on_two_runs() -> None:
    fast, slow = [outcome("coded", 1.0), outcome("uncoded", 4.0)], [outcome("coded", 2.5)]
    assert changes_sentence({"a": fast, "b": slow}) == [
        'Run "b" is 2.5 times slower than run "a": with set-up charged, its fastest setting, '
        "coded, reaches accuracy 90.00% in 2.5 h instead of 1 h."
    ]
    (told,) = changes_sentence({"a": [outcome("uncoded", 4.0)], "b": slow})
    assert told.startswith('Run "b" is 1.6 times faster than run "a"')
    assert told.endswith("in 2.5 h instead of 4 h of uncoded.")
    (told,) = changes_sentence({"a": fast, "b": [outcome("coded", 0.97)]})
    assert told.startswith('Run "b" is about as fast as run "a": ')
    assert changes_sentence({"a": fast, "b": [outcome("coded", None)]}) == [
        'No setting of run "b" reached accuracy 90.00%.'
    ]
    (told,) = changes_sentence({"a": fast, "b": [outcome("coded", 1.0, target=0.8)]})
    assert told == "The runs differ in data or target, so their times are not compared."


@pytest.mark.parametrize(
    ("hours", "unit"),
    [
        ([0.01, 0.5, 2.6], MINUTES),
        ([0.26, 1.3, 52, 413], HOURS),
        ([0.0001, 0.001], SECONDS),
        ([0.0, float("inf")], HOURS),
        ([], HOURS),
    ],
)
def test_the_unit_of_a_page(hours: list[float], unit: object) -> None:
    assert unit_for(hours) == unit


def test_every_scheme_has_a_colour_of_its_own() -> None:
    built_in = [n for n, s in SCHEMES.items() if s.__module__.startswith("codedfedl.")]
    colours = {name: scheme_colour(name) for name in built_in}
    assert len(set(colours.values())) == len(built_in)
    shades = {scheme_colour("coded", place) for place in range(5)}
    assert len(shades) == 5
    assert scheme_colour("somebody's own") == scheme_colour("somebody's own")
    assert len(set(DASHES)) == len(DASHES)


def test_what_is_in_the_page_cannot_end_its_script() -> None:
    text = page_data({"name": "</script><b>"})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><b>"}


def test_the_command_says_what_differs_first(run: Run, tmp_path: Path) -> None:
    for name, erasure in (("good", 0.1), ("bad", 0.6)):
        experiment = small(
            fleet={"clients": 6, "erasure": erasure},
            training={"epochs": 10, "step": 2.0, "target": 0.6},
        )
        simulate(experiment, RunDirectory(tmp_path / name))
    page = tmp_path / "c.html"
    both = (tmp_path / "good", tmp_path / "bad", "--out", page)
    code, out, _ = run("report", *both)
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == ["Configuration changes", "  fleet.erasure: 0.1 → 0.6"]
    assert " change " in out
    assert lines[-1].startswith(f'Run "{tmp_path / "bad"}" is ')
    differences = json.loads(run("report", *both, "--json")[1])["differences"]
    assert differences == [{"key": "fleet.erasure", "values": ["0.1", "0.6"]}]
    assert page.stat().st_size < 1_000_000
