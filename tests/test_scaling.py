"""Clients agree on a scale by rounded means: nearly as if all points lay in one place."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import load_model
from codedfedl.data.shards import UNSCALED, Shard, agreed_scaling, moments
from codedfedl.errors import InputError
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Answered
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.journal import Journal
from tests.loopback import Loopback, Script, experiment_of

CLIENTS = 3
NEWTON = {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10}


def table(classes: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return points in units that have nothing to do with one another; a column never changes."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(600, 3))
    inputs = np.column_stack([1.6e9 + 1e3 * hidden[:, 0], 1e-6 * hidden[:, 1], hidden[:, 2]])
    inputs = np.column_stack([inputs, np.full(600, 7.0)])
    score = np.sin(hidden[:, 0]) + hidden[:, 1]
    return inputs, (score > 0).astype(np.int64) if classes else 1e5 + 100 * score


def shards_of(folder: Path, classes: bool) -> list[Path]:
    inputs, labels = table(classes)
    order = np.argsort(inputs[:, 0])  # the clients' own means differ
    folder.mkdir()
    np.savez(folder / "test.npz", inputs=inputs[::5], labels=labels[::5])
    paths = []
    for j, rows in enumerate(np.array_split(order, CLIENTS)):
        paths.append(folder / f"{j}.npz")
        np.savez(paths[-1], inputs=inputs[rows], labels=labels[rows])
    return paths


def test_the_agreed_scale_is_near_that_of_all_points() -> None:
    inputs, labels = table(classes=False)
    parts = [Shard(inputs[rows], labels[rows]) for rows in np.array_split(np.arange(600), CLIENTS)]
    points = [len(part.inputs) for part in parts]
    scaling = agreed_scaling([moments(part) for part in parts], points)
    scaled = scaling.inputs(inputs)
    np.testing.assert_allclose(scaled.mean(0)[:3], 0.0, atol=1 / 16)
    np.testing.assert_allclose(scaled.std(0)[:3], 1.0, rtol=2**0.125 - 1)
    assert scaling.low[3] == 7.0
    assert scaling.span[3] == 1.0
    np.testing.assert_allclose(scaling.offset, labels.mean(), atol=labels.std() / 16)


def test_exact_means_weigh_clients_by_their_points() -> None:
    """Values that the rounding leaves as they are: spreads of 1 about whole numbers."""
    rows = np.array([[-1.0], [1.0]])
    clients = [moments(Shard(rows + middle, np.zeros(2))) for middle in (0.0, 4.0)]
    scaling = agreed_scaling(clients, [3, 1])
    np.testing.assert_allclose(scaling.low, 1.0)
    np.testing.assert_allclose(scaling.span, (1 + 3.0) ** 0.5)


def test_as_given_where_nothing_is_agreed_on() -> None:
    inputs, _ = table(classes=False)
    assert UNSCALED.inputs(inputs) is inputs


@pytest.mark.parametrize("classes", [True, False])
def test_a_federation_of_tables_in_any_units(classes: bool, tmp_path: Path) -> None:
    changes = {"federation.test": str(tmp_path / "nodes" / "test.npz"), "features.sigma": 1.4}
    experiment = changed(experiment_of(CLIENTS, 6, NEWTON).model_dump(), changes, "a test")
    scores = {}
    shards = shards_of(tmp_path / "nodes", classes)
    for scale in (False, True):
        grid = Loopback(tmp_path / f"caches{scale}", shards)
        directory = RunDirectory(tmp_path / f"run{scale}")
        one = changed(experiment.model_dump(), {"federation.scale": scale}, "a test")
        federate(grid, one, directory, lambda _: None)
        scores[scale] = list(Journal(directory.path).exchanges())[-1].record.metric
    assert scores[True] > 0.95
    assert scores[False] < 0.8  # two columns are lost beside the first
    inputs, labels = table(classes)
    model = load_model(tmp_path / "runTrue" / "model.npz")
    predicted = model.predict(model.raw(inputs))
    if classes:
        assert (predicted == labels).mean() > 0.95
    else:
        assert np.abs(predicted - labels).mean() < 0.2 * labels.std()


def test_who_sends_no_means_is_named(tmp_path: Path) -> None:
    def change(client: int, kind: str, answer: Answered) -> Answered:
        facts, arrays = answer
        if kind == "moments" and client == 1:
            arrays = arrays | {"spreads": -arrays["spreads"]}
        return facts, arrays

    grid = Loopback(tmp_path / "c", shards_of(tmp_path / "nodes", True), Script(change=change))
    experiment = experiment_of(CLIENTS, 2, NEWTON, scale=True, test=None)
    with pytest.raises(InputError, match=r"came from node-001 within .* federation\.without"):
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)


def test_a_resumed_federation_keeps_its_scale(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "nodes", True)
    experiment = experiment_of(CLIENTS, 3, NEWTON, scale=True, test=None)
    grid = Loopback(tmp_path / "c", shards)
    grid.crash_after = 6  # greeting, means, probes, parity, a round
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        federate(grid, experiment, directory, lambda _: None)
    members = Journal(directory.path).members()
    assert members is not None
    assert len(members.scaling["low"]) == 4
    grid.crash_after = None
    before = len(grid.kinds("moments"))
    federate(grid, experiment, directory, lambda _: None)
    assert len(grid.kinds("moments")) == before == CLIENTS
    assert directory.checkpoint() is not None
