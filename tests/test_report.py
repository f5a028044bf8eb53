from pathlib import Path

import numpy as np
import pytest

from codedfedl import InputError
from codedfedl.calibration import gain_by_alpha
from codedfedl.report.curves import curve_figure
from codedfedl.report.html import render_report
from codedfedl.report.results import curves, outcomes
from codedfedl.report.tables import duration
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulate.run import simulate
from tests.test_simulate import small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    experiment = small(seeds=[0, 1, 2], training={"epochs": 20, "step": 2.0, "target": 0.85})
    directory = RunDirectory(tmp_path_factory.mktemp("report") / "run")
    simulate(experiment, directory)
    return directory


def test_outcomes_against_the_curves(run: RunDirectory) -> None:
    found = {outcome.setting: outcome for outcome in outcomes(run)}
    by_hand = [curve for curve in curves(run) if curve.setting == "coded 10%"]
    outcome = found["coded 10%"]
    for seed, curve in enumerate(by_hand):
        place = int(np.argmax(curve.metric >= 0.85))
        assert outcome.rounds[seed] == place + 1
        assert outcome.training_hours[seed] == curve.training_hours[place]
        assert outcome.total_hours[seed] == curve.total_hours[place]
    assert found["uncoded"].gain == 1.0
    ratios = np.array(found["uncoded"].training_hours) / np.array(outcome.training_hours)
    assert outcome.gain == pytest.approx(np.median(ratios))


def test_a_target_that_is_not_met_is_none(run: RunDirectory) -> None:
    outcome = outcomes(run, target=1.1)[0]
    assert outcome.rounds == [None, None, None]
    assert outcome.gain is None


def test_report_is_self_contained_and_the_same_twice(run: RunDirectory) -> None:
    page = render_report(run)
    assert page == render_report(run)
    assert "coded 10%" in page
    assert "<svg" in page
    for outside in ("http://", "https://"):
        references = [part.split('"')[0] for part in page.split(f'="{outside}')[1:]]
        assert all(part.startswith("www.w3.org") for part in references)  # names, not addresses
    assert 'src="' not in page


def test_curve_figure_has_three_clocks(run: RunDirectory) -> None:
    figure = curve_figure(curves(run), "title", 0.85)
    labels = [ax.get_xlabel() for ax in figure.axes]
    assert labels == [
        "hours of training, the paper's clock",
        "hours with set-up charged",
        "mini-batch updates",
    ]


def test_unfinished_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.open(small(), resume=False)
    with pytest.raises(InputError, match="not finished; go on with --resume"):
        outcomes(directory)
    with pytest.raises(InputError, match="is no run directory"):
        outcomes(RunDirectory(tmp_path))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.5 s"), (600, "600 s (10.0 min)"), (36000, "36,000 s (10.0 h)")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_gain_is_robust_to_the_constant_that_was_fitted() -> None:
    gains = gain_by_alpha()
    assert all(2.3 < gain < 3.4 for gain in gains.values())
    assert gains[2.0] == pytest.approx(2.65, abs=0.02)
