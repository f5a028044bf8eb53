"""The commands that go beyond the paper, on small data."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import paper_fleet
from codedfedl.errors import InputError
from codedfedl.experiments import built_in
from codedfedl.report.reading import Curve
from codedfedl.reproduce import reproduction
from codedfedl.reproduce.charged_hours import cold_start, private, rounds_to_exact, settings
from codedfedl.reproduce.frontiers import frontier
from codedfedl.reproduce.reproduction import Reproduction
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.runs.sections import FleetConfig
from codedfedl.simulation.units import slowdown

_SMALL = {
    "training.epochs": 60,
    "data.name": "digits",
    "data.batches": 1,
    "fleet.clients": 6,
    "features.n_components": 40,
    "features.sigma": 2.0,
    "training.target": 0.6,
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    """Every experiment of the package, on six clients with digits."""

    def small(name: str, changes: dict[str, Any]) -> Experiment:
        experiment = built_in(name, changes | _SMALL)
        schemes = [
            scheme.model_copy(update={"hours": None, "rounds": 5})
            if scheme.name == "coded-newton"
            else scheme
            for scheme in experiment.schemes
        ]
        return experiment.model_copy(update={"schemes": schemes})

    monkeypatch.setattr(reproduction, "built_in", small)
    return Reproduction(tmp_path, 2)


@pytest.mark.slow
def test_cold_start_rows_have_what_scripts_rely_on(job: Reproduction) -> None:
    rows = cold_start(replace(job, seeds=1))["rows"]
    assert {row["scheme"] for row in rows} >= {"uncoded", "coded", "one-shot", "coded-newton"}
    newton = next(row for row in rows if row["scheme"] == "coded-newton")
    assert newton["points_per_parity_row"] >= 10
    assert newton["training_hours"][0] is None or newton["training_hours"][0] >= 0
    assert len(newton["total_hours"]) == len(newton["predicted_excess"]) == 1
    paper = {row["setting"]: row["paper_hours"] for row in rows}
    assert paper["uncoded"] is None  # its features are not the paper's
    for name in ("mnist", "fashion-mnist"):
        assert (job.out / f"coldstart-{name}.png").stat().st_size > 10_000
        assert (job.out / f"coldstart-{name}" / "report.html").is_file()
    # Patches: for a target of their own and for the paper's; each scheme once.
    patches = [row["scheme"] for row in rows if row["features"] == "patches"]
    assert patches == ["one-shot", "sketch-solve", "coded-newton"] * 4


def test_patches_have_a_target_of_their_own() -> None:
    experiment = built_in("coldstart-patches-mnist")
    assert (experiment.training.target, experiment.features.n_components) == (0.97, 1980)
    assert built_in("coldstart-patches-fashion-mnist").training.target == 0.86


def test_settings_tell_all_schemes(job: Reproduction, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        document = settings(job)["settings"]
    assert set(document) == {"regression", "homogeneous", "thousand"}
    for rows in document.values():
        assert [row["scheme"] for row in rows][-1] == "coded-newton"


def _curve(**changes: Any) -> Curve:
    columns: dict[str, Any] = {
        "cell": cells(built_in("demo"))[-1],
        "seed": 0,
        "rounds": np.arange(4),
        "training_hours": np.arange(4.0),
        "total_hours": np.arange(4.0) + 1,
        "arrived": np.array([30, 20, 15, 10]),
        "metric": np.array([0.90, 0.955, 0.951, 0.956]),
        "metric_name": "accuracy",
        "excess": np.array([0.5, 0.02, 0.005, 0.001]),
        "facts": {"predicted_hours": 2.5},
    }
    return Curve(**(columns | changes))


def test_quality_counts_the_first_round_that_is_close_in_both() -> None:
    exact = _curve(metric=np.array([0.957]))
    found = rounds_to_exact(_curve(), exact, 30)
    assert (found["rounds"], found["hours"]) == (3, 4.0)  # round 2 is close in the objective only
    assert found["late_share"] == pytest.approx(0.5)
    assert found["least_late_share"] == pytest.approx(1 / 3)
    never = rounds_to_exact(_curve(excess=np.full(4, 0.5)), exact, 30)
    assert never["rounds"] is None


def test_curves_at_an_hour() -> None:
    assert _curve().at(0.5) is None
    assert _curve().at(2.9) == 0.955
    assert _curve().excess_at_plan == 0.02


def test_only_the_slowest_are_slowed() -> None:
    fleet = paper_fleet()
    seconds = fleet.mean(fleet.points)
    slower = fleet.slowed(slowdown(seconds, FleetConfig(slower=5.0, slower_share=0.3334)))
    changed = slower.rate < fleet.rate
    assert changed.sum() == 10
    np.testing.assert_allclose(fleet.rate[changed] / slower.rate[changed], 5)
    np.testing.assert_allclose(slower.packet_time_up[changed] / fleet.packet_time_up[changed], 5)
    assert fleet.rate[changed].max() < np.median(fleet.rate)
    assert (slowdown(seconds, FleetConfig()) == 1).all()


@pytest.mark.slow
def test_private_rows_have_what_scripts_rely_on(job: Reproduction) -> None:
    document = private(replace(job, seeds=1))
    rows = document["rows"]
    assert document["skipped"] == []
    assert [row["epsilon"] for row in rows] == [1.0, 3.0, 8.0, None, None] * 2
    assert [row["delta"] for row in rows] == [1e-5, 1e-5, 1e-5, None, None] * 2
    assert {tuple(row["disclosure"]) for row in rows} == {("dp",), ("sums",), ("raw",)}
    assert {row["fleet"] for row in rows} == {"paper"}
    assert all(len(row["final"]) == 1 for row in rows)
    told = json.loads((job.out / "private-mnist" / "privacy.json").read_text())
    assert len(told["runs"]) == 4  # guarantees
    assert (job.out / "private.png").stat().st_size > 10_000


def test_what_cannot_be_had_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str, *_: Any) -> Any:
        raise InputError(f"{name} is not there, and nobody can download it")

    monkeypatch.setattr(reproduction, "load_dataset", nothing)
    job = Reproduction(tmp_path / "out", 1)
    assert private(job) == {"rows": [], "skipped": ["mnist", "fashion-mnist"]}


def test_frontier_rows_have_what_scripts_rely_on(job: Reproduction) -> None:
    rows = frontier(replace(job, seeds=1, fleet="paper", dataset="digits-halves"))["rows"]
    assert {row["fleet"] for row in rows} == {"paper"}
    assert {row["scheme"] for row in rows} >= {"coded-newton", "balanced", "centralised"}
    centralised = next(row for row in rows if row["scheme"] == "centralised")
    assert centralised["disclosure"] == ["raw"]
    assert centralised["points_per_parity_row"] is None
    for row in rows:
        assert len(row["total_hours"]) == len(row["final"]) == 1
        assert {"features", "optimiser", "gain_total", "training_hours"} <= set(row)
    assert (job.out / "frontier-paper.png").stat().st_size > 10_000


def test_a_data_set_asked_for_by_name_must_be_there(tmp_path: Path) -> None:
    job = Reproduction(tmp_path, 1, str(tmp_path), fleet="paper", dataset="diamonds")
    with pytest.raises(InputError, match="diamonds.csv does not exist: take"):
        frontier(job)
