import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from codedfedl import Fleet, InputError
from codedfedl.report.arrivals import TIMELINE, timeline_figure
from codedfedl.report.comparison import UNITS, verdict
from codedfedl.report.curves import curve_figure
from codedfedl.report.fleet_tables import duration
from codedfedl.report.html import render_report
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.reading import Curve, curves
from codedfedl.report.results import outcomes
from codedfedl.report.story import Story
from codedfedl.reproduce.paper_results import gain_by_alpha
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate
from tests.virtual import simulation, small


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
    with pytest.raises(InputError, match="not finished; continue with --resume"):
        outcomes(directory)
    with pytest.raises(InputError, match="is not a run directory"):
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


def test_a_gain_names_whom_it_is_over(tmp_path: Path) -> None:
    schemes = [{"name": "fedavg", "local_steps": 2, "step": 0.5}, {"name": "coded"}]
    directory = RunDirectory(tmp_path / "run")
    simulate(small(schemes=schemes), directory)
    told = " ".join(verdict(outcomes(directory)))
    assert "waiting for all" not in told
    assert "than fedavg local steps 2, step 0.5" in told
    assert "Gains are relative to fedavg local steps 2" in render_report(directory)


@pytest.mark.parametrize(
    ("chance", "tested", "bound"),
    [
        (0.1, 900, 0.1 + 3 * 0.01),
        (0.9, 10, 0.95),  # three standard errors would be above 1: no error at all is enough
        (1.0, 10, 1.0),  # one class: nothing can be learned
        (0.0, 10, 0.0),  # R²
    ],
)
def test_what_is_clearly_above_chance(chance: float, tested: float, bound: float) -> None:
    curve: Any = SimpleNamespace(facts={"chance": chance, "test_points": tested})
    assert Curve.chance_bound.fget(curve) == pytest.approx(bound)  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", [1e3, 1e30])
def test_what_diverges_is_told_so(tmp_path: Path, step: float) -> None:
    """R² of a regression goes to −∞ or NaN: nobody is first, and JSON has null."""
    rng = np.random.default_rng(0)
    inputs = rng.random((200, 3))
    np.savez(tmp_path / "own.npz", inputs=inputs, labels=inputs[:, :2] * 3.0)
    experiment = small(
        data={"name": str(tmp_path / "own.npz"), "batches": 1},
        training={"epochs": 30, "step": step},
        schemes=[{"name": "uncoded"}],
    )
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment, directory)
    found = outcomes(directory)
    (told,) = verdict(found)
    assert told.startswith("Every setting diverged, so no winner is declared")
    assert "from chance to exact ridge regression" in render_report(directory)
    row = json.loads(json.dumps(outcome_rows(found), allow_nan=False))[0]
    assert row["target"] > 0.9
    assert (row["gain"], row["above_chance"]) == (None, False)


def test_a_negative_r_squared_is_no_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", inputs=rng.random((200, 3)), labels=rng.random((200, 2)) + 9)
    experiment = small(
        data={"name": str(tmp_path / "own.npz"), "batches": 1},
        training={"epochs": 3, "step": 0.01},
        schemes=[{"name": "uncoded"}],
    )
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment, directory)
    (found,) = outcomes(directory)
    assert (found.target, found.above_chance) == (np.inf, False)
    assert "always answering the mean gives 0.0000" in verdict([found])[0]
    (found,) = outcomes(directory, found.final[0] - 1)  # whoever wants such a target may have it
    assert found.rounds[0] is not None


def test_who_starts_at_the_target_needs_no_round(run: RunDirectory) -> None:
    first = outcomes(run, target=0.1)
    newton = next(o for o in first if o.scheme == "coded-newton")
    assert newton.training_hours == [0.0, 0.0, 0.0]
    told = verdict(first)[0]
    assert "before any round, with its first model" in told


def test_the_clients_of_the_page(tmp_path: Path) -> None:
    """The slowest are shown, even if nobody asks them, and all of their time."""
    rates = np.array([1e-3, 50.0, 60.0, 70.0, 80.0, 90.0])
    names = ["<b>slow</b>", *"abcde"]
    fleet = Fleet(
        points=1, rate=rates, alpha=2, packet_time=2, erasure=0.2, overhead=30, client=names
    )
    fleet.write(tmp_path / "fleet.csv")
    experiment = small(
        fleet={"name": str(tmp_path / "fleet.csv")},
        schemes=[{"name": "coded", "redundancy": 0.3}],
        data={"name": "digits", "batches": 1},
    )
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment, directory)
    (rows,) = Story(directory).client_rows
    assert [row["client"] for row in rows] == names
    assert rows[0]["load"] == rows[0]["seconds"] == 0
    assert rows[1]["parts"]["overhead"] == 30
    assert rows[1]["seconds"] > 30 + 4
    page = render_report(directory)
    assert "<b>slow" not in page
    assert "&lt;b&gt;slow" in page


def test_late_answers_that_count_are_not_called_cut_off(run: RunDirectory) -> None:
    """Under `coded-newton` an answer to an earlier round may come in this one."""
    (newton,) = (o.cell.id for o in outcomes(run) if o.scheme == "coded-newton")
    rows = Story(run).timelines[newton]
    later = ~rows["arrived"] & (rows["seconds"] <= rows["round_seconds"])
    figure = timeline_figure(rows, 1e9, UNITS[0])
    bars = [c for c in figure.axes[0].collections if len(c.get_paths())]
    faces = [np.asarray(collection.get_facecolor(), dtype=float) for collection in bars]
    drawn = {tuple(face[0, :3].round(2).tolist()) for face in faces}
    expected = tuple(np.round(to_rgb(TIMELINE["the answer to an earlier round"]), 2).tolist())
    assert (expected in drawn) == bool(later.any())


def test_a_run_is_not_compared_with_itself(run: RunDirectory) -> None:
    with pytest.raises(InputError, match="named twice"):
        render_report(run, RunDirectory(run.path / ".." / run.path.name))


def test_runs_that_race_with_one_another(run: RunDirectory, tmp_path: Path) -> None:
    """Waiting for all is no gain over itself, whatever the run is called."""
    other = RunDirectory(tmp_path / "alone")
    training = {"epochs": 20, "step": 2.0, "target": 0.85}
    schemes = [{"name": "uncoded"}, {"name": "greedy", "drop": 0.2}]
    simulate(small(seeds=[0, 1, 2], schemes=schemes, training=training), other)
    page = render_report(run, other)
    first = next(o for o in outcomes(run) if o.scheme == "coded-newton")
    assert f"{first.setting} (run &#34;run&#34;) reaches the target first" in page
    alone = RunDirectory(tmp_path / "again")
    simulate(small(seeds=[0], schemes=schemes[:1], training=training), alone)
    both = render_report(other, alone)
    assert "1.0 times sooner" not in both


class TestAutomaticTarget:
    """99% of the way from chance to exact ridge regression, on the worst seed."""

    def test_a_reference_that_has_not_converged_is_not_lenient(self, tmp_path: Path) -> None:
        """Exact ridge by NumPy on the problem itself, after one epoch of the reference."""
        experiment = small(
            training={"epochs": 1, "step": 0.1, "ridge": 1e-4}, schemes=[{"name": "uncoded"}]
        )
        directory = RunDirectory(tmp_path / "run")
        simulate(experiment, directory)
        (found,) = outcomes(directory)
        run = simulation(experiment)
        x, y = (
            np.concatenate([getattr(batch, name) for batch in run.problem.batches])
            for name in ("features", "targets")
        )
        gram = x.T @ x + 1e-4 * len(x) * np.eye(x.shape[1])
        model = np.linalg.solve(gram.astype(np.float64), x.T @ y)
        guessed = (run.problem.test_features @ model).argmax(1)
        exact = float((guessed == run.problem.test_classes).mean())
        chance = found.chance or 0.0
        assert found.target == pytest.approx(chance + 0.99 * (exact - chance), abs=2e-3)
        assert found.target > found.final[0]
        assert found.rounds == [None]
        assert "exact ridge regression" in found.target_source

    def test_a_given_target_is_taken_as_it_is(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path / "run")
        training = {"epochs": 1, "step": 2.0, "target": 0.25}
        simulate(small(training=training, schemes=[{"name": "uncoded"}]), directory)
        (found,) = outcomes(directory)
        assert (found.target, found.target_source) == (0.25, "")
        assert found.fact("exact_metric") == [None]
