"""`reproduce deep` on a small data set: its rows, who stops when, and its picture."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codedfedl import InputError
from codedfedl.experiments import BUILT_IN, built_in
from codedfedl.reproduce import REPRODUCTIONS, Reproduction
from codedfedl.reproduce.deep import FLEETS, LONGEST, TARGETS
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory

KEYS = {
    *("dataset", "scheme", "redundancy", "target", "rounds", "training_hours", "total_hours"),
    *("gain", "gain_total", "fleet", "features", "optimiser", "points_per_parity_row"),
    *("disclosure", "final", "model", "load", "bits", "least"),
}
SCHEMES: list[dict[str, Any]] = [
    {"name": "paced", "server_step": 0.01},
    {"name": "paced", "message_bits": 8, "least": 10, "server_step": 0.01},
    {"name": "uncoded", "optimiser": "adam", "load": 2, "server_step": 0.01},
    {"name": "fedavg", "local_steps": 2, "points": 4, "step": 0.05},
    {"name": "tangent-newton", "hours": 0.003, "n_components": 60, "training": {"least": 5}},
]


@dataclass(frozen=True)
class Small(Reproduction):
    """The same on digits, with a linear network, easy targets and few schemes."""

    def built_in(self, name: str, changes: Any = None) -> Experiment:
        small = {
            "data.name": "digits",
            "model.module": "logistic",
            "fleet.clients": 6,
            "training.hours": 0.05,
            "training.epochs": 60,
            "schemes": SCHEMES,
        }
        return super().built_in(name, small | (changes or {}))

    def has(self, dataset: str, find: Any = None) -> bool:
        return dataset == "mnist"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("deep")
    known = dict(TARGETS)
    TARGETS["mnist"] = (0.5, 0.7, 0.999)
    try:
        return out, REPRODUCTIONS["deep"](Small(out, 2, device="torch", fleet="paper"))
    finally:
        TARGETS.update(known)


@pytest.mark.extras
def test_there_is_a_row_for_every_setting_and_target(run: Any) -> None:
    _, document = run
    rows = document["rows"]
    assert document["skipped"] == ["fashion-mnist"]
    assert len(rows) == 5 * 3
    assert all(row.keys() >= KEYS and len(row["rounds"]) == 2 for row in rows)
    settings = {(r["scheme"], r["load"], r["bits"], r["least"]) for r in rows}
    assert settings == {
        ("paced", "window", 32, 1),
        ("paced", "window", 8, 10),
        ("uncoded", "equal", 32, 2),
        ("fedavg", "steps", 32, 4),
        ("tangent-newton", "window", 32, 5),
    }
    tangent = [row for row in rows if row["scheme"] == "tangent-newton"]
    assert {(row["features"], row["optimiser"]) for row in tangent} == {("tangent", "adam, newton")}
    assert all(row["points_per_parity_row"] >= 10 for row in tangent)
    assert "mixed" in tangent[0]["disclosure"]
    assert all(r["total_hours"] == [None, None] for r in rows if r["target"] == 0.999)
    assert {r["model"] for r in rows} == {"logistic"}


@pytest.mark.extras
def test_rivals_stop_after_twenty_times_the_soonest(run: Any) -> None:
    out, document = run
    hours = [
        max(row["total_hours"])
        for row in document["rows"]
        if row["scheme"] == "paced" and row["target"] == 0.7
    ]
    rivals = RunDirectory(out / "deep-mnist-paper-uncoded").experiment().training.hours
    assert rivals == pytest.approx(min(0.05, LONGEST * min(hours)))
    assert (out / "deep-paper.png").stat().st_size > 10_000


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("dataset", TARGETS)
def test_every_case_has_an_experiment_without_test_data_in_its_knobs(
    dataset: str, fleet: str
) -> None:
    assert f"deep-{dataset}-{fleet}" in BUILT_IN
    experiment = built_in(f"deep-{dataset}-{fleet}")
    assert (experiment.data.name, experiment.fleet.name) == (dataset, fleet)
    assert experiment.training.target is None
    experiment.build_schemes()


def test_a_part_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--fleet thousand"):
        REPRODUCTIONS["deep"](Reproduction(tmp_path, 1, fleet="thousand"))
