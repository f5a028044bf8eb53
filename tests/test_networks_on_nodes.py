"""Networks on real clients: what nodes train, what they refuse, and that runs can be repeated."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl import load_model
from codedfedl.cli.federate_local import TrainingOptions, local_experiment
from codedfedl.core.client import (
    BlockParity,
    Counts,
    FirstGradient,
    Gradient,
    Gram,
    LocalModel,
    Parity,
    WindowGradient,
    work_to,
)
from codedfedl.core.work import Work
from codedfedl.data import load_dataset
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.learning.codes import Code
from codedfedl.report.html import render_report
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.exchange import Exchange
from codedfedl.runs.federation import scheme_of
from codedfedl.runs.journal import Journal
from codedfedl.simulation.replay import replay
from tests.loopback import Script, experiment_of, transport_of

POINTS, INPUTS, CLASSES = 120, 4, 3
MODEL = {"module": "logistic", "loss": "cross-entropy", "image": None}
JOB = Job("0" * 32, "identity", INPUTS, 1.0, 0, 1, columns=CLASSES, model=MODEL)
PARAMETERS = (INPUTS + 1) * CLASSES


def node(folder: Path, *, networks: bool = True, **settings: Any) -> Node:
    rng = np.random.default_rng(0)
    shard = Shard(rng.random((POINTS, INPUTS)), rng.integers(0, CLASSES, POINTS))
    return Node("ada", lambda: shard, folder, networks=networks, **settings)


def asked(
    ada: Node, work: Work, job: Job = JOB, parameters: int = PARAMETERS, load: int = POINTS
) -> Any:
    facts = {"work": work_to(work), "round": 0, "load": load, "answered": 0, "seconds": None}
    model = {"model": np.zeros(parameters, np.float32)}
    return ada.answer("work", {"job": asdict(job), **facts}, model)


def test_a_node_trains_networks_if_its_owner_allows_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ada trains no networks, of whose gradients a malicious"):
        asked(node(tmp_path, networks=False), Gradient(0))


def test_a_node_imports_no_module_that_a_server_names(tmp_path: Path) -> None:
    theirs = replace(JOB, model=MODEL | {"module": "antigravity:fly"})
    with pytest.raises(InputError, match=r"'antigravity:fly' is not one of ada's.*--works"):
        asked(node(tmp_path), Gradient(0), theirs)
    assert "antigravity" not in sys.modules


def test_without_pytorch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"install it with pip install 'codedfedl\[torch\]'"):
        node(tmp_path).answer("hello", {"job": asdict(JOB)}, {})


@pytest.mark.parametrize(
    "change", [{"module": 3}, {"loss": "hinge"}, {"image": [2, 2]}, {"image": [0, 2, 1]}, {"x": 1}]
)
def test_what_a_job_says_of_a_network_is_checked(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"job\.model\.{next(iter(change))}"):
        node(tmp_path).answer("hello", {"job": asdict(replace(JOB, model=MODEL | change))}, {})


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            {"name": "coded"},
            "codes or solves a quadratic, which the loss of a network is not",
        ),
        ({"name": "uncoded", "optimiser": "polyak"}, "optimiser is"),
        ({"name": "uncoded", "secure": True}, "a bound on their length"),
        ({"name": "uncoded", "load": 4}, "uncoded.load is for points that are drawn"),
    ],
)
def test_what_needs_a_linear_model_is_refused_before_any_work(
    scheme: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        scheme_of(network("mlp", scheme))


def test_a_whole_federation_here_is_given_a_network() -> None:
    training = TrainingOptions(scheme="paced", model="cnn")
    experiment = local_experiment(training.scheme_table, training.changes, {})
    assert (experiment.model.kind, experiment.model.module) == ("torch", "cnn")
    assert experiment.features.kind == "identity"
    assert experiment.with_image((8, 8, 3)).features.image == (8, 8, 3)
    scheme = scheme_of(experiment)
    assert "--networks" in training.node(scheme, None, "cnn", text=False).options
    config = training.node(scheme, None, "mine:net", text=False)
    assert (config.works, config.networks) == ("mine", True)
    assert not training.node(scheme, None, text=False).networks
    linear = TrainingOptions(scheme="coded", model="cnn")
    with pytest.raises(InputError, match="choose a scheme of gradients, such as uncoded or paced"):
        local_experiment(linear.scheme_table, linear.changes, {})


def network(module: str, scheme: dict[str, Any], rounds: int = 5, **more: Any) -> Experiment:
    plain = experiment_of(3, rounds, scheme, **more)
    model = {"model.kind": "torch", "model.module": module, "features.kind": "identity"}
    return changed(plain.model_dump(), {**model, "training.step": 0.03}, "a test")


@pytest.mark.extras
class TestWithPyTorch:
    @pytest.mark.parametrize(
        "work",
        [Gram(), FirstGradient(), Parity([4], [60], [0.5]), BlockParity(Code("dealt"), 10)],
        ids=lambda work: work.kind,
    )
    def test_work_of_the_linear_model_is_refused(self, work: Work, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="unknown here, or has no rules"):
            asked(node(tmp_path), work)

    def test_the_model_is_of_the_networks_own_shape(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"must be float32 of shape \(15,\)"):
            asked(node(tmp_path), Gradient(0), parameters=PARAMETERS + 1)

    def test_a_gradient_is_the_networks(self, tmp_path: Path) -> None:
        """At 0 the probabilities of logistic regression are all alike."""
        ada = node(tmp_path)
        _, arrays = asked(ada, Gradient(0))
        shard = ada.load()
        wrong = 1 / CLASSES - np.eye(CLASSES)[shard.labels]
        expected = np.r_[(wrong.T @ shard.inputs).ravel(), wrong.sum(0)]
        np.testing.assert_allclose(arrays["gradient"], expected, rtol=1e-4, atol=1e-4)

    def test_sums_of_a_network_are_over_as_many_points(self, tmp_path: Path) -> None:
        """Whatever is trained: the same rules for windows, for gradients and for local steps."""
        for work in (
            WindowGradient(0, 0, 1.0, None, seconds=1.0),
            Gradient(0),
            LocalModel(0, 2, 0.1, 0.0),
        ):
            with pytest.raises(InputError, match="this node answers for 1000 together at least"):
                asked(node(tmp_path / work.kind, least=200), work)
        ada = node(tmp_path / "sums")
        asked(ada, Counts())
        asked(ada, WindowGradient(0, 0, 1.0, None, seconds=1.0))
        with pytest.raises(InputError, match="would show, beside earlier sums"):
            asked(ada, Gradient(0), load=POINTS - 1)

    def test_a_malicious_model_shows_single_points_in_a_sum_over_all(self, tmp_path: Path) -> None:
        """Why networks need the owner's consent: units that begin to answer one after another.

        What two neighbours differ in is the points between their thresholds, often a single one.
        """
        ada = node(tmp_path)
        inputs, units = np.asarray(ada.load().inputs), 64
        along = np.array([1.0, 0.7, -0.4, 0.2])
        thresholds = np.linspace(-0.4, 1.9, units)
        head = np.tile([[1e-3], [0.0], [-1e-3]], units)
        parts = [np.tile(along, (units, 1)), -thresholds, head, np.zeros(CLASSES)]
        model = np.concatenate([part.ravel() for part in parts]).astype(np.float32)
        job = asdict(replace(JOB, model=MODEL | {"module": "mlp"}))
        facts = {"work": work_to(Gradient(0)), "round": 0, "load": POINTS, "answered": 0}
        _, arrays = ada.answer("work", {"job": job, **facts, "seconds": None}, {"model": model})
        weights, biases = np.split(arrays["gradient"][: units * (INPUTS + 1)], [units * INPUTS])
        steps, sizes = np.diff(weights.reshape(units, INPUTS), axis=0), np.diff(biases)
        shown = steps[np.abs(sizes) > 1e-5] / sizes[np.abs(sizes) > 1e-5, None]
        apart = np.abs(shown[:, None] - inputs[None]).max(2).min(1)
        assert (apart < 1e-2).sum() >= 10

    def test_another_network_on_the_same_data_is_another_job(self, tmp_path: Path) -> None:
        ada = node(tmp_path)
        asked(ada, Gradient(0))
        other = replace(JOB, key="1" * 32, model=MODEL | {"module": "mlp"})
        with pytest.raises(InputError, match="another job was answered before"):
            asked(ada, Gradient(0), other, 64 * (INPUTS + 1) + 65 * CLASSES)

    @pytest.mark.parametrize(
        ("module", "scheme", "least"),
        [
            ("mlp", {"name": "paced"}, 0.85),
            ("cnn", {"name": "paced", "weights": "client"}, 0.6),
            ("logistic", {"name": "fedavg", "step": 0.5}, 0.85),
            ("mlp", {"name": "uncoded", "optimiser": "adam"}, 0.85),
        ],
    )
    def test_it_trains_and_is_replayed(
        self, module: str, scheme: dict[str, Any], least: float, tmp_path: Path
    ) -> None:
        exchanges = played(tmp_path, network(module, scheme, 15))
        assert exchanges[-1].record.metric >= least
        result = replay(RunDirectory(tmp_path / "run"))
        assert result.same
        assert result.answers == 45

    def test_its_model_stands_alone(self, tmp_path: Path) -> None:
        exchanges = played(tmp_path, network("cnn", {"name": "paced"}, 8))
        model = load_model(tmp_path / "run" / "model.npz")
        digits = load_dataset("digits")
        right = model.predict(digits.test_inputs) == digits.test_labels
        assert right.mean() == pytest.approx(exchanges[-1].record.metric)
        page = render_report(RunDirectory(tmp_path / "run"))
        assert "one over a single point contains that point" in page
        assert "close enough" not in page

    def test_it_resumes_where_it_was(self, tmp_path: Path) -> None:
        """Adam's memory and the plan come back from the journal."""
        whole = played(tmp_path / "whole", network("mlp", {"name": "paced"}, 8))
        crashed = network("mlp", {"name": "paced"}, 8)
        nodes = transport_of(crashed, tmp_path / "parts" / "nodes")
        nodes.crash_after = 7
        with pytest.raises(KeyboardInterrupt):
            federate(nodes, crashed, RunDirectory(tmp_path / "parts" / "run"), lambda _: None)
        resumed = played(tmp_path / "parts", crashed)
        assert resumed[-1].record.metric == whole[-1].record.metric
        assert len(resumed) == len(whole)

    def test_a_model_that_no_node_would_take_ends_the_run(self, tmp_path: Path) -> None:
        experiment = network("mlp", {"name": "paced"}, 6)
        longer = changed(experiment.model_dump(), {"training.step": 1e30}, "a test")
        with pytest.raises(
            InputError, match=r"after round 1 the model .* such as 1e\+29 for train"
        ):
            played(tmp_path, longer)

    def test_a_client_that_sends_nonsense_does_not_count(self, tmp_path: Path) -> None:
        def change(client: int, kind: str, answer: Any) -> Any:
            facts, arrays = answer
            if client == 1 and kind == "window_gradient":
                return facts, {"gradient": np.full_like(arrays["gradient"], np.nan)}
            return answer

        exchanges = played(tmp_path, network("mlp", {"name": "paced"}, 6), Script(change=change))
        assert {c for e in exchanges for c, _ in e.record.refusals} == {1}
        assert exchanges[-1].record.metric > 0.5


def played(folder: Path, experiment: Experiment, script: Script | None = None) -> list[Exchange]:
    nodes = transport_of(experiment, folder / "nodes", script)
    federate(nodes, experiment, RunDirectory(folder / "run"), lambda _: None)
    return list(Journal(folder / "run").exchanges())
