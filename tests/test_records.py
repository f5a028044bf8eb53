"""The tables of a run: one schema whoever ran it, and a way to read those of earlier versions."""

from pathlib import Path

import pyarrow.parquet
import pytest

from codedfedl.federate.server import federate
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.grid import cells
from codedfedl.simulate.run import simulate
from tests.loopback import experiment_of, transport_of
from tests.test_simulate import small

TABLES = ("rounds", "clients", "settings", "timeline")


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
