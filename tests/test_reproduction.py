"""The paper's experiment on the real data, where they are: CODEDFEDL_DATA names their folder."""

import os
from pathlib import Path

import numpy as np
import pytest

from codedfedl.experiments import built_in
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("CODEDFEDL_DATA" not in os.environ, reason="needs the real data"),
]


def test_table_1_on_mnist(tmp_path: Path) -> None:
    """One seed, until the target: the gain of the paper, and hours of its order."""
    experiment = built_in("table1-mnist", {"seeds": [0], "training.epochs": 52})
    kept = [scheme for scheme in experiment.schemes if scheme.label in ("uncoded", "coded 10%")]
    experiment = experiment.model_copy(update={"schemes": kept})
    directory = RunDirectory(tmp_path / "run")
    simulate(experiment, directory)
    uncoded, coded = outcomes(directory)
    assert coded.gain is not None
    assert 2.3 < coded.gain < 3.1
    assert uncoded.training_hours[0] is not None
    assert 300 < uncoded.training_hours[0] < 800
    assert coded.gain_total is not None
    assert coded.gain_total < 1.3  # the set-up eats the gain
    assert np.isclose(coded.final[0], uncoded.final[0], atol=0.005)
