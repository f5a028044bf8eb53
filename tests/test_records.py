"""The tables of a run: one schema whoever ran it, and a way to read those of earlier versions."""

import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from codedfedl.federate.server.session import federate
from codedfedl.report.html import main_figure, render_report
from codedfedl.report.outcome_tables import outcome_rows
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.simulation.experiment import simulate
from tests.loopback import experiment_of, transport_of
from tests.virtual import small

TABLES = ("rounds", "clients", "settings", "timeline")
ROW_KEYS = [
    "dataset",
    "setting",
    "scheme",
    "fleet",
    "features",
    "optimiser",
    "disclosure",
    "redundancy",
    "target",
    "metric",
    "rounds",
    "training_hours",
    "total_hours",
    "final",
    "gain",
    "gain_total",
    "p_value",
    "reference",
    "paper_hours",
    "paper_gain",
    "points_per_parity_row",
    "unrepresented_points",
    "excess",
    "planned_excess",
    "planned_hours",
    "predicted_excess",
    "predicted_hours",
    "predicted_start_loss",
    "start_loss",
    "chance",
    "above_chance",
    "diverged",
    "facts",
]
LATER = {
    "rounds": ["cell", "group", "late", "dropped", "refused", "excess"],
    "clients": ["cell", "group", "rate", "planned_share", "overhead_s"],
    "settings": ["cell", "group", "sigma", "step", "diverged", "chance", "test_points"],
    "timeline": ["cell", "group"],
}
"""Columns that some earlier version did not write."""


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("federated")
    experiment, directory = experiment_of(), RunDirectory(folder / "run")
    federate(transport_of(experiment, folder / "nodes"), experiment, directory, lambda _: None)
    return directory


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = RunDirectory(tmp_path_factory.mktemp("simulated") / "run")
    simulate(small(seeds=[0, 1]), directory)
    return directory


@pytest.mark.parametrize("name", TABLES)
def test_a_federation_and_a_simulation_write_the_same_schema(
    name: str, federated: RunDirectory, simulated: RunDirectory
) -> None:
    """Names, order and types of the columns."""
    schemas = [
        pyarrow.parquet.read_schema(directory.path / f"{name}.parquet")
        for directory in (federated, simulated)
    ]
    assert schemas[0].equals(schemas[1]), f"{schemas[0]}\n\n{schemas[1]}"
    assert schemas[0].names[0] == "cell"


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_of_the_cells_of_the_experiment(
    name: str, federated: RunDirectory, simulated: RunDirectory
) -> None:
    for directory in (federated, simulated):
        table = pyarrow.parquet.read_table(directory.path / f"{name}.parquet").to_pydict()
        labels = dict(zip(table["cell"], table["setting"], strict=True))
        known = {cell.id: cell.label for cell in cells(directory.experiment())}
        without_rounds = {"sketch-solve"} if name == "timeline" else set()
        assert labels == {id_: said for id_, said in known.items() if said not in without_rounds}


def test_a_federation_says_what_it_was_measured_by(federated: RunDirectory) -> None:
    table = pyarrow.parquet.read_table(federated.path / "settings.parquet").to_pydict()
    assert table["test_points"][0] > 0
    assert 0.09 < table["chance"][0] < 0.12  # ten classes of digits
    assert (table["sigma"], table["step"], table["diverged"]) == ([2.0], [2.0], [0.0])
    clients = pyarrow.parquet.read_table(federated.path / "clients.parquet").to_pydict()
    assert all(rate > 0 for rate in clients["rate"])
    assert all(0 < share <= 1 for share in clients["planned_share"])


def earlier(directory: RunDirectory, folder: Path) -> RunDirectory:
    """Return a copy of a run with the tables of an earlier version."""
    shutil.copytree(directory.path, folder)
    for name in TABLES:
        table = pyarrow.parquet.read_table(folder / f"{name}.parquet")
        pyarrow.parquet.write_table(table.drop_columns(LATER[name]), folder / f"{name}.parquet")
    return RunDirectory(folder)


@pytest.mark.parametrize("kind", ["federated", "simulated"])
def test_runs_of_earlier_versions_are_reported(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    directory: RunDirectory = request.getfixturevalue(kind)
    old = earlier(directory, tmp_path / "run")
    rows, new = outcome_rows(outcomes(old)), outcome_rows(outcomes(directory))
    same = ("setting", "rounds", "training_hours", "total_hours", "final", "reference", "dataset")
    assert [[row[key] for key in same] for row in rows] == [[r[key] for key in same] for r in new]
    assert [row["chance"] for row in rows] == [None] * len(rows)
    page = render_report(old)
    assert all(row["setting"] in page for row in rows)
    assert main_figure(old).axes
    (old.path / "timeline.parquet").unlink()  # which the earliest versions did not write
    assert "The first rounds" not in render_report(old)


def test_an_id_that_is_not_known_is_found_by_its_label(
    simulated: RunDirectory, tmp_path: Path
) -> None:
    """Another version may resolve an experiment to other settings: then ids are others too."""
    shutil.copytree(simulated.path, tmp_path / "run")
    for name in TABLES:
        path = tmp_path / "run" / f"{name}.parquet"
        table = pyarrow.parquet.read_table(path)
        ids = pyarrow.array([cell[::-1] for cell in table["cell"].to_pylist()])
        pyarrow.parquet.write_table(table.set_column(0, "cell", ids), path)
    other = RunDirectory(tmp_path / "run")
    assert outcome_rows(outcomes(other)) == outcome_rows(outcomes(simulated))
    assert [o.cell.id for o in outcomes(other)] == [o.cell.id for o in outcomes(simulated)]


def test_the_keys_of_the_json_rows(federated: RunDirectory, simulated: RunDirectory) -> None:
    for directory in (federated, simulated):
        for row in outcome_rows(outcomes(directory)):
            assert sorted(row) == sorted(ROW_KEYS)
