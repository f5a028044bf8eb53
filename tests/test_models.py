"""Models that stand alone: written, read, refused, and used."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from codedfedl import CodedFedLClassifier, CodedFedLRegressor, InputError, load_dataset, load_model
from codedfedl.federate.server.session import federate
from codedfedl.learning.features import FeatureMap, Tiles, feature_map
from codedfedl.models import Model, save_model
from codedfedl.models.files import FORMAT
from codedfedl.report.reading import RunTables
from codedfedl.runs.directory import RunDirectory
from codedfedl.simulation.experiment import simulate
from tests.conftest import Run
from tests.loopback import experiment_of, transport_of
from tests.virtual import small

KINDS = ("fourier", "structured", "patches", "identity")


def a_model(kind: str = "fourier", inputs: int = 36, outputs: int = 3, **more: Any) -> Model:
    features: FeatureMap = feature_map(kind, 80, 2.0, 5, Tiles(stride=1))
    size = features.size(inputs)
    weights = np.random.default_rng(0).standard_normal((size, outputs)) / size**0.5
    return Model(features, weights, inputs, **more)


POINTS = np.random.default_rng(1).random((50, 36))


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_as_it_was_written(kind: str, tmp_path: Path) -> None:
    model = a_model(
        kind,
        classes=np.array(["cat", "dog", "eel"]),
        columns=tuple(f"pixel {i}" for i in range(36)),
        labels=("animal",),
        low=np.zeros(36),
        span=np.full(36, 2.0),
        center=np.full(36, 0.5),
        temperature=0.3,
        card={"data": "animals"},
    )
    save_model(model, tmp_path / "model.npz")
    read = load_model(tmp_path / "model.npz")
    assert read.features == model.features
    assert (read.columns, read.labels) == (model.columns, model.labels)
    np.testing.assert_array_equal(read.predict(POINTS), model.predict(POINTS))
    np.testing.assert_array_equal(read.predict_proba(POINTS), model.predict_proba(POINTS))
    np.testing.assert_allclose(read.raw(2 * POINTS), POINTS)
    assert read.card["data"] == "animals"
    assert set(read.card["versions"]) == {"codedfedl", "numpy", "python"}
    assert read.card["created"].startswith("20")


def test_outputs_are_the_product_with_the_features() -> None:
    model = a_model(center=np.full(36, 0.5), offset=np.ones(3), scale=np.array([1.0, 2.0, 3.0]))
    expected = model.features.transform(POINTS - 0.5) @ model.weights
    np.testing.assert_allclose(model.predict(POINTS), expected * [1, 2, 3] + 1)
    images = POINTS.reshape(50, 6, 6)
    np.testing.assert_array_equal(model.predict(images), model.predict(POINTS))


def test_one_output_is_a_row_of_numbers() -> None:
    assert a_model(outputs=1).predict(POINTS).shape == (50,)
    assert a_model(outputs=3).predict(POINTS).shape == (50, 3)


def test_no_pickle_is_in_the_file(tmp_path: Path) -> None:
    save_model(a_model(classes=np.array(["a", "b", "c"])), tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as stored:
        assert all(not stored[name].dtype.hasobject for name in stored.files)
    odd = a_model(classes=np.array([1, "a", None], dtype=object))
    with pytest.raises(InputError, match="classes are neither numbers nor words"):
        save_model(odd, tmp_path / "odd.npz")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-200]), "it may be truncated: copy it again"),
        (lambda p: p.write_bytes(b"\x07" * 200), r"it is not an \.npz file; it may be truncated"),
        (lambda p: p.write_bytes(b""), "cannot read .*model.npz"),
        (lambda p: p.write_bytes(b"PK\x03\x04 junk"), "cannot read .*model.npz"),
        (lambda p: np.savez(p, model=np.ones(3)), r"is not a model \(it holds model\)"),
        (lambda p: p.write_bytes(_bare_array()), r"it is not an \.npz file"),
        (lambda p: p.unlink(), "there is no such file"),
        (lambda p: _again(p, format=np.array(99)), f"has the format 99 .* reads format {FORMAT}"),
        (lambda p: _again(p, weights=np.ones((7, 3))), "weights has shape .* has 80 features"),
        (lambda p: _again(p, weights=np.ones((80, 3), int)), "not floating point"),
        (lambda p: _again(p, facts=np.array("{}")), "features is missing"),
        (lambda p: _again(p, facts=np.array("no json")), "facts is 'no json', which no model has"),
    ],
)
def test_what_is_no_model_is_refused(spoil: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    save_model(a_model(), path)
    spoil(path)
    with pytest.raises(InputError, match=said):
        load_model(path)


def _bare_array() -> bytes:
    file = BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def _again(path: Path, **changes: Any) -> None:
    with np.load(path) as stored:
        arrays = dict(stored) | changes
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (np.ones((2, 35)), "inputs has 35 values per point where the model was trained on 36"),
        (np.ones(36), r"inputs has shape \(36,\)"),
        (np.full((1, 36), np.nan), "inputs is not finite"),
        ([["a"] * 36], "holds <U1"),
    ],
)
def test_points_that_do_not_fit_are_refused(points: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        a_model().predict(points)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match="images of 6×6 with 1 channels"):
        a_model("patches").predict(np.ones((2, 8, 8)))


def test_probabilities_are_calibrated() -> None:
    """Labels drawn from a softmax of known temperature give it back.

    20,000 labels determine it up to about 1%; the seed is fixed.
    """
    model = a_model(classes=np.arange(3))
    points = np.random.default_rng(2).random((20_000, 36))
    scores = model.scores(points) / 0.25
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    draws = np.random.default_rng(3).random((20_000, 1))
    labels = (likely.cumsum(axis=1) < draws).sum(axis=1)
    found = model.calibrated(points, labels, "drawn points")
    assert found.temperature == pytest.approx(0.25, rel=0.05)
    assert found.card["calibrated_on"] == "drawn points"
    np.testing.assert_allclose(found.predict_proba(points), likely, atol=0.02)
    with pytest.raises(InputError, match=r"it was not calibrated: call model\.calibrated"):
        model.predict_proba(points)
    with pytest.raises(InputError, match="is a regression and has no probabilities"):
        a_model().predict_proba(points)
    with pytest.raises(InputError, match="labels holds 7"):
        model.calibrated(points[:1], [7], "one point")


def test_a_simulation_leaves_the_model_of_the_lowest_objective(tmp_path: Path) -> None:
    schemes = [
        {"name": "uncoded"},
        {"name": "one-shot"},
        {"name": "one-shot", "features": "patches"},
    ]
    directory = RunDirectory(tmp_path / "run")
    simulate(small(seeds=[3, 4], schemes=schemes), directory)
    paths = [tmp_path / "run" / "model.npz", *(tmp_path / "run" / "models").iterdir()]
    models = [load_model(path) for path in paths]
    assert len(models) == 6
    first = [model.card["objective"] for model in models if model.card["seed"] == 3]
    assert models[0].card["objective"] == min(first)
    dataset = load_dataset("digits")
    finals = {(c.setting, c.seed): c.metric[-1] for c in RunTables(directory).curves}
    for model in models:
        right = (model.predict(dataset.test_inputs) == dataset.test_labels).mean()
        wanted = finals[model.card["setting"], model.card["seed"]]
        assert right == pytest.approx(wanted, abs=1e-6)
        residuals = model.scores(dataset.inputs) - dataset.targets
        value = (residuals**2).sum() / len(residuals) / 2 + 9e-6 / 2 * (model.weights**2).sum()
        assert model.card["objective"] == pytest.approx(value, rel=1e-3)


def test_the_model_of_a_scheme_is_kept(tmp_path: Path, run: Run) -> None:
    simulate(small(), RunDirectory(tmp_path / "run"), model="coded")
    assert load_model(tmp_path / "run" / "model.npz").card["scheme"] == "coded"
    simulate(small(), RunDirectory(tmp_path / "run"), resume=True, model="uncoded")
    assert load_model(tmp_path / "run" / "model.npz").card["setting"] == "uncoded"
    code, _, error = run("simulate", "demo", "--model", "codde", "--out", tmp_path / "other")
    assert code == 2
    assert "--model is 'codde'" in error
    assert not (tmp_path / "other").exists()


def test_files_of_whole_pixels_are_read_as_such(tmp_path: Path, run: Run) -> None:
    """Built-in images are shares of the whitest pixel, which no file has."""
    simulate(small(), RunDirectory(tmp_path / "run"))
    pixels, labels = load_digits(return_X_y=True)
    header = ",".join([f"pixel{i}" for i in range(64)] + ["label"])
    table = np.column_stack([pixels, labels])[:300]
    np.savetxt(tmp_path / "new.csv", table, "%d", ",", header=header, comments="")
    model = tmp_path / "run" / "model.npz"
    code, out, err = run("predict", model, tmp_path / "new.csv", "--json")
    assert code == 0, err
    predicted = np.array(json.loads(out)["predictions"])
    assert (predicted == labels[:300]).mean() > 0.9
    np.testing.assert_array_equal(predicted, load_model(model).predict(pixels[:300] / 16))


def test_a_diverged_model_is_not_kept(tmp_path: Path) -> None:
    training = {"epochs": 200, "step": 1e6, "ridge": 9e-6}
    schemes = [{"name": "uncoded"}, {"name": "one-shot"}]
    simulate(small(schemes=schemes, training=training), RunDirectory(tmp_path / "run"))
    assert load_model(tmp_path / "run" / "model.npz").card["scheme"] == "one-shot"
    assert not (tmp_path / "run" / "models").exists()


def test_a_federation_leaves_its_model(tmp_path: Path) -> None:
    experiment = experiment_of(3, 3, {"name": "coded-newton", "setup_deadline": 2.0, "mixing": 10})
    grid = transport_of(experiment, tmp_path / "nodes")
    federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
    model, dataset = load_model(tmp_path / "run" / "model.npz"), load_dataset("digits")
    right = (model.predict(dataset.test_inputs) == dataset.test_labels).mean()
    assert right == pytest.approx(model.card["test_metric"], abs=1e-6)
    assert right > 0.75
    assert model.card["calibrated_on"] == "the server's 359 test points"
    assert (model.card["clients"], model.card["simulated"]) == (3, False)


def test_estimators_leave_their_models(tmp_path: Path) -> None:
    points, labels = load_digits(return_X_y=True)
    words = np.array(["even", "odd"], dtype=object)[labels % 2]
    classifier = CodedFedLClassifier(n_components=100).fit(points[:800], words[:800])
    classifier.save_model(tmp_path / "model.npz")
    model = load_model(tmp_path / "model.npz")
    assert (model.predict(points[800:]) == classifier.predict(points[800:])).all()
    assert model.predict_proba(points[:5]).sum(axis=1) == pytest.approx(np.ones(5))
    regressor = CodedFedLRegressor(n_components=100).fit(points[:800], points[:800, :2] * 7 + 3)
    regressor.save_model(tmp_path / "numbers.npz")
    found = load_model(tmp_path / "numbers.npz").predict(points[800:])
    np.testing.assert_allclose(found, regressor.predict(points[800:]))


class TestPredict:
    """The command."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        """Three kinds of flowers far from [0, 1], with words as classes."""
        random = np.random.default_rng(0)
        kinds = np.arange(300) % 3
        rows = random.normal(kinds[:, None] * [5, -3, 100], 1.0, (300, 3)) + 1000
        names = np.array(["aster", "lily", "rose"])[kinds]
        lines = [
            ",".join(f"{x:.4f}" for x in row) + f",{name}"
            for row, name in zip(rows, names, strict=True)
        ]
        path = tmp_path / "flowers.csv"
        path.write_text("\n".join(["height,width,weight,kind", *lines]) + "\n")
        return path

    @pytest.fixture
    def model(self, table: Path, tmp_path: Path) -> Path:
        data = {"name": str(table), "label": "kind", "batches": 1}
        simulate(small(data=data, schemes=[{"name": "one-shot"}]), RunDirectory(tmp_path / "run"))
        return tmp_path / "run" / "model.npz"

    def test_columns_are_found_by_name(
        self, table: Path, model: Path, tmp_path: Path, run: Run
    ) -> None:
        """In any order, with others between them, scaled as the training data were."""
        header, *lines = table.read_text().splitlines()
        cells = [line.split(",") for line in [header, *lines[:60]]]
        shuffled = tmp_path / "new.csv"
        shuffled.write_text("\n".join(",".join([w, "x" * 3, k, h, g]) for h, g, w, k in cells))
        code, out, error = run("predict", model, shuffled, "--json", "--out", tmp_path / "p.csv")
        assert code == 0, error
        found = json.loads(out)
        assert found["accuracy"] > 0.95
        assert found["predictions"][:3] == ["aster", "lily", "rose"]
        written = (tmp_path / "p.csv").read_text().replace('"', "").split()
        assert written[:3] == ["prediction", "aster", "lily"]

    def test_labels_may_be_missing(
        self, table: Path, model: Path, tmp_path: Path, run: Run
    ) -> None:
        lines = [line.rsplit(",", 1)[0] for line in table.read_text().splitlines()]
        (tmp_path / "new.csv").write_text("\n".join(lines))
        code, out, _ = run("predict", model, tmp_path / "new.csv", "--json", "--probabilities")
        found = json.loads(out)
        assert (code, found["accuracy"], found["points"]) == (0, None, 300)
        assert found["calibrated_on"] == "240 of the training points"
        assert np.array(found["probabilities"]).sum(axis=1) == pytest.approx(np.ones(300))

    def test_a_missing_column_is_named(self, model: Path, tmp_path: Path, run: Run) -> None:
        (tmp_path / "new.csv").write_text("height,widht,weight\n1,2,3\n")
        code, _, error = run("predict", model, tmp_path / "new.csv")
        assert code == 2
        assert "has no column 'width'" in error

    def test_built_in_data(self, tmp_path: Path, run: Run) -> None:
        directory = RunDirectory(tmp_path / "run")
        simulate(small(schemes=[{"name": "one-shot"}]), directory)
        final = RunTables(directory).curves[0].metric[-1]
        code, out, _ = run("predict", tmp_path / "run" / "model.npz", "digits", "--json")
        assert code == 0
        assert json.loads(out)["accuracy"] == pytest.approx(final, abs=1e-6)

    def test_vectors_are_predicted(self, tmp_path: Path, run: Run) -> None:
        experiment = small(data={"name": "digits-halves"}, schemes=[{"name": "one-shot"}])
        simulate(experiment, RunDirectory(tmp_path / "run"))
        dataset = load_dataset("digits-halves")
        np.savez(tmp_path / "new.npz", inputs=dataset.test_inputs, labels=dataset.test_labels)
        path = tmp_path / "run" / "model.npz"
        code, out, _ = run("predict", path, tmp_path / "new.npz", "--json")
        found = json.loads(out)
        assert code == 0
        assert found["accuracy"] is None
        assert found["r_squared"] == pytest.approx(load_model(path).card["test_metric"], abs=1e-5)
        assert np.shape(found["predictions"]) == dataset.test_labels.shape
        code, out, _ = run("predict", path, tmp_path / "new.npz", "--out", tmp_path / "p.parquet")
        assert code == 0
        assert "R² " in out

    def test_other_files_are_refused(self, model: Path, table: Path, run: Run) -> None:
        code, _, error = run("predict", table, table)
        assert code == 2
        assert "cannot read" in error
        code, _, error = run("predict", model, "digits", "--json")
        assert code == 2
        assert "64 values per point where the model was trained on 3" in error
        code, _, error = run("predict", model, "flowers.txt")
        assert code == 2
        assert "neither a file that ends in .npz" in error


@pytest.mark.extras
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [np.arange(3), None], ids=["classes", "numbers"])
def test_onnx_gives_the_same_scores(kind: str, classes: Any, tmp_path: Path, run: Run) -> None:
    runtime = pytest.importorskip("onnxruntime")
    more: dict[str, Any] = {"classes": classes, "center": np.full(36, 0.2)}
    if classes is None:
        more |= {"offset": np.array([1.0, 2.0, 3.0]), "scale": np.array([0.5, 1.0, 2.0])}
    model = a_model(kind, **more)
    save_model(model, tmp_path / "model.npz")
    code, _, error = run("export", tmp_path / "model.npz", "--out", tmp_path / "model.onnx")
    assert code == 0, error
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    scores, *label = session.run(None, {"inputs": POINTS.astype(np.float32)})
    np.testing.assert_allclose(scores, model.scores(POINTS), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["card"])["versions"]
    if classes is not None:
        np.testing.assert_array_equal(label[0], model.predict(POINTS))
