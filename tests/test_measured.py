"""Delays that no formula fits, from the measurements to a simulation. Seeds are fixed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from codedfedl import (
    DelayModel,
    InputError,
    Traces,
    expected_maximum,
    fit,
    plan,
)
from codedfedl.data import load_dataset
from codedfedl.fitting.fit import Fit
from codedfedl.fleet.delays import DelayParameters
from codedfedl.fleet.devices import read_clients
from codedfedl.fleet.measured import MeasuredDelays, MixedDelays, read_measured
from codedfedl.learning.features import RandomFourier
from codedfedl.report.html import render_report
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes.coded_state import CodedState
from codedfedl.simulation.checkpoint import client_columns
from codedfedl.simulation.engine import Setting, Simulation, entries
from codedfedl.simulation.experiment import simulate
from codedfedl.simulation.units import prepare

NAMES = ["steady", "jittery", "steady too", "very jittery"]
ROUNDS = 1500
SMALL: dict[str, Any] = {
    "data": {"name": "digits", "batches": 1},
    "fleet": {"clients": 4},
    "features": {"kind": "fourier", "n_components": 8, "sigma": 2.0},
    "training": {"epochs": ROUNDS, "step": 0.5, "target": 0.5},
    "schemes": [{"name": "uncoded"}, {"name": "coded", "redundancy": 0.2}],
}


@pytest.fixture(scope="module")
def found() -> Fit:
    """Two clients follow the formula; what the others take beside computing is uniform."""
    rng = np.random.default_rng(61)
    n = 60
    load = rng.choice([100.0, 200.0, 400.0], 4 * n)
    rate = np.repeat([50.0, 50.0, 20.0, 10.0], n)
    compute = load / rate * (1 + rng.exponential(1 / 4, 4 * n))
    jitter = np.repeat([0.0, 3.0, 0.0, 30.0], n) * rng.uniform(0, 1, 4 * n)
    traces = Traces(np.repeat(NAMES, n), load, compute=compute, total=compute + 2 + jitter)
    found = fit(traces)
    assert found.fits.tolist() == [True, False, True, False]
    return found


def played(delays: DelayModel) -> dict[str, Setting]:
    experiment = Experiment.model_validate(SMALL)
    features = RandomFourier(8, 2.0, 0)
    problem, task, _ = prepare(experiment, load_dataset("digits"), 0, features, "cpu")
    run = Simulation(problem, entries(task, delays, experiment.build_schemes()), 0)
    for _ in run.run():
        pass
    return {setting.scheme.info.name: setting for setting in run.settings}


@pytest.mark.parametrize("kind", ["measured", "mixed"])
@pytest.mark.slow
def test_what_was_planned_arrives(found: Fit, kind: str) -> None:
    """Hoeffding's bound over four clients and two models: false alarm below 1e-6 in all.

    A round that waits for all has the mean that was planned within five standard errors: below
    1e-6 too.
    """
    delays: DelayModel = found.measured if kind == "measured" else found.delays
    assert isinstance(delays, MeasuredDelays if kind == "measured" else MixedDelays)
    settings = played(delays)
    coded, state = settings["coded"], settings["coded"].state
    assert isinstance(state, CodedState)
    planned = plan(delays, 0.2, points=state.task.points[0])
    assert state.plans[0].document() == planned.document()
    chance = planned.return_probabilities
    assert ((chance > 0.05) & (chance < 0.95)).any()
    arrived = np.mean([record.arrived for record in coded.rounds], axis=0)
    bound = np.sqrt(np.log(2 * 4 * 2 / 1e-6) / (2 * ROUNDS))
    assert len(coded.rounds) == ROUNDS
    assert np.abs(arrived - chance).max() < bound

    seconds = np.array([record.seconds for record in settings["uncoded"].rounds])
    error = seconds.mean() - expected_maximum(delays, state.task.points[0])
    assert abs(error) < 5 * seconds.std() / np.sqrt(ROUNDS)


def test_what_no_formula_says_is_not_told(found: Fit) -> None:
    columns = client_columns(played(found.delays)["coded"])
    assert columns["client"].tolist() == NAMES
    for name in ("rate", "compute_s", "link_s", "retransmission_s", "overhead_s"):
        assert np.isnan(columns[name]).tolist() == (~found.fits).tolist(), name
    for name in ("load", "arrived_share", "planned_share", "setup_compute_s", "setup_upload_s"):
        assert np.isfinite(columns[name]).all(), name
    assert columns["rate"][0] == found.fleet.rate[0]


def test_a_formula_alone_is_played_like_its_fleet(found: Fit) -> None:
    """The same luck, with the fleet's points or without."""
    columns = {name: getattr(found.fleet, name) for name in DelayParameters.names()}
    runs = played(found.fleet), played(DelayParameters(**columns))
    for name in runs[0]:
        with_points, without = ([r.seconds for r in run[name].records] for run in runs)
        assert with_points == without


class TestFile:
    def experiment(self, path: Path, **changes: Any) -> Experiment:
        fleet = {"name": str(path)} | changes.pop("fleet", {})
        training = SMALL["training"] | {"epochs": 8}
        return Experiment.model_validate(SMALL | {"fleet": fleet, "training": training} | changes)

    @pytest.fixture
    def path(self, found: Fit, tmp_path: Path) -> Path:
        found.measured.write(tmp_path / "delays.parquet")
        return tmp_path / "delays.parquet"

    def clients(self, experiment: Experiment, out: Path) -> dict[str, list[Any]]:
        simulate(experiment, RunDirectory(out))
        table: dict[str, list[Any]] = pyarrow.parquet.read_table(
            out / "clients.parquet"
        ).to_pydict()
        return table

    def test_is_played_and_read_once(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = []

        def read(name: str) -> MeasuredDelays:
            reads.append(name)
            return read_measured(name)

        monkeypatch.setattr("codedfedl.simulation.units.read_measured", read)
        experiment = self.experiment(path, seeds=[0, 1], grid={"redundancy": [0.1, 0.3]})
        clients = self.clients(experiment, tmp_path / "run")
        assert reads == [str(path)]
        assert len(clients["client"]) == 2 * 3 * 4
        assert clients["client"][:4] == NAMES
        assert np.isnan(clients["compute_s"]).all()
        page = render_report(RunDirectory(tmp_path / "run"))
        assert "<td>–</td>" in page
        assert not re.search(r"\bnan\b", page)

    def test_who_is_slower_takes_that_much_longer(
        self, found: Fit, path: Path, tmp_path: Path
    ) -> None:
        """The plans do not know it; the set-up shows it, on the same luck."""
        as_planned = self.clients(self.experiment(path), tmp_path / "one")
        slower = {"slower": 3.0, "slower_share": 0.25}
        later = self.clients(self.experiment(path, fleet=slower), tmp_path / "other")
        assert as_planned["planned_share"][4:] == later["planned_share"][4:]
        points = np.array(as_planned["points"][:4])
        slowest = int(np.argmax(found.measured.mean(points)))
        factor = np.divide(later["setup_compute_s"], as_planned["setup_compute_s"])
        np.testing.assert_allclose(factor, [3.0 if j == slowest else 1.0 for j in range(4)] * 2)

    @pytest.mark.parametrize(
        ("scheme", "message"),
        [
            ("sketch-solve", "sketch-solve: embedding until a deadline needs a Fleet.* fit --out"),
            ("coded-newton", "coded-newton needs a Fleet.* give a fleet file"),
        ],
    )
    def test_work_at_ones_own_pace_needs_a_fleet(
        self, path: Path, tmp_path: Path, scheme: str, message: str
    ) -> None:
        experiment = self.experiment(path, schemes=[{"name": scheme}])
        with pytest.raises(InputError, match=message):
            simulate(experiment, RunDirectory(tmp_path / "run"))
        assert not (tmp_path / "run").exists()

    def test_clients_that_may_never_reply(self, tmp_path: Path) -> None:
        path = tmp_path / "delays.csv"
        path.write_text("client,points,per_point,fixed\na,10,1,1\nb,10,1,1\nb,10,inf,inf\n")
        with pytest.raises(InputError, match="1078.5 of 1438 return however long the server waits"):
            simulate(self.experiment(path), RunDirectory(tmp_path / "run"))
        path.write_text("client,points,per_point,fixed\na,10,1,1\nb,10,inf,inf\n")
        with pytest.raises(InputError, match="no reply of client b was ever measured"):
            simulate(self.experiment(path), RunDirectory(tmp_path / "run"))


def test_a_fleet_file_is_read_once_and_needs_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read(name: str) -> Any:
        reads.append(name)
        return read_clients(name)

    monkeypatch.setattr("codedfedl.simulation.units.read_clients", read)
    path = tmp_path / "fleet.csv"
    path.write_text("client,rate,alpha,packet_time,erasure\na,9,2,1,0.1\nb,3,2,1,0.1\n")
    changes = {
        "fleet": {"name": str(path)},
        "seeds": [0, 1],
        "training": SMALL["training"] | {"epochs": 4},
        "grid": {"redundancy": [0.1, 0.3]},
    }
    simulate(Experiment.model_validate(SMALL | changes), RunDirectory(tmp_path / "run"))
    assert reads == [str(path)]
