"""Frozen encoders: what they compute, what they cost, and that all clients have the same one."""

import json
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
from sklearn.pipeline import Pipeline, make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

from codedfedl import CodedFedLClassifier, load_dataset, load_model, simulate
from codedfedl.data.shards import Shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.deploy.local import write_shards
from codedfedl.federate.job import Job
from codedfedl.federate.node.cache import Cache
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.learning.features import Encoder, fingerprint, load_encoder, safe_step, same_map
from codedfedl.models import Model, save_model
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.simulation.replay import replay
from tests import encoders
from tests.conftest import Run
from tests.loopback import Loopback

LETTERS = "tests.encoders:letters"
WORDS = {
    "sea": ["wave", "salt", "tide", "foam", "ship", "sail", "fish", "reef"],
    "kitchen": ["knife", "bake", "cook", "oven", "cake", "milk", "pork", "leek"],
    "court": ["judge", "jury", "plea", "quiz", "verdict", "oath", "appeal", "juror"],
}
POINTS = 240


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    encoders.CALLS.clear()


def texts_and_labels(points: int = POINTS) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(5)
    labels = [list(WORDS)[number] for number in random.integers(0, 3, points)]
    return [", ".join(random.choice(WORDS[label], 4)) for label in labels], labels


def a_table(folder: Path) -> Path:
    path = folder / "notes.csv"
    lines = [
        f'{n},"{text}",{label}'
        for n, (text, label) in enumerate(zip(*texts_and_labels(), strict=True))
    ]
    path.write_text("\n".join(["number,note,label", *lines]), "utf-8")
    return path


def an_experiment(table: Path, **more: Any) -> dict[str, Any]:
    features = {"kind": "encoder", "encoder": LETTERS, "operations": 500} | more.pop("features", {})
    return {
        "data": {"name": str(table), "text": "note"},
        "fleet": {"clients": 4},
        "features": features,
        "schemes": [{"name": "one-shot"}],
        **more,
    }


class TestEncoder:
    def test_embeddings_have_length_1_and_zeros_stay(self) -> None:
        points = np.array([["abba"], ["!?"]])
        found = load_encoder(LETTERS, text=True).transform(points)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[0, :3], [2**-0.5, 2**-0.5, 0], rtol=1e-6)
        assert not found[1].any()

    def test_without_normalising_the_function_is_all(self) -> None:
        points = np.random.default_rng(0).random((600, 5))  # more than are encoded at once
        encoder = load_encoder("tests.encoders:squares", normalise=False)
        wanted = np.hstack([points, points**2]).astype(np.float32)
        np.testing.assert_array_equal(encoder.transform(points), wanted)
        assert encoder.size(5) == 10

    @pytest.mark.parametrize(
        ("source", "points", "message"),
        [
            ("tests.encoders:too_few", ["a", "b"], r"shape \(1, 26\) for 2 points"),
            ("tests.encoders:nothing_for_empty", ["a", ""], r"not finite for \[''\]"),
            ("tests.encoders:fails", ["a"], r"fails' failed \(KeyError: 'weights'\)"),
            ("tests.encoders:squares", ["a"], "fails|failed"),
            ("tests.encoders:NUMBER", ["a"], "is not a function"),
            ("tests.encoders:absent", ["a"], "is not a function"),
            ("tests.nowhere:letters", ["a"], "cannot be imported"),
            ("letters", ["a"], "name an .onnx file, or module:function"),
            ("network.onnx", ["a"], "gets texts: wrap it and its tokeniser"),
        ],
    )
    def test_what_is_refused(self, source: str, points: list[str], message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_encoder(source, text=True).transform(np.array(points)[:, None])

    def test_texts_and_numbers_are_told_apart(self) -> None:
        with pytest.raises(InputError, match="takes texts, and the data are numbers"):
            load_encoder(LETTERS, text=True).transform(np.ones((2, 3)))
        with pytest.raises(InputError, match="takes numbers, and the data are texts"):
            load_encoder("tests.encoders:squares").transform(np.array([["a"]]))

    def test_operations_are_said(self) -> None:
        assert load_encoder(LETTERS, text=True, operations=77).macs(1) == 77
        with pytest.raises(InputError, match="features.operations is not given"):
            load_encoder(LETTERS, text=True).macs(1)

    def test_the_safe_step_knows_the_length(self) -> None:
        points = np.random.default_rng(0).random((40, 3))
        encoder = load_encoder("tests.encoders:squares")
        assert safe_step(encoder, 0.25) == 0.8
        raw = replace(encoder, normalise=False)
        largest = (np.hstack([points, points**2]) ** 2).sum(axis=1).max()
        assert safe_step(raw, 0.0, points) == pytest.approx(1 / largest, rel=1e-6)


class TestFingerprint:
    def test_it_is_of_what_is_computed(self) -> None:
        names = ("letters", "nearly_letters", "other_letters")
        own, near, other = (
            fingerprint(load_encoder(f"tests.encoders:{name}", text=True), 1) for name in names
        )
        assert same_map(own, near)
        assert not same_map(own, other)
        assert not same_map(own, own[:2])
        assert own[0] == 26

    def test_normalising_is_part_of_it(self) -> None:
        encoder = load_encoder("tests.encoders:squares")
        raw = replace(encoder, normalise=False)
        assert not same_map(fingerprint(encoder, 4), fingerprint(raw, 4))


class TestCache:
    def test_points_are_encoded_once(self) -> None:
        points = np.array(texts_and_labels(50)[0])[:, None]
        encoder = load_encoder(LETTERS, text=True)
        first = encoder.remembered(points)
        np.testing.assert_array_equal(first, encoder.transform(points))
        encoders.CALLS.clear()
        np.testing.assert_array_equal(encoder.remembered(points), first)
        assert 50 not in encoders.CALLS  # the probes alone

    def test_other_points_and_settings_are_other_embeddings(self) -> None:
        points = np.array(texts_and_labels(50)[0])[:, None]
        encoder = load_encoder(LETTERS, text=True)
        ones = encoder.remembered(points)
        assert not np.array_equal(encoder.remembered(points[::-1]), ones)
        np.testing.assert_allclose(encoder.remembered(points[::-1]), ones[::-1])
        raw = load_encoder(LETTERS, text=True, normalise=False)
        assert raw.remembered(points).max() > 1

    def test_a_cache_that_cannot_be_used_is_not_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = np.array(texts_and_labels(50)[0])[:, None]
        encoder = load_encoder(LETTERS, text=True)
        wanted = encoder.transform(points)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (tmp_path / "file").write_text("not a folder", "utf-8")
        np.testing.assert_array_equal(encoder.remembered(points), wanted)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        encoder.remembered(points)
        (kept,) = (tmp_path / "cache").rglob("*.npy")
        kept.write_bytes(b"broken")
        np.testing.assert_array_equal(encoder.remembered(points), wanted)

    def test_a_run_of_several_seeds_encodes_once(self, tmp_path: Path) -> None:
        """Of 240 points 48 are for tests: each part is encoded in one go, for all seeds."""
        simulate(an_experiment(a_table(tmp_path), seeds=[0, 1, 2]))
        assert sum(calls in (192, 48) for calls in encoders.CALLS) == 2


class TestData:
    def test_a_table_has_texts_in_one_column(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.csv"
        path.write_text('note,rest,label\n"a, b\nc",1,x\nd,no number,y\ne,3,x\nf,4,y\n', "utf-8")
        found = load_dataset(path, text="note", test_share=0.5)
        assert found.is_text
        assert sorted([*found.inputs[:, 0], *found.test_inputs[:, 0]]) == ["a, b\nc", "d", "e", "f"]
        assert found.origin.columns == ("note",)
        assert found.input_bits == 8 * np.mean([len(text) for text in found.inputs[:, 0]])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nota", "has no column of texts 'nota': did you mean 'note'"),
            ("empty", "line 3: empty is empty: write a text"),
        ],
    )
    def test_what_is_refused_in_a_table(self, text: str, message: str, tmp_path: Path) -> None:
        path = tmp_path / "notes.csv"
        path.write_text("note,empty,label\na,b,0\nc,,1\n", "utf-8")
        for read in (load_dataset, read_shard):
            with pytest.raises(InputError, match=message):
                read(path, text=text)

    def test_arrays_of_texts_are_asked_for(self, tmp_path: Path) -> None:
        texts, labels = texts_and_labels(20)
        np.savez(tmp_path / "notes.npz", inputs=texts, labels=labels)
        assert load_dataset(tmp_path / "notes.npz", text="note").inputs.shape == (16, 1)
        with pytest.raises(InputError, match="inputs holds texts: say data.text"):
            load_dataset(tmp_path / "notes.npz")
        with pytest.raises(InputError, match="only a .csv, .parquet or .npz file has texts"):
            load_dataset("digits", text="note")

    def test_other_features_refuse_texts(self, tmp_path: Path) -> None:
        table = a_table(tmp_path)
        with pytest.raises(InputError, match="'fourier', which takes numbers: choose"):
            simulate(an_experiment(table, features={"kind": "fourier"}))
        with pytest.raises(InputError, match="scheme 'cfl' trains on raw numbers"):
            simulate(an_experiment(table, schemes=[{"name": "cfl"}]))
        with pytest.raises(InputError, match="name an .onnx file or module:function in"):
            check({"features": {"kind": "encoder"}}, "a test").feature_map(
                0, Experiment().schemes[0]
            )


class TestSimulation:
    def test_it_trains_as_on_embeddings_that_were_made_before(self, tmp_path: Path) -> None:
        table = a_table(tmp_path)
        data = load_dataset(table, text="note")
        encoder = load_encoder(LETTERS, text=True)
        np.savez(
            tmp_path / "made.npz",
            inputs=encoder.transform(data.inputs),
            labels=data.labels,
            test_inputs=encoder.transform(data.test_inputs),
            test_labels=data.test_labels,
        )
        before = {"data": {"name": str(tmp_path / "made.npz")}, "features": {"kind": "identity"}}
        schemes = [{"name": "one-shot"}, {"name": "uncoded"}]
        more = {"schemes": schemes, "training": {"step": 0.9, "epochs": 5}}
        simulate(an_experiment(table, **more), tmp_path / "texts")
        simulate(an_experiment(table, **more) | before, tmp_path / "numbers")
        for name in ("model.npz", "models/uncoded-seed-0.npz"):
            ours = load_model(tmp_path / "texts" / name, LETTERS)
            other = load_model(tmp_path / "numbers" / name)
            np.testing.assert_array_equal(ours.weights, other.weights)

    def test_operations_take_time_in_the_set_up_alone(self, tmp_path: Path) -> None:
        table = a_table(tmp_path)
        schemes = [{"name": "uncoded"}]
        free, dear = (
            simulate(an_experiment(table, features={"operations": n}, schemes=schemes))[0].seeds[0]
            for n in (0, 10**7)
        )
        np.testing.assert_array_equal(free.training_hours, dear.training_hours)
        extra = dear.total_hours - free.total_hours
        assert extra[-1] > 0
        np.testing.assert_allclose(extra, extra[-1])

    def test_a_run_is_continued_with_the_same_encoder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        experiment = an_experiment(a_table(tmp_path))
        (before,) = simulate(experiment, tmp_path / "run")
        (again,) = simulate(experiment, tmp_path / "run", resume=True)
        assert again.final == before.final
        monkeypatch.setattr(encoders, "letters", encoders.other_letters)
        with pytest.raises(InputError, match="is not the encoder that this run began with"):
            simulate(experiment, tmp_path / "run", resume=True)

    def test_an_encoder_without_a_cost_is_refused_first(self, tmp_path: Path) -> None:
        table = a_table(tmp_path)
        experiment = an_experiment(table)
        del experiment["features"]["operations"]
        with pytest.raises(InputError, match="features.operations is not given"):
            simulate(experiment, tmp_path / "run")
        assert not (tmp_path / "run").exists()


class TestModel:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        simulate(an_experiment(a_table(tmp_path)), tmp_path / "run")
        return tmp_path / "run" / "model.npz"

    def test_it_demands_its_encoder(self, model: Path) -> None:
        with pytest.raises(InputError, match="needs the encoder 'tests.encoders:letters'"):
            load_model(model)
        with pytest.raises(InputError, match="is not the one that the model was trained on"):
            load_model(model, "tests.encoders:other_letters")
        with pytest.raises(InputError, match="the encoder is 3: give"):
            load_model(model, 3)
        found = load_model(model, "tests.encoders:nearly_letters")
        assert found.card["features"]["source"] == LETTERS

    def test_it_predicts_texts(self, model: Path) -> None:
        found = load_model(model, LETTERS)
        asked = ["cook pork leek", "sail ship tide"]
        assert found.predict(asked).tolist() == ["kitchen", "sea"]
        assert found.predict(np.array(asked)[:, None]).tolist() == ["kitchen", "sea"]
        with pytest.raises(InputError, match="give one text per point"):
            found.predict([asked])

    def test_the_command_predicts_a_table(self, model: Path, tmp_path: Path, run: Run) -> None:
        code, out, error = run("predict", model, a_table(tmp_path), "--encoder", LETTERS, "--json")
        assert code == 0, error
        assert json.loads(out)["accuracy"] > 0.9
        code, _, error = run("predict", model, a_table(tmp_path))
        assert code == 2
        assert "--encoder" in error

    def test_a_model_without_one_refuses_it(self, tmp_path: Path) -> None:
        simulate({"fleet": {"clients": 4}}, tmp_path / "run")
        with pytest.raises(InputError, match="has structured features: leave the encoder out"):
            load_model(tmp_path / "run" / "model.npz", LETTERS)


class TestFederation:
    def federation(self, table: Path, folder: Path, **more: Any) -> tuple[Experiment, Loopback]:
        test = str(folder / "nodes" / "test.npz")
        federation = {"clients": 3, "rounds": 2, "probes": 2, "deadline": 0.8, "test": test}
        federation["ready_timeout"] = 1.5
        experiment = check(an_experiment(table, federation=federation, **more), "a test")
        shards = write_shards(experiment, load_dataset(table, text="note"), folder / "nodes")
        grid = Loopback(folder / "nodes", shards)
        grid.encoders, grid.text = dict.fromkeys(range(3), LETTERS), "inputs"
        return experiment, grid

    @pytest.mark.parametrize("scheme", ["one-shot", "uncoded"])
    def test_nodes_train_on_their_own_texts(self, scheme: str, tmp_path: Path) -> None:
        experiment, grid = self.federation(a_table(tmp_path), tmp_path, schemes=[{"name": scheme}])
        directory = RunDirectory(tmp_path / "run")
        federate(grid, experiment, directory, lambda _: None)
        model = load_model(directory.path / "model.npz", LETTERS)
        assert model.columns == ("note",)
        assert model.card["test_metric"] > 0.8
        assert replay(directory).same
        assert all("tests.encoders" not in json.dumps(facts) for _, _, facts in grid.asked)

    @pytest.mark.parametrize(
        ("encoder", "reason"),
        [
            ("tests.encoders:other_letters", r"node-001 has another encoder: on the fixed"),
            ("tests.encoders:too_few", "node 1001: the encoder 'tests.encoders:too_few' returned"),
            (None, "node 1001: .* this node has none: start it with --encoder"),
        ],
    )
    def test_a_node_with_another_is_refused(
        self, encoder: str | None, reason: str, tmp_path: Path
    ) -> None:
        experiment, grid = self.federation(a_table(tmp_path), tmp_path)
        grid.encoders = {0: LETTERS, 2: "tests.encoders:nearly_letters"}
        if encoder is not None:
            grid.encoders[1] = encoder
        with pytest.raises(InputError, match=f"2 of 3 nodes are ready.*{reason}"):
            federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)

    def test_operations_are_wanted_before_anybody_is_asked(self, tmp_path: Path) -> None:
        more = {"features": {"operations": None}}
        experiment, grid = self.federation(a_table(tmp_path), tmp_path, **more)
        with pytest.raises(InputError, match="features.operations is not given"):
            federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
        assert not grid.asked

    def test_a_node_uses_no_encoder_that_a_server_names(self, tmp_path: Path) -> None:
        job = asdict(Job("0" * 32, "encoder", 1, 1.0, 0, 1, encoder={"text": True}))
        named = job["encoder"] | {"normalise": True, "source": "os:system"}
        np.savez(tmp_path / "own.npz", inputs=["a", "b"], labels=[0, 1])
        load = lambda: read_shard(tmp_path / "own.npz", text="note")  # noqa: E731
        node = Node("ada", load, tmp_path / "cache", encoder=LETTERS, least=2)
        with pytest.raises(InputError, match="job.encoder.source is unknown"):
            node.answer("hello", {"job": job | {"encoder": named}}, {})
        job["encoder"]["normalise"] = True
        with pytest.raises(InputError, match="this node has none"):
            Node("ada", load, tmp_path / "cache", least=2).answer("hello", {"job": job}, {})
        assert node.answer("hello", {"job": job}, {})[0]["points"] == 2

    def test_numbers_where_texts_are_wanted(self, tmp_path: Path) -> None:
        job = asdict(
            Job("0" * 32, "encoder", 1, 1.0, 0, 1, encoder={"text": True, "normalise": True})
        )
        np.savez(tmp_path / "own.npz", inputs=np.ones((2, 3)), labels=[0, 1])
        load = lambda: read_shard(tmp_path / "own.npz")  # noqa: E731
        node = Node("ada", load, tmp_path, encoder=LETTERS, least=2)
        with pytest.raises(InputError, match="ada has numbers, and the federation trains on texts"):
            node.answer("hello", {"job": job}, {})

    def test_a_node_tries_its_encoder_before_it_greets(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "own.npz", inputs=["a", "b"], labels=[0, 1])
        load = lambda: read_shard(tmp_path / "own.npz", text="note")  # noqa: E731
        Node("ada", load, tmp_path, encoder=LETTERS, least=2).ready()
        with pytest.raises(InputError, match="fails' failed"):
            Node("ada", load, tmp_path, encoder="tests.encoders:fails", least=2).ready()

    def test_a_slow_encoder_looks_at_the_clock(self, tmp_path: Path) -> None:
        """Of 600 points 256 are encoded before the first look, at which the time is up."""
        points = np.array(texts_and_labels(600)[0])
        ticks = count()
        load = lambda: Shard(points, np.zeros(600, np.int64))  # noqa: E731
        cache = Cache(tmp_path / "cache", "ada", load, lambda: float(next(ticks)))
        encoder = load_encoder(LETTERS, text=True)
        features, _, embedded = cache.embed(encoder, 1, 0, seconds=1.5)
        assert (features.shape, embedded) == ((600, 26), 256)

    def test_texts_have_no_scale(self, tmp_path: Path) -> None:
        table = a_table(tmp_path)
        experiment = check(an_experiment(table, federation={"clients": 2, "scale": True}), "a test")
        with pytest.raises(InputError, match="texts have no scale"):
            federate(Loopback(tmp_path, []), experiment, RunDirectory(tmp_path / "run"), print)


@pytest.mark.engine
@pytest.mark.long
def test_real_nodes_train_on_their_texts(tmp_path: Path, run: Run) -> None:
    settings = {
        "data.text": "note",
        "features.kind": "encoder",
        "features.encoder": LETTERS,
        "features.operations": 500,
    }
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    how = ("--clients", 3, "--rounds", 1, "--scheme", "one-shot", *changes, "--json")
    code, out, error = run(
        "federate", "local", "--dataset", a_table(tmp_path), *how, "--out", tmp_path / "run"
    )
    assert code == 0, error
    assert json.loads(out)["accuracy"] > 0.8
    asked = ["cook pork leek", "sail ship tide"]
    model = load_model(tmp_path / "run" / "model.npz", LETTERS)
    assert model.predict(asked).tolist() == [1, 2]  # words are numbered in sorted order


class TestEstimators:
    def pipeline(self, components: int = 12) -> Pipeline:
        """Return a pipeline that was fitted on other texts of the same words."""
        words = [word for list_ in WORDS.values() for word in list_]
        public = [" ".join(np.roll(words, n)[:6]) for n in range(len(words))]
        reduced = TruncatedSVD(components, random_state=0)
        return make_pipeline(TfidfVectorizer(), reduced).fit(public)

    def test_a_fitted_pipeline_on_texts(self) -> None:
        texts, labels = texts_and_labels()
        pipeline = self.pipeline()
        ours = CodedFedLClassifier("one-shot", features=pipeline).fit(texts[:180], labels[:180])
        other = CodedFedLClassifier("one-shot", features="identity")
        other.fit(pipeline.transform(texts[:180]).astype(np.float32), labels[:180])
        np.testing.assert_allclose(ours.coef_, other.coef_, rtol=1e-6)
        assert ours.score(texts[180:], labels[180:]) > 0.9
        assert ours.total_hours_ == other.total_hours_

    def test_its_operations_are_charged(self) -> None:
        texts, labels = texts_and_labels()
        pipeline = self.pipeline()
        hours = [
            CodedFedLClassifier("one-shot", features=pipeline, operations=n)
            .fit(texts, labels)
            .total_hours_
            for n in (None, 0, 10**6, 2 * 10**6)
        ]
        assert hours[0] == hours[1] < hours[2] < hours[3]

    def test_a_transformer_of_numbers(self) -> None:
        points = np.random.default_rng(3).random((200, 4)) * [1, 10, 100, 1000]
        labels = (points[:, 0] > 0.5).astype(int)
        scaler = StandardScaler().fit(points)
        ours = CodedFedLClassifier("one-shot", features=scaler).fit(points, labels)
        assert ours.n_features_in_ == 4
        assert ours.score(points, labels) > 0.9
        named = CodedFedLClassifier("one-shot", features="tests.encoders:squares")
        assert named.fit(points, labels).coef_.shape == (8, 2)

    def test_the_model_demands_the_pipeline(self, tmp_path: Path) -> None:
        texts, labels = texts_and_labels()
        pipeline = self.pipeline()
        fitted = CodedFedLClassifier("one-shot", features=pipeline).fit(texts, labels)
        fitted.save_model(tmp_path / "model.npz")
        with pytest.raises(InputError, match="needs the encoder 'Pipeline'"):
            load_model(tmp_path / "model.npz")
        with pytest.raises(InputError, match="is not the one that the model was trained on"):
            load_model(tmp_path / "model.npz", self.pipeline(11))
        other = make_pipeline(pipeline[0], TruncatedSVD(12, random_state=0).fit(np.eye(24)))
        with pytest.raises(InputError, match="is not the one that the model was trained on"):
            load_model(tmp_path / "model.npz", other)
        model = load_model(tmp_path / "model.npz", pipeline)
        np.testing.assert_array_equal(model.predict(texts), fitted.predict(texts))

    def test_what_is_refused(self) -> None:
        texts, labels = texts_and_labels(20)
        unfitted = make_pipeline(TfidfVectorizer(), TruncatedSVD(2))
        for features, points, message in [
            (unfitted, texts, "Pipeline that is not fitted: fit it on public data first"),
            (3, texts, "the encoder is 3: give an .onnx file"),
            (
                self.pipeline(),
                [*texts[:19], 3.5],
                "holds object: give one text per point",
            ),
            ("fouriere", np.ones((20, 2)), "did you mean 'fourier'"),
        ]:
            given = np.array(points, dtype=object) if isinstance(points, list) else points
            with pytest.raises(InputError, match=message):
                CodedFedLClassifier(features=features).fit(given, labels)
        with pytest.raises(InputError, match="operations is -1: must be a whole number"):
            CodedFedLClassifier(features=self.pipeline(), operations=-1).fit(texts, labels)


@pytest.mark.extras
class TestNetworks:
    """ONNX graphs, built here."""

    def graph(self, path: Path, nodes: list[Any], shape: list[Any], **weights: Any) -> Path:
        onnx = pytest.importorskip("onnx")
        helper, tensor = onnx.helper, onnx.TensorProto.FLOAT
        made = helper.make_graph(
            [helper.make_node(kind, inputs, [out], **more) for kind, inputs, out, more in nodes],
            "encoder",
            [helper.make_tensor_value_info("points", tensor, shape)],
            [helper.make_tensor_value_info(nodes[-1][2], tensor, None)],
            [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        opset = [helper.make_opsetid("", 13)]
        onnx.save(helper.make_model(made, opset_imports=opset, ir_version=8), str(path))
        return path

    def perceptron(self, path: Path, seed: int = 0, batch: int | str = "n") -> tuple[Path, Any]:
        random = np.random.default_rng(seed)
        first, second = (random.normal(size=s).astype(np.float32) for s in ((64, 32), (8, 32)))
        nodes = [
            ("MatMul", ["points", "first"], "hidden", {}),
            ("Relu", ["hidden"], "positive", {}),
            ("Gemm", ["positive", "second"], "out", {"transB": 1}),
        ]
        self.graph(path, nodes, [batch, 64], first=first, second=second)
        return path, lambda x: np.maximum(x @ first, 0) @ second.T

    @pytest.mark.parametrize("batch", ["n", 1])
    def test_it_computes_what_the_graph_says(self, batch: int | str, tmp_path: Path) -> None:
        path, naive = self.perceptron(tmp_path / "net.onnx", batch=batch)
        points = load_dataset("digits").inputs[:300]
        encoder = load_encoder(str(path), normalise=False)
        np.testing.assert_allclose(encoder.transform(points), naive(points), rtol=1e-4, atol=1e-5)
        assert encoder.size(64) == 8
        assert encoder.macs(64) == 64 * 32 + 32 * 8
        assert load_encoder(str(path), operations=5).macs(64) == 5
        with pytest.raises(InputError, match=r"takes points of shape \[64\], and the data have 60"):
            encoder.transform(points[:, :60])

    @pytest.mark.parametrize("first", [True, False], ids=["channels first", "channels last"])
    def test_images_in_either_order_of_axes(self, first: bool, tmp_path: Path) -> None:
        """Pixels lie row by row, with the channels of one side by side."""
        random = np.random.default_rng(1)
        images = random.random((5, 6, 7, 3)).astype(np.float32)
        weights = random.normal(size=(4, 3, 3, 2)).astype(np.float32)
        shape = [None, 3, 6, 7] if first else [None, 6, 7, 3]
        turn = [] if first else [("Transpose", ["points"], "turned", {"perm": [0, 3, 1, 2]})]
        given = "points" if first else "turned"
        nodes = [*turn, ("Conv", [given, "weights"], "out", {})]
        path = self.graph(tmp_path / "net.onnx", nodes, shape, weights=weights)
        encoder = load_encoder(str(path), normalise=False)
        found = encoder.transform(images.reshape(5, -1)).reshape(5, 4, 4, 6)
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 2), axis=(1, 2))
        np.testing.assert_allclose(
            found, np.einsum("nhwcij,ocij->nohw", windows, weights), rtol=1e-4, atol=1e-5
        )
        assert encoder.macs(6 * 7 * 3) == (4 * 4 * 6) * (3 * 3 * 2)

    def test_what_cannot_be_counted_must_be_said(self, tmp_path: Path) -> None:
        nodes = [("Einsum", ["points", "w"], "out", {"equation": "ni,ij->nj"})]
        weights = np.ones((3, 2), np.float32)
        path = str(self.graph(tmp_path / "net.onnx", nodes, ["n", 3], w=weights))
        with pytest.raises(InputError, match="Einsum is not counted.*say features.operations"):
            load_encoder(path).macs(3)
        assert load_encoder(path, operations=6).macs(3) == 6

    def test_what_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no such file"):
            load_encoder(str(tmp_path / "absent.onnx"))
        (tmp_path / "broken.onnx").write_bytes(b"not a graph")
        with pytest.raises(InputError, match="export it again"):
            load_encoder(str(tmp_path / "broken.onnx"))
        path, _ = self.perceptron(tmp_path / "net.onnx", batch=16)
        with pytest.raises(InputError, match="takes 16 points at a time"):
            load_encoder(str(path)).size(64)

    def test_a_node_with_another_file_is_refused(self, tmp_path: Path) -> None:
        ours, _ = self.perceptron(tmp_path / "ours.onnx")
        other, _ = self.perceptron(tmp_path / "other.onnx", seed=1)
        experiment = check(
            {
                "features": {"kind": "encoder", "encoder": str(ours)},
                "schemes": [{"name": "one-shot"}],
                "federation": {"clients": 2, "rounds": 1, "test": "digits", "ready_timeout": 1.5},
            },
            "a test",
        )
        shards = write_shards(experiment, load_dataset("digits"), tmp_path / "nodes")
        grid = Loopback(tmp_path / "nodes", shards)
        grid.encoders = {0: str(ours), 1: str(other)}
        with pytest.raises(InputError, match=r"1 of 2 nodes.*node-001.*another encoder, whose SHA"):
            federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
        grid = Loopback(tmp_path / "nodes", shards)
        grid.encoders = dict.fromkeys(range(2), str(ours))
        federate(grid, experiment, RunDirectory(tmp_path / "run"), lambda _: None)
        assert load_model(tmp_path / "run" / "model.npz", str(ours)).card["test_metric"] > 0.5

    def test_an_export_begins_at_the_encoder_s_outputs(self, tmp_path: Path, run: Run) -> None:
        runtime = pytest.importorskip("onnxruntime")
        path, naive = self.perceptron(tmp_path / "net.onnx")
        points = load_dataset("digits").inputs[:50]
        encoder: Encoder = load_encoder(str(path))
        weights = np.random.default_rng(2).normal(size=(8, 3))
        model = Model(encoder, weights, 64, classes=np.arange(3))
        save_model(model, tmp_path / "model.npz")
        out = tmp_path / "head.onnx"
        code, _, error = run("export", tmp_path / "model.npz", "--out", out, "--encoder", path)
        assert code == 0, error
        session = runtime.InferenceSession(out, providers=["CPUExecutionProvider"])
        embeddings = naive(points).astype(np.float32)
        scores = session.run(["scores"], {"inputs": embeddings})[0]
        np.testing.assert_allclose(scores, model.scores(points), atol=1e-5)
        zero = session.run(["scores"], {"inputs": np.zeros((1, 8), np.float32)})[0]
        assert not zero.any()
