"""Tables as they come: roles of columns, categories, missing values, and who is held out."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl import load_dataset, load_model
from codedfedl.api import simulate
from codedfedl.data.partitions import Split
from codedfedl.data.shards import read_shard
from codedfedl.data.tabular import LIMIT, Preparation, TableColumn, read_preparation
from codedfedl.errors import InputError
from codedfedl.federate.server.session import federate
from codedfedl.io.tables import write_table
from codedfedl.learning.features import Semilinear, Structured
from codedfedl.models.onnx import export_onnx
from codedfedl.reproduce.natural import FLEETS, SPLITS
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import read_experiment
from codedfedl.runs.grid import cells
from codedfedl.simulation.units import datasets, units
from tests.conftest import Run
from tests.loopback import Loopback

WORDS = ("blue", "green", "red")


def ward_table(path: Path, rows: int = 240, **more: Any) -> Path:
    """Write patients of four wards, with words, gaps and a label that follows from both."""
    rng = np.random.default_rng(3)
    ward = np.array(["north", "east", "south", "west"])[rng.integers(4, size=rows)]
    colour, age = rng.choice(WORDS, rows), rng.normal(60, 12, rows)
    dose = rng.lognormal(size=rows)
    sick = (colour == "red") * 2.0 + (age - 60) / 12 + rng.normal(0, 0.3, rows) > 0.7
    written = np.where(rng.random(rows) < 0.2, "", dose.round(3).astype(str))
    columns: dict[str, Any] = {"ward": ward, "age": age.round(1), "colour": colour, "dose": written}
    write_table(path, columns | more | {"label": np.where(sick, "yes", "no")})
    return path


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    return ward_table(tmp_path / "wards.csv")


PREPARATION = Preparation(
    (
        TableColumn("age", low=60.0, span=12.0, fill=60.0),
        TableColumn("colour", ("blue", "red"), other=True),
        TableColumn("dose", low=1.0, span=0.5, fill=1.0, indicator=True),
    )
)


class TestPreparation:
    def test_rows_by_hand(self) -> None:
        rows = [[66, "red", 1.5], ["30", " teal ", None], [1e300, "blue", "NA"]]
        expected = [
            [0.5, 0, 1, 0, 1, 0],
            [-2.5, 0, 0, 1, 0, 1],
            [LIMIT, 1, 0, 0, 0, 1],
        ]
        np.testing.assert_allclose(PREPARATION.rows(np.array(rows, dtype=object)), expected)

    def test_a_word_among_numbers_is_named(self) -> None:
        with pytest.raises(InputError, match="row 1: age is 'old': write a finite number"):
            PREPARATION.rows([["old", "red", "1"]])
        with pytest.raises(InputError, match="the 3 columns age, colour, dose"):
            PREPARATION.rows([[1.0, 2.0]])

    def test_a_file_has_all_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "preparation.json"
        PREPARATION.write(path)
        assert read_preparation(path) == PREPARATION
        path.write_text(path.read_text().replace("12.0", "0.0"))
        with pytest.raises(InputError, match="a span above 0"):
            read_preparation(path)

    def test_constants_come_from_training_rows_alone(self, tmp_path: Path) -> None:
        """Moving a test row moves nothing; the mean and the spread are those of training rows."""
        data = load_dataset(ward_table(tmp_path / "t.csv"), drop=["ward"])
        assert data.origin.preparation is not None
        columns = {column.name: column for column in data.origin.preparation.columns}
        assert columns["colour"].words == WORDS
        assert not columns["age"].indicator
        assert columns["dose"].indicator
        ages = data.inputs[:, 0].astype(np.float64)
        np.testing.assert_allclose([ages.mean(), ages.std()], [0, 1], atol=1e-2)

    def test_rare_words_share_an_input(self, tmp_path: Path) -> None:
        ward_table(tmp_path / "t.csv", code=[f"rare{k % 60}" for k in range(120)] + ["usual"] * 120)
        data = load_dataset(tmp_path / "t.csv", columns=["code"])
        assert data.origin.preparation is not None
        assert data.origin.preparation.columns == (TableColumn("code", ("usual",), other=True),)


class TestRoles:
    def test_every_row_keeps_its_client(self, wards: Path) -> None:
        data = load_dataset(wards, client="ward")
        assert data.clients is not None
        assert data.owners is not None
        assert data.clients.tolist() == ["east", "north", "south", "west"]
        assert len(data.owners) == len(data.inputs)
        left_out = load_dataset(wards, client="ward", test="clients")
        assert left_out.clients is not None
        assert len(left_out.clients) == 3

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({"client": "wart"}, "no column of clients 'wart': did you mean 'ward'"),
            ({"drop": ["aged"]}, r"data\.drop names, 'aged': did you mean 'age'"),
            ({"columns": ["age", "label"]}, "data.columns names 'label', which holds labels"),
            ({"columns": ["age"], "drop": ["age"]}, "both name 'age'"),
            ({"task": "regression"}, "'regression', and .* has words in 'label'"),
            ({"test": "clients"}, "name their column in data.client"),
            ({"text": "colour", "client": "ward"}, "data.client is 'ward', which is for a .csv"),
        ],
    )
    def test_what_is_refused(self, wards: Path, how: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_dataset(wards, **how)

    def test_dates_are_refused_with_the_remedy(self, tmp_path: Path) -> None:
        days = np.datetime64("2024-01-01") + np.arange(240)
        for name in ("t.csv", "t.parquet"):
            path = ward_table(tmp_path / name, day=days)
            with pytest.raises(InputError, match=r"day holds dates.*data\.drop = \['day'\]"):
                load_dataset(path)
            assert load_dataset(path, drop=["day"]).inputs.shape[1] == 10

    def test_whole_numbers_with_many_values_are_asked_about(self, tmp_path: Path) -> None:
        path = ward_table(tmp_path / "t.csv", beds=np.arange(240) % 60)
        with pytest.raises(
            InputError, match=r"beds holds 60 different whole numbers, from 0 to 59"
        ):
            load_dataset(path, label="beds")
        assert load_dataset(path, label="beds", task="classification").classes == 60
        assert load_dataset(path, label="beds", task="regression").classes is None

    def test_classes_need_not_begin_at_0(self, tmp_path: Path) -> None:
        path = ward_table(tmp_path / "t.csv", grade=np.arange(240) % 3 - 1)
        data = load_dataset(path, label="grade")
        assert data.origin.classes == ("-1", "0", "1")

    def test_names_are_left_out_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        more: dict[str, Any] = {
            "id": np.arange(240) + 1000,
            "name": [f"patient {k}" for k in range(240)],
        }
        path = ward_table(tmp_path / "t.csv", **more)
        with caplog.at_level(logging.WARNING):
            data = load_dataset(path, client="ward")
        assert data.origin.columns == ("age", "colour", "dose")
        assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
            f"{name} is left out, since it has another value on every row, like an id; to keep it, "
            "list all inputs in data.columns"
            for name in more
        ]
        caplog.clear()
        kept = load_dataset(path, client="ward", columns=["id", "age"])
        assert kept.origin.columns == ("id", "age")
        assert not caplog.records


@given(st.lists(st.integers(0, 3), min_size=20, max_size=80).map(np.array), st.integers(0, 9))
def test_every_point_is_held_out_in_one_fold_at_most(
    strata: npt.NDArray[np.int64], seed: int
) -> None:
    folds = [Split("points", 0.2, seed, fold).rows("t", strata) for fold in range(4)]
    assert np.sum(folds, axis=0).max() == 1
    owners = (strata + 1).astype(str)
    for fold in folds[:1] * (len(set(owners)) > 1):
        test = Split("clients", 0.2, seed).rows("t", fold.astype(int), owners)
        assert not set(owners[test]) & set(owners[~test])
        assert 0 < test.sum() < len(test)


def test_semilinear_features_are_a_line_and_waves() -> None:
    points = np.random.default_rng(0).normal(size=(50, 6))
    features = Semilinear(32, 2.0, 1)
    mapped = features.transform(points)
    assert mapped.shape == (50, features.size(6))
    np.testing.assert_allclose(mapped[:, :32], Structured(32, 2.0, 1).transform(points))
    line = points / (2 * 2**0.5)
    lengths = np.linalg.norm(line, axis=1, keepdims=True)
    np.testing.assert_allclose(mapped[:, 32:38], line * np.minimum(1, 2 / lengths))
    assert (mapped[:, 38] == 1).all()
    assert ((mapped**2).sum(axis=1) <= features.largest_square).all()


class TestRuns:
    def run(self, table: Path, **more: Any) -> Path:
        data = {"name": str(table), "client": "ward"}
        out = table.parent / str(more.pop("out", "run"))
        document = {"data": data | more.pop("data", {}), "schemes": [{"name": "one-shot"}], **more}
        simulate(document, out=out)
        return out

    def test_three_keys_suffice(self, wards: Path) -> None:
        model = load_model(self.run(wards) / "model.npz")
        assert model.card["test_metric"] > 0.85
        assert model.columns == ("age", "colour", "dose")
        again = model.raw(np.array([["72.5", "red", ""], ["", "teal", "0.4"]]))
        assert model.predict(again)[0] == "yes"

    def test_the_fleet_has_the_clients_of_the_column(self, wards: Path, tmp_path: Path) -> None:
        with pytest.raises(
            InputError, match=r"fleet.clients is 7, and data.client names 4 clients"
        ):
            self.run(wards, fleet={"clients": 7})
        fleet = tmp_path / "fleet.csv"
        rates: dict[str, Any] = {"rate": np.arange(1, 6), "points": np.ones(5)}
        rates |= {name: np.full(5, 0.1) for name in ("alpha", "packet_time", "erasure")}
        write_table(fleet, {"client": ["west", "north", "east", "south", "other"]} | rates)
        cells = json.loads((self.run(wards, fleet={"name": str(fleet)}) / "cells.json").read_text())
        assert cells[0]["fleet"] == str(fleet)
        write_table(fleet, {"client": list("abcde")} | rates)
        with pytest.raises(InputError, match="the data name the client 'east', which is not in"):
            self.run(wards, fleet={"name": str(fleet)}, out="other")

    def test_a_tables_own_defaults(self, wards: Path) -> None:
        chosen = Experiment.model_validate({"data": {"name": str(wards)}})
        assert (chosen.features.kind, chosen.ridge(200)) == ("semilinear", 1 / 200)
        assert (Experiment().features.kind, Experiment().ridge(200)) == ("structured", 1e-4)

    @pytest.mark.extras
    def test_onnx_takes_raw_columns(self, wards: Path, tmp_path: Path) -> None:
        runtime = pytest.importorskip("onnxruntime")
        model = load_model(self.run(wards) / "model.npz")
        export_onnx(model, tmp_path / "model.onnx")
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        assert json.loads(session.get_modelmeta().custom_metadata_map["columns"]) == {
            "inputs": ["age", "dose"],
            "words": ["colour"],
        }
        numbers = np.array([[72.5, np.nan], [np.nan, 0.4]], np.float32)
        words = np.array([["red"], ["teal"]], dtype=object)
        scores, _ = session.run(None, {"inputs": numbers, "words": words})
        raw = np.array([[72.5, "red", None], [None, "teal", 0.4]], dtype=object)
        np.testing.assert_allclose(np.asarray(scores), model.scores(model.raw(raw)), atol=1e-5)


class TestFederations:
    def test_a_split_gives_every_node_what_the_simulation_has(
        self, wards: Path, tmp_path: Path, run: Run
    ) -> None:
        toml, out = tmp_path / "wards.toml", tmp_path / "federation"
        toml.write_text(f'data.name = "{wards}"\ndata.client = "ward"\n')
        code, printed, error = run("federate", "split", toml, "--out", out, "--json")
        assert code == 0, error
        data = load_dataset(wards, client="ward")
        assert data.owners is not None
        for name, points in json.loads(printed)["clients"].items():
            shard = read_shard(out / f"{name}.csv", preparation=out / "preparation.json")
            assert len(shard.labels) == points
            np.testing.assert_array_equal(shard.inputs, data.inputs[data.owners == name])
            np.testing.assert_array_equal(shard.labels, data.labels[data.owners == name])
        experiment = read_experiment(out / "federation.toml")
        assert experiment.federation is not None
        assert experiment.ridge(7) == 1 / len(data.inputs)
        test = read_shard(str(experiment.federation.test), preparation=out / "preparation.json")
        np.testing.assert_array_equal(test.inputs, data.test_inputs)
        (out / "east.csv").write_text((out / "east.csv").read_text().replace("yes", "maybe"))
        with pytest.raises(InputError, match="label 'maybe', and the federation's classes are no"):
            read_shard(out / "east.csv", preparation=out / "preparation.json")

    def test_a_federation_trains_on_its_split(self, wards: Path, tmp_path: Path, run: Run) -> None:
        """From a table with words and gaps to a model of raw columns; nodes have constants only."""
        toml, out = tmp_path / "wards.toml", tmp_path / "federation"
        toml.write_text(f'data.name = "{wards}"\ndata.client = "ward"\n')
        assert run("federate", "split", toml, "--out", out)[0] == 0
        limits = {"rounds": 4, "probes": 2, "deadline": 0.8}
        changes: dict[str, Any] = {f"federation.{key}": value for key, value in limits.items()}
        experiment = read_experiment(out / "federation.toml", changes)
        assert experiment.federation is not None
        shards = [out / f"{name}.csv" for name in experiment.federation.points]
        grid = Loopback(tmp_path / "nodes", shards)
        grid.preparation = out / "preparation.json"
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
        model = tmp_path / "run" / "model.npz"
        _, printed, _ = run(
            "predict", model, out / "test.csv", "--out", tmp_path / "p.csv", "--json"
        )
        test = read_shard(out / "test.csv", preparation=out / "preparation.json")
        most_frequent = np.bincount(test.labels.astype(int)).max() / len(test.labels)
        assert json.loads(printed)["accuracy"] > most_frequent + 0.1

    def test_only_tables_with_clients_are_split(self, tmp_path: Path, run: Run) -> None:
        (tmp_path / "t.toml").write_text('data.name = "digits"\n')
        code, _, error = run("federate", "split", tmp_path / "t.toml")
        assert code == 2
        assert "has no table with data.client" in error


@pytest.mark.slow
def test_natural_federations_are_reproduced(tmp_path: Path, run: Run) -> None:
    """On a table of the form of one of the sets, with what it has beside each scheme's result."""
    table = ward_table(tmp_path / "heart.csv", hospital=np.arange(240) % 4)
    table.write_text(table.read_text().replace("label", "disease", 1))
    out = ("--out", tmp_path / "runs", "--data", tmp_path, "--seeds", "1", "--json")
    code, printed, error = run("reproduce", "natural", *out)
    assert code == 0, error
    document = json.loads(printed)
    assert document["skipped"] == ["wisdm", "parkinson"]
    rows = [row for row in document["rows"] if row["scheme"] == "one-shot"]
    assert {(row["split"], row["fleet"]) for row in rows} == {
        (split, fleet) for split in SPLITS for fleet in FLEETS
    }
    for row in document["rows"]:
        if row["scheme"] == "one-shot":
            assert row["final"][0] > row["baselines"]["pooled_linear"] - 0.1
        assert row["pooled"] == max(row["baselines"].values())


def test_the_ridge_is_for_new_clients_where_clients_are_held_out(tmp_path: Path) -> None:
    """Inputs that name a client predict its label, which says nothing of the next client."""
    rng = np.random.default_rng(3)
    owners = np.repeat(np.arange(12), 20)
    inputs = np.column_stack([rng.normal(size=(12, 6))[owners], rng.normal(size=(240, 2))])
    labels = rng.normal(size=12)[owners] + 0.3 * inputs[:, 6]
    columns = {f"x{k}": inputs[:, k] for k in range(8)}
    write_table(tmp_path / "t.csv", {**columns, "who": owners.astype(str), "label": labels})
    data = {"name": str(tmp_path / "t.csv"), "client": "who"}
    ridges = {}
    for test in ("points", "clients"):
        experiment = Experiment.model_validate({"data": data | {"test": test}})
        chosen = cells(experiment)
        (unit,) = units(chosen, [0], datasets(chosen, None))
        ridges[test] = unit.contenders()[0].task.ridge
        assert unit.ridge(chosen[0]) == ridges[test]
    assert ridges["points"] == pytest.approx(1 / 192)
    assert ridges["clients"] > 2 / 200


class TestNew:
    @pytest.mark.parametrize("goal", ["simulate", "compare", "federate"])
    def test_the_experiment_runs(self, wards: Path, tmp_path: Path, run: Run, goal: str) -> None:
        toml, given = tmp_path / "new.toml", ("--data", wards, "--client", "ward", "--goal", goal)
        code, _, error = run("new", toml, *given)
        assert code == 0, error
        experiment = read_experiment(toml)
        assert experiment.data.label == "label"  # the last column
        assert experiment.clients(experiment.data.load()) == 4
        assert len(experiment.schemes) == (4 if goal == "compare" else 1)
        code, _, error = run("new", toml, *given)
        assert code == 2
        assert "exists" in error

    def test_what_would_fail_later_is_refused(self, wards: Path, tmp_path: Path, run: Run) -> None:
        out = tmp_path / "new.toml"
        for option, value, message in (
            ("--label", "lable", "has no column 'lable'"),
            ("--fleet", "papre", "did you mean 'paper'"),
        ):
            code, _, error = run("new", out, "--data", wards, option, value)
            assert code == 2
            assert message in error
            assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fleet]\nseeds = [0]\n", "seeds is a top-level key: move it above the first table"),
        ("epochs = 3\n", "epochs belongs to a table: write training.epochs"),
        ('[fleet]\nclient = "a"\n', "client belongs to another table: write data.client"),
        ("[training]\nredundancy = 0.1\n", "redundancy is a setting of schemes: write it in"),
        ('[[schemes]]\nname = "coded"\ntarget = 0.9\n', "write training.target"),
        ('[schemes]\nname = "coded"\n', r"write \[\[schemes\]\] above each"),
    ],
)
def test_a_key_in_the_wrong_table(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_experiment(tmp_path / "t.toml")


def test_resuming_with_another_setting_names_it(wards: Path) -> None:
    document: dict[str, Any] = {"data": {"name": str(wards)}, "schemes": [{"name": "one-shot"}]}
    simulate(document, out=wards.parent / "run")
    with pytest.raises(InputError, match=r"with training.epochs = 100, not 7: resume it with"):
        simulate(document | {"training": {"epochs": 7}}, out=wards.parent / "run", resume=True)
