"""Rounds in which nobody arrives leave the model that there was, and that one has a metric."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl.core.protocol import Scheme
from codedfedl.schemes.coded import Coded
from codedfedl.schemes.fedavg import FedAvg
from codedfedl.schemes.partial import Partial
from tests.conftest import Run
from tests.virtual import play, simulation_of

HURRY = 1e-9  # seconds: less than any client takes


@pytest.mark.parametrize("scheme", [FedAvg(deadline=HURRY), Partial(deadline=HURRY)])
def test_the_first_model_has_the_accuracy_of_a_constant(scheme: Scheme) -> None:
    simulation = simulation_of({"hasty": scheme})
    classes = np.asarray(simulation.problem.test_classes)
    setting = play(simulation)["hasty"]
    assert not any(record.arrived.any() for record in setting.rounds)
    assert len(setting.rounds) == 6
    metrics = [float(record.metric) for record in setting.rounds]
    np.testing.assert_allclose(metrics, (classes == 0).mean(), rtol=1e-6)


def test_a_set_up_that_leaves_no_model_still_has_no_metric() -> None:
    setting = play(simulation_of({"coded": Coded()}))["coded"]
    (prepared,) = (record for record in setting.records if record.is_setup)
    assert not prepared.has_model


def test_no_nan_in_tables_nor_json(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "hasty.toml"
    path.write_text(
        'data.name = "digits"\nfleet.clients = 6\nfeatures.n_components = 40\n'
        "training.epochs = 2\ntraining.target = 0.5\n"
        f'[[schemes]]\nname = "fedavg"\ndeadline = {HURRY}\n'
    )
    code, out, err = run("simulate", path, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert 0.05 < row["final"][0] < 0.15  # one of ten classes
    assert not row["above_chance"]
    table = pyarrow.parquet.read_table(tmp_path / "run" / "rounds.parquet").to_pydict()
    assert np.isfinite(table["metric"]).all()
    assert "nan" not in (tmp_path / "run" / "report.html").read_text("utf-8").split()
