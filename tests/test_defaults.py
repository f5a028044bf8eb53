"""What a new user gets who names data and a fleet, and nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from sklearn.datasets import load_wine  # type: ignore[import-untyped]

from codedfedl import InputError
from codedfedl.data import load_dataset
from codedfedl.estimators import CodedFedLClassifier
from codedfedl.learning.features import Identity, RandomFourier, Semilinear, Structured, safe_step
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.federation import federation_config
from codedfedl.runs.federation_sections import FederationConfig
from tests.conftest import Run

DEVICES = 20


def write_table(path: Path, inputs: np.ndarray, labels: np.ndarray) -> None:
    names = [*(f"x{column}" for column in range(inputs.shape[1])), "kind"]
    rows = (",".join(map(str, [*row, label])) for row, label in zip(inputs, labels, strict=True))
    path.write_text("\n".join([",".join(names), *rows]) + "\n")


def rings() -> tuple[np.ndarray, np.ndarray]:
    """Three rings around one another, which no linear model tells apart, and an odd scale."""
    rng = np.random.default_rng(0)
    labels = np.arange(1500) % 3
    angles, radii = rng.uniform(0, 2 * np.pi, 1500), 1 + labels + rng.normal(0, 0.15, 1500)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return points * [1000, 0.001], labels


def noise() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((600, 4)), rng.integers(0, 3, 600)


TABLES = {"rings": rings, "wine": lambda: load_wine(return_X_y=True), "noise": noise}


@pytest.fixture
def minimal(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An experiment that names its table, the label and the fleet; wine has 7 points a device."""
    write_table(tmp_path / "own.csv", *TABLES[getattr(request, "param", "rings")]())
    devices = (f"d{j},{1e6 * 0.85**j},{2e5 * 0.95**j},2,0.1" for j in range(DEVICES))
    (tmp_path / "fleet.csv").write_text(
        "\n".join(["client,mac_rate,bit_rate,alpha,erasure", *devices]) + "\n"
    )
    path = tmp_path / "own.toml"
    path.write_text(
        f'[data]\nname = "{tmp_path}/own.csv"\nlabel = "kind"\n'
        f'[fleet]\nname = "{tmp_path}/fleet.csv"\n'
    )
    return path


def simulated(run: Run, path: Path, *more: str) -> dict[str, dict[str, Any]]:
    """Run an experiment, and return its rows by their schemes."""
    out = path.parent / f"run{len(list(path.parent.iterdir()))}"
    code, text, err = run("simulate", path, "--out", out, "--json", *more)
    assert code == 0, err
    return {row["scheme"]: row for row in json.loads(text)["rows"]}


@pytest.mark.parametrize("minimal", ["rings", "wine"], indirect=True)
def test_a_minimal_experiment_learns_what_the_estimator_learns(run: Run, minimal: Path) -> None:
    table = load_dataset(str(minimal.parent / "own.csv"), label="kind")
    estimator = CodedFedLClassifier(fleet=minimal.parent / "fleet.csv")
    score = estimator.fit(table.inputs, table.labels).score(table.test_inputs, table.test_labels)
    rows = simulated(run, minimal)
    assert list(rows) == ["coded-newton"]
    assert rows["coded-newton"]["final"][0] >= score - 0.02
    assert score > 0.9


@pytest.mark.parametrize("minimal", ["wine"], indirect=True)
def test_a_target_is_no_finer_than_a_test_point(run: Run, minimal: Path) -> None:
    """Of 36 points exact ridge regression has all right."""
    row = simulated(run, minimal)["coded-newton"]
    assert 34.9 < 36 * row["target"] < 35
    assert row["total_hours"][0] is not None


@pytest.mark.parametrize("kind", ["fourier", "structured", "identity"])
@pytest.mark.parametrize("batches", [1, 5])
@pytest.mark.parametrize("minimal", ["wine"], indirect=True)
def test_the_default_step_diverges_for_nobody(
    run: Run, minimal: Path, kind: str, batches: int
) -> None:
    """Devices have one class each, and in five mini-batches one or two points."""
    schemes = 'schemes=[{name="uncoded"},{name="coded"},{name="fedavg"},{name="greedy"}]'
    settings = (schemes, f"data.batches={batches}", f"features.kind={kind}")
    rows = simulated(run, minimal, *(word for one in settings for word in ("--set", one)))
    for row in rows.values():
        assert not row["diverged"]
        assert row["final"][0] > 0.8  # chance is 0.4


def test_a_safe_step_bounds_every_subset_of_points() -> None:
    """Of one point too, whose Hessian has its squared norm as the largest eigenvalue."""
    points = np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32) * 7
    for features in (RandomFourier(40, 2.0), Structured(40, 2.0), RandomFourier(1, 2.0)):
        squares = (np.asarray(features.transform(points)) ** 2).sum(axis=1)
        assert safe_step(features, 0.01) * (squares.max() + 0.01) <= 2
    largest = float((points**2).sum(axis=1).max())
    assert safe_step(Identity(), 0.5, points) == pytest.approx(1 / (largest + 0.5))
    assert safe_step(Identity(), 0.0, 0 * points) == 1.0
    with pytest.raises(InputError, match=r"training.step is 'auto'.*give a number"):
        safe_step(Identity(), 0.0)


def test_the_step_and_sigma_that_were_used_are_recorded(run: Run, minimal: Path) -> None:
    out = minimal.parent / "run"
    assert run("simulate", minimal, "--out", out, "--set", "data.batches=2")[0] == 0
    settings = pyarrow.parquet.read_table(out / "settings.parquet").to_pydict()
    bound = Semilinear.largest_square
    assert settings["step"] == [pytest.approx(2 / bound)]
    assert settings["sigma"][0] == pytest.approx(1, abs=0.05)  # of two standardised columns


def test_a_federation_asks_for_what_it_cannot_know(minimal: Path) -> None:
    config = {"federation": FederationConfig(clients=2)}
    bare = read_experiment(minimal).model_copy(update=config)
    with pytest.raises(InputError, match=r"features.sigma is 'auto'.*give a number"):
        federation_config(bare)
    sized = read_experiment(minimal, {"features.sigma": 1.0}).model_copy(update=config)
    assert federation_config(sized) == config["federation"]
    linear = {"features.sigma": 1.0, "features.kind": "identity"}
    steps = linear | {"schemes": [{"name": "coded"}]}
    with pytest.raises(InputError, match=r"training.step is 'auto'.*give a number"):
        federation_config(read_experiment(minimal, steps).model_copy(update=config))
    without_steps = read_experiment(minimal, linear).model_copy(update=config)
    assert without_steps.schemes[0].name == "coded-newton"
    assert federation_config(without_steps) == config["federation"]


@pytest.mark.parametrize("minimal", ["rings"], indirect=True)
def test_a_scheme_alone_is_not_called_first(run: Run, minimal: Path) -> None:
    out = minimal.parent / "run"
    code, text, _ = run("simulate", minimal, "--out", out)
    assert code == 0
    assert "With set-up charged, coded-newton excess 0.02 reaches accuracy " in text
    assert "reaches the target first" not in text
    page = (out / "report.html").read_text("utf-8")
    assert "coded-newton excess 0.02 reaches accuracy " in page
    assert "reaches the target first" not in page


@pytest.mark.parametrize("minimal", ["rings", "wine"], indirect=True)
@pytest.mark.slow
def test_a_sweep_of_a_table_and_a_fleet(run: Run, minimal: Path) -> None:
    """The step and the target of the built-in grid are for digits, and not used here."""
    folder = minimal.parent
    own = ("--set", f"data.name={folder}/own.csv", "--set", "data.label=kind")
    fleet = ("--fleet", folder / "fleet.csv", "--vary", "redundancy=0.1,0.2", "--seeds", 1)
    code, text, err = run("sweep", *own, *fleet, "--out", folder / "sweep", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["best"]["total_hours"] is not None
    for row in found["rows"]:
        assert row["target"] != 0.95
        assert row["final"][0] > 0.8
    code, text, _ = run("sweep", minimal, "--vary", "mixing=3,6", "--out", folder / "mixing")
    assert code == 0
    assert "coded-newton excess 0.02, mixing 3" in text


RIVALS = ("--set", 'schemes=[{name="uncoded"},{name="coded"},{name="coded-newton"}]')


@pytest.mark.parametrize("minimal", ["noise"], indirect=True)
@pytest.mark.parametrize("more", [(), ("--set", "training.target=0.2")])
def test_nobody_is_first_at_chance(run: Run, minimal: Path, more: tuple[str, ...]) -> None:
    out = minimal.parent / "run"
    code, text, _ = run("simulate", minimal, "--out", out, *RIVALS, *more)
    assert code == 0
    assert "No setting is clearly above chance: the best accuracy is " in text
    assert "reaches the target first" not in text
    rows = json.loads(run("report", out, "--json")[1])["rows"]
    for row in rows:
        assert (row["gain"], row["gain_total"], row["above_chance"]) == (None, None, False)
        assert row["target"] == (0.2 if more else None)
        assert 0.33 < row["chance"] < 0.45
    assert "reaches the target first" not in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize("minimal", ["wine"], indirect=True)
def test_nobody_is_first_where_all_diverge(run: Run, minimal: Path) -> None:
    """Of a diverged model, argmax makes an accuracy: that of naming one class."""
    step = ("--set", "training.step=60")
    both = ("--set", 'schemes=[{name="uncoded"},{name="coded"}]')
    code, text, _ = run("simulate", minimal, "--out", minimal.parent / "run", *step, *both)
    assert code == 0
    assert "Every setting diverged" in text
    assert "lower training.step" in text
    assert "reaches the target first" not in text


@pytest.mark.parametrize("minimal", ["wine"], indirect=True)
def test_exact_ridge_sets_the_target_where_the_reference_diverges(run: Run, minimal: Path) -> None:
    """It met the target on its way, and still nothing can be gained over it."""
    step, both = "training.step=60", 'schemes=[{name="uncoded"},{name="coded-newton"}]'
    out = minimal.parent / "run"
    code, text, _ = run("simulate", minimal, "--out", out, "--set", step, "--set", both)
    assert code == 0
    assert "99% of the way from chance to exact" in text
    assert "coded-newton reaches the target first" in text
    rows = {row["scheme"]: row for row in json.loads(run("report", out, "--json")[1])["rows"]}
    assert rows["coded-newton"]["above_chance"]
    assert not rows["uncoded"]["above_chance"]
    assert rows["coded-newton"]["gain_total"] is None


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "[data]\n[training]\n"])
def test_an_empty_experiment_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "empty.toml"
    path.write_text(text)
    code, out, err = run("simulate", path, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert "is empty: name at least the data and the fleet" in err
    assert 'data.name = "my.csv"' in err
    assert not (tmp_path / "run").exists()
