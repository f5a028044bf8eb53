"""Clients agree on a scale by sums: the same as if all points lay in one place."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import load_model
from codedfedl.data.scaling import UNSCALED, Scaling, agreed_means, agreed_spreads, moments
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.server import federate
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


def test_sums_say_the_means_and_spreads_of_all_points() -> None:
    inputs, labels = table(classes=False)
    parts = [Shard(inputs[rows], labels[rows]) for rows in np.array_split(np.arange(600), CLIENTS)]
    points = [len(part.inputs) for part in parts]
    low, offset = agreed_means([moments(part) for part in parts], points)
    span = agreed_spreads([moments(part, low) for part in parts], points)
    np.testing.assert_allclose(low, inputs.mean(0), rtol=1e-12)
    np.testing.assert_allclose(span[:3], inputs.std(0)[:3], rtol=1e-9)
    assert span[3] == 1.0
    np.testing.assert_allclose(offset, labels.mean())
    scaled = Scaling(low.tolist(), span.tolist(), offset.tolist()).inputs(inputs)
    np.testing.assert_allclose(scaled.std(0)[:3], 1.0, rtol=1e-6)
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


def test_who_tells_no_sums_is_named(tmp_path: Path) -> None:
    def change(client: int, kind: str, answer: Answered) -> Answered:
        facts, arrays = answer
        if kind == "moments" and client == 1:
            arrays = arrays | {"squares": -arrays["squares"]}
        return facts, arrays

    grid = Loopback(tmp_path / "c", shards_of(tmp_path / "nodes", True), Script(change=change))
    experiment = experiment_of(CLIENTS, 2, NEWTON, scale=True, test=None)
    with pytest.raises(InputError, match=r"came from node-001 within .* federation\.without"):
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)


def test_a_resumed_federation_keeps_its_scale(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "nodes", True)
    experiment = experiment_of(CLIENTS, 3, NEWTON, scale=True, test=None)
    grid = Loopback(tmp_path / "c", shards)
    grid.crash_after = 7  # greeting, two times sums, probes, parity, a round
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        federate(grid, experiment, directory, lambda _: None)
    members = Journal(directory.path).members()
    assert members is not None
    assert len(members.scaling["low"]) == 4
    grid.crash_after = None
    before = len(grid.kinds("moments"))
    federate(grid, experiment, directory, lambda _: None)
    assert len(grid.kinds("moments")) == before == 2 * CLIENTS
    assert directory.checkpoint() is not None
