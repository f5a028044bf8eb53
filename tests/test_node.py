"""What a client of a federation computes, keeps on its disk, and never gives away."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codedfedl.arrays import IntArray
from codedfedl.core.client import (
    WORK,
    BlockParity,
    Counts,
    Embed,
    Embedded,
    FirstGradient,
    Gradient,
    Gram,
    LocalDirection,
    LocalModel,
    Parity,
    Prepare,
    WeightedGradient,
    WindowGradient,
    work_to,
)
from codedfedl.core.clipped import PrivateSum
from codedfedl.core.masked import Masked
from codedfedl.core.protocol import Limits, Task
from codedfedl.core.rounded import Rounded
from codedfedl.core.work import Answer, Client, Work
from codedfedl.data import mini_batches
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node import cache
from codedfedl.federate.node.node import Node
from codedfedl.federate.server.session import federate
from codedfedl.federate.transport import Arrays
from codedfedl.fleet.costs import Cost
from codedfedl.learning.codes import Code
from codedfedl.learning.least_squares import encode, gradient, point_weights
from codedfedl.random import stream
from codedfedl.report.results import outcomes
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import changed
from codedfedl.runs.journal import Journal
from codedfedl.schemes import SCHEMES, make_scheme
from codedfedl.simulation.client_data import Batch, SimulatedClient
from codedfedl.simulation.replay import replay
from tests.loopback import experiment_of, transport_of

JOB = Job("0" * 32, "fourier", 32, 2.0, 0, 2, columns=3)
SPARSE = Code("sparse", 2)


def shard(points: int = 101) -> Shard:
    rng = np.random.default_rng(0)
    return Shard(rng.random((points, 5)), rng.integers(0, 3, points))


def make(tmp_path: Path, load: Callable[[], Shard] = shard, seed: int = 0, least: int = 1) -> Node:
    entropy = stream(seed, "code").bytes
    return Node("ada", load, tmp_path / "cache", least=least, entropy=entropy)


def ask(node: Node, kind: str, job: Job = JOB, arrays: Arrays | None = None, **facts: Any) -> Any:
    return node.answer(kind, {"job": asdict(job), **facts}, arrays or {})


def do(
    node: Node,
    work: Work,
    load: int = 101,
    *,
    job: Job = JOB,
    round_: int = 0,
    answered: int = 0,
    seconds: float | None = None,
) -> Any:
    """Ask for work in the words that come over a network: JSON."""
    facts = {
        "work": work_to(work),
        "round": round_,
        "load": load,
        "answered": answered,
        "seconds": seconds,
    }
    arrays = {"model": model()} if work.needs_model else {}
    return ask(node, "work", job, arrays, **json.loads(json.dumps(facts)))


def features_and_targets() -> tuple[Any, Any]:
    data, order = shard(), processing_order(101, 0)
    return JOB.features().transform(data.inputs[order]), data.targets(order, 3)


def model() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(32, 3)).astype(np.float32)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_gradient_is_that_over_the_first_points_of_its_mini_batch(
    batch: int, tmp_path: Path
) -> None:
    features, targets = features_and_targets()
    rows = mini_batches([np.arange(101)], 2)[batch][0][:7]
    facts, arrays = do(make(tmp_path), Gradient(batch), 7, round_=4)
    assert (facts["round"], facts["points"]) == (4, 7)
    expected = gradient(features[rows], targets[rows], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-5)
    assert arrays["gradient"].dtype == np.float32


def test_parity_is_the_papers_with_the_nodes_own_code(tmp_path: Path) -> None:
    features, targets = features_and_targets()
    rows, loads, probabilities = [4, 6], [20, 50], [0.5, 0.9]
    _, arrays = do(make(tmp_path), Parity(rows, loads, probabilities, SPARSE))
    entropy = stream(0, "code").bytes
    for b, part in enumerate(mini_batches([np.arange(101)], 2)):
        rng = np.random.default_rng(int.from_bytes(entropy(32)))
        weights = point_weights(len(part[0]), loads[b], probabilities[b])
        expected = encode(features[part[0]], targets[part[0]], weights, rows[b], rng, SPARSE)
        np.testing.assert_allclose(arrays[f"features{b}"], expected.features, atol=1e-5)
        np.testing.assert_allclose(arrays[f"targets{b}"], expected.targets, atol=1e-5)


def test_parity_is_given_once(tmp_path: Path) -> None:
    """The same question has the same answer, also after a restart; another has none."""
    plan = Parity([4, 6], [20, 50], [0.5, 0.9], SPARSE)
    _, first = do(make(tmp_path), plan)
    _, again = do(make(tmp_path, seed=7), plan)
    assert first.keys() == again.keys() != set()
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    for other in (replace(plan, rows=[5, 6]), BlockParity(SPARSE, 10), Gram()):
        with pytest.raises(InputError, match="has already sent its parity"):
            do(make(tmp_path), other, seconds=9.0)


def test_the_code_comes_from_the_operating_system_and_is_kept_nowhere(tmp_path: Path) -> None:
    """Two nodes with the same data differ, and no file holds the 32 bytes of entropy."""
    drawn: list[bytes] = []

    def entropy(size: int) -> bytes:
        drawn.append(os.urandom(size))
        return drawn[-1]

    plan = Parity([4, 6], [0, 0], [0.0, 0.0], SPARSE)
    watched = Node("ada", shard, tmp_path / "a", least=1, entropy=entropy)
    _, first = do(watched, plan)
    _, other = do(Node("ada", shard, tmp_path / "b", least=1), plan)
    assert not np.allclose(first["features0"], other["features0"])
    assert [len(secret) for secret in drawn] == [32, 32]
    for path in (path for path in (tmp_path / "a").rglob("*") if path.is_file()):
        assert not any(secret in path.read_bytes() for secret in drawn)
    assert Node("ada", shard, tmp_path).entropy is os.urandom


def test_block_parity_stands_for_all_points(tmp_path: Path) -> None:
    facts, arrays = do(make(tmp_path), BlockParity(SPARSE, 10), 60, seconds=9.0)
    assert facts["points"] == 60
    assert arrays["features0"].shape == (12, 32)  # every point goes into two rows of ten
    features, targets = features_and_targets()
    rng = np.random.default_rng(int.from_bytes(stream(0, "code").bytes(32)))
    weights = np.full(60, np.sqrt(101 / 60))
    expected = encode(features[:60], targets[:60], weights, 12, rng, SPARSE)
    np.testing.assert_allclose(arrays["features0"], expected.features, rtol=1e-3, atol=1e-3)


def test_a_node_without_time_sends_no_block_parity(tmp_path: Path) -> None:
    facts, arrays = do(make(tmp_path), BlockParity(SPARSE, 10), 60, seconds=0.0)
    assert facts["points"] == 0
    assert arrays == {}
    again, _ = do(make(tmp_path), BlockParity(SPARSE, 10), 60, seconds=9.0)
    assert again["points"] == 60  # what was not given may still be


def test_a_node_with_too_few_points_for_a_row_sends_no_block_parity(tmp_path: Path) -> None:
    """Nothing is wrong with it: it says that it has nothing yet, and may send some later."""
    ask(make(tmp_path), "probe", arrays={"model": model()}, load=5)  # embeds no more
    facts, arrays = do(make(tmp_path), BlockParity(SPARSE, 10), seconds=0.0)
    assert (facts["points"], arrays) == (0, {})
    again, _ = do(make(tmp_path), BlockParity(SPARSE, 10), seconds=9.0)
    assert again["points"] == 101
    few = Node("ada", lambda: shard(7), tmp_path / "few")
    facts, arrays = do(few, BlockParity(SPARSE, 10), 7, seconds=9.0)
    assert (facts["points"], arrays) == (0, {})


def test_an_embedded_gradient_stands_for_all_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "ROWS_AT_ONCE", 20)
    features, targets = features_and_targets()
    ask(make(tmp_path), "probe", arrays={"model": model()}, load=40)  # embeds no more
    facts, answer = do(make(tmp_path), Embedded(), seconds=0.0)
    assert facts["points"] == 40
    expected = gradient(features[:40], targets[:40], model()) * (101 / 40)
    np.testing.assert_allclose(answer["gradient"], expected, rtol=2e-5, atol=1e-4)
    facts, _ = do(make(tmp_path), Embedded(), round_=1, seconds=9.0, answered=40)
    assert facts["points"] == 101


def test_embedding_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "ROWS_AT_ONCE", 20)
    calls: list[int] = []

    class Spy(Shard):
        def targets(self, rows: Any, columns: int) -> Any:
            calls.append(len(rows))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return super().targets(rows, columns)

    def load() -> Shard:
        return Spy(shard().inputs, shard().labels)

    with pytest.raises(KeyboardInterrupt):
        do(make(tmp_path, load), Prepare())
    do(make(tmp_path, load), Prepare())
    assert calls == [20, 20, 20, 20, 20, 20, 1]
    _, arrays = do(make(tmp_path, load), Gradient(0), 51)
    features, targets = features_and_targets()
    expected = gradient(features[:51], targets[:51], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-5)


FEW: list[tuple[Work, int]] = [
    (Gradient(0), 9),
    (LocalModel(0, 1, 0.1, 0.0), 9),
    (Parity([20, 20], [9, 9], [0.5, 0.5], SPARSE), 101),
    (Parity([20, 20], [9, 49], [0.5, 1.0]), 101),
    (BlockParity(Code("dealt"), 9), 101),
]


@pytest.mark.parametrize(("work", "load"), FEW, ids=[work.kind for work, _ in FEW])
def test_a_node_does_not_answer_for_few_points(work: Work, load: int, tmp_path: Path) -> None:
    """A gradient over one point is the point; so is a parity row of one."""
    with pytest.raises(InputError, match="this node answers for 10 together at least"):
        do(Node("ada", shard, tmp_path), work, load, seconds=9.0 if load == 101 else None)


@pytest.mark.parametrize("work", [Embedded(), BlockParity(Code("dealt"), 4)])
def test_many_mini_batches_do_not_lower_what_a_node_answers_for(work: Work, tmp_path: Path) -> None:
    """The server says how many there are; work on all points has nothing to do with them."""
    job, node = replace(JOB, batches=25), Node("ada", shard, tmp_path)
    ask(node, "probe", job, {"model": model()}, load=5)  # embeds no more
    arrays: Arrays = {}
    with suppress(InputError):  # it may refuse, or say that it has nothing yet
        _, arrays = do(node, work, 5, job=job, seconds=0.0)
    assert arrays == {}


def test_a_probe_tells_nothing_of_the_data(tmp_path: Path) -> None:
    facts, arrays = ask(make(tmp_path), "probe", arrays={"model": model()}, load=40)
    assert not arrays["gradient"].any()
    assert 0 < facts["seconds"] <= facts["busy"]


def test_after_a_lost_cache_only_what_is_embedded_counts(tmp_path: Path) -> None:
    facts, answer = do(make(tmp_path), Embedded(), round_=3, seconds=0.0, answered=90)
    assert (facts["points"], answer) == (0, {})


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match="bytes for .*: No space left"):
        do(make(tmp_path), Prepare())


def test_goodbye_clears_the_cache(tmp_path: Path) -> None:
    do(make(tmp_path), Prepare())
    ask(make(tmp_path), "goodbye")
    ask(make(tmp_path), "goodbye")
    assert [folder.name for folder in (tmp_path / "cache").iterdir()] == ["given"]


@pytest.mark.parametrize("work", [Prepare(), Embed()])
def test_points_that_were_embedded_are_not_points_that_were_summed(
    work: Work, tmp_path: Path
) -> None:
    """Otherwise a plan for nearly all of a client's points is refused in every round."""
    node, job = make(tmp_path, least=10), replace(JOB, batches=1)
    assert do(node, work, job=job)[0]["points"] == 101
    assert do(node, Gradient(0), 95, job=job)[0]["points"] == 95
    assert do(node, work, job=job)[0]["points"] == 101  # asked again after a restart


def test_a_goodbye_allows_no_second_answer(tmp_path: Path) -> None:
    """Else a server says it in between, and asks again under the federation's own key."""
    plan = Parity([3, 3], [20, 50], [0.0, 0.0], Code("dealt"))
    node = make(tmp_path, least=10)
    do(node, plan)
    assert do(node, Gradient(0), 30)[0]["points"] == 30
    ask(node, "goodbye")
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert {path.suffix for path in files if path.name != "parity"} == {".json", ".lock"}
    assert all(path.stat().st_size < 200 for path in files)  # hashes, and numbers of points
    with pytest.raises(InputError, match="already sent its parity, and has deleted it"):
        do(make(tmp_path, least=10), plan)
    with pytest.raises(InputError, match="over 31 points from 0 on would show"):
        do(make(tmp_path, least=10), Gradient(0), 31)
    assert do(make(tmp_path, least=10), Gradient(0), 30)[0]["points"] == 30  # it may be continued


def test_a_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    do(make(tmp_path), Gradient(0), 30)
    for folder in ("given", JOB.key):
        assert (tmp_path / "cache" / folder).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("key", ["", "../../etc/cron.d/evil", "0" * 31 + "/", "0" * 31])
def test_a_server_cannot_choose_a_path(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        make(tmp_path).answer("hello", {"job": asdict(JOB) | {"key": key}}, {})


@pytest.mark.parametrize("kind", ["_stream", "entropy", "__init__", "cache", "gradient", "secret"])
def test_only_the_questions_are_answered(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is unknown"):
        ask(make(tmp_path), kind)


def test_too_few_points_for_the_mini_batches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ada has 1 points for 2 mini-batches"):
        do(make(tmp_path, lambda: shard(1)), Prepare())


def test_points_that_are_not_finite(tmp_path: Path) -> None:
    def load() -> Shard:
        data = shard()
        data.inputs[3, 1] = np.nan
        return data

    with pytest.raises(InputError, match="not finite"):
        do(make(tmp_path, load), Prepare())


def test_regression_targets(tmp_path: Path) -> None:
    data = Shard(shard().inputs, np.random.default_rng(2).normal(size=(101, 3)))
    node = make(tmp_path, lambda: data)
    hello, _ = ask(node, "hello", replace(JOB, columns=0))
    assert (hello["columns"], hello["classes"], hello["points"]) == (3, False, 101)
    _, arrays = do(node, Gradient(0), 9)
    order = processing_order(101, 0)[:9]
    expected = gradient(JOB.features().transform(data.inputs[order]), data.labels[order], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-4)


@dataclass(frozen=True, eq=False)
class InNodesStead(SimulatedClient):
    """The simulator's client, with the code that a node draws from the same entropy."""

    entropy: Callable[[int], bytes] = os.urandom

    def code_stream(self, first: int, *rest: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(self.entropy(32)))


CLIENTS, HERE = 3, 1


def _some(rng: np.random.Generator, points: IntArray) -> dict[str, Work]:
    """Return a piece of work of every kind; `points` are those of the node in each mini-batch."""
    batch, size = int(rng.integers(len(points))), (len(points), CLIENTS)
    code = Code(str(rng.choice(["gaussian", "sign", "sparse"])), int(rng.integers(1, 4)))
    loads = np.minimum(rng.integers(0, points.min() + 1, size), points[:, None])
    rows = [int(u) for u in rng.integers(1, 9, len(points))]
    return {
        "prepare": Prepare(),
        "embed": Embed(),
        "weighted_gradient": WeightedGradient(batch, rng.random(CLIENTS)),
        "gradient": Gradient(batch),
        "local_model": LocalModel(batch, int(rng.integers(1, 4)), 0.01, 1e-3),
        "local_direction": LocalDirection(batch, rng.integers(1, 4, CLIENTS), 0.01, 1e-3),
        "embedded": Embedded(least=int(rng.integers(1, 9)), represents=9 * rng.random(CLIENTS)),
        "first_gradient": FirstGradient(represents=9 * rng.random(CLIENTS)),
        "window_gradient": WindowGradient(
            batch, 3, 9 * rng.random(CLIENTS), [rng.random()] * 3, seconds=1e6
        ),
        "counts": Counts(),
        "gram": Gram(),
        "parity": Parity(rows, loads, rng.random(size), code),
        "block_parity": BlockParity(
            Code("dealt", int(rng.integers(1, 3))), int(rng.integers(1, 5))
        ),
    }


SEEDS = st.integers(0, 2**32 - 1)
CHANGED = PrivateSum | Masked | Rounded
OPEN = [kind for kind, work in WORK.items() if not issubclass(work, CHANGED)]
"""Work whose answers are sent as they are; for others see the tests of sums and of messages."""


@pytest.mark.parametrize("kind", OPEN)
@settings(max_examples=15, deadline=None)
@given(held=st.integers(8, 60), batches=st.integers(1, 3), there=st.integers(8, 60), seed=SEEDS)
def test_a_node_and_the_simulator_give_the_same_answer(
    kind: str, held: int, batches: int, there: int, seed: int
) -> None:
    """Every kind of work, on the same points and with the same code.

    The node knows its own data and the work as JSON; the simulator knows all clients' data in one
    array, and the work of all. A new kind of work fails here until `_some` has an example of it.
    """
    rng = np.random.default_rng(seed)
    job = replace(JOB, batches=batches)
    own = Shard(rng.random((held, 5)), rng.integers(0, 3, held))
    order = processing_order(held, job.seed)
    features, targets = job.features().transform(own.inputs[order]), own.targets(order, 3)
    parts = [part[0] for part in mini_batches([np.arange(held)], batches)]
    work = _some(rng, np.array([len(part) for part in parts]))[kind]
    chooses = type(work).load is not Work.load
    embedded = min(there, held) if chooses else held
    least, most = (embedded // 2, held) if chooses else (1, len(parts[-1]))
    asked = held if work.once or kind == "counts" else int(rng.integers(least, most + 1))
    if isinstance(work, WindowGradient):  # so few points are one block
        asked = len(parts[work.batch])
    load = int(work.load(*(np.array(n) for n in (asked, embedded, 0, held))))
    with tempfile.TemporaryDirectory() as folder:
        node = Node("ada", lambda: own, Path(folder), least=1, entropy=stream(7, "code").bytes)
        ask(node, "probe", job, {"model": model()}, load=embedded)  # embeds no more
        seconds = 0.0 if chooses else None
        facts, arrays = do(node, work.for_client(HERE), asked, job=job, seconds=seconds)
    data = [_beside_others(rng, features[part], targets[part]) for part in parts]
    client = InNodesStead(data, HERE, 0, stream(7, "code").bytes)
    assert (client.points, client.batches) == (held, batches)
    expected = work.for_client(HERE).answer(client, load, model()) if load else Answer(0, {})
    assert facts["points"] == expected.points
    assert arrays.keys() == expected.arrays.keys()
    for name, array in arrays.items():
        half = np.asarray(expected.arrays[name]).dtype == np.float16
        assert array.dtype == (np.float16 if half else np.float32)
        scale = np.abs(expected.arrays[name]).max(initial=1.0)
        np.testing.assert_allclose(
            array, expected.arrays[name], rtol=1e-3 if half else 1e-4, atol=1e-5 * scale
        )


def _beside_others(rng: np.random.Generator, features: Any, targets: Any) -> Batch:
    """Return a mini-batch in which client `HERE` has these points, and others have some too."""
    shapes = [(int(rng.integers(0, 5)), 32) for _ in range(CLIENTS)]
    shapes[HERE] = features.shape
    everyone = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    labels = [np.ones((len(rows), 3), np.float32) for rows in everyone]
    everyone[HERE], labels[HERE] = features, targets
    offsets = np.cumsum([0, *(len(rows) for rows in everyone)])
    return Batch(np.concatenate(everyone), np.concatenate(labels), offsets)


ADAPTIVE = ("anytime", "fedadam", "fedyogi", "paced")
"""Schemes whose steps are as long as the step size, whatever the gradient is."""


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - {"private"}))  # it is in `test_sums.py`
def test_every_scheme_trains_on_nodes(name: str, tmp_path: Path) -> None:
    """Whatever it asks for: nodes do the work, the server takes it and writes its records."""
    scheme = {"name": name} | ({"weights": "client"} if name == "paced" else {})
    experiment, directory = experiment_of(scheme=scheme), RunDirectory(tmp_path / "run")
    if name in ADAPTIVE:
        experiment = changed(experiment.model_dump(), {"training.step": 0.05}, "a test")
    said: list[str] = []
    if make_scheme(name, {}).info.only_simulated:
        with pytest.raises(InputError, match=": simulate it"):
            make_scheme(name, {}).check(limits=Limits(1.0, 1.0, 1, 1.0))
        return
    federate(transport_of(experiment, tmp_path / "nodes"), experiment, directory, said.append)
    assert not [sentence for sentence in said if "refused" in sentence]
    *_, last = Journal(directory.path).exchanges()
    least = 0.3 if name == "tifl" else 0.5  # of ten classes; a round of it sees a third of them
    assert last.record.metric > least
    assert outcomes(directory)
    assert replay(directory).same


@dataclass(frozen=True)
class ClassCounts(Work):
    """A kind of work that is not the package's: how many of the first points have each label."""

    times: float

    kind: ClassVar[str] = "class_counts"
    needs_model: ClassVar[bool] = False

    def answer(self, client: Client, load: int, model: Any) -> Answer:
        counts = sum(targets.sum(0) for _, targets in client.first(load))
        return Answer(load, {"counts": self.times * np.asarray(counts)})

    def cost(self, task: Task, loads: IntArray) -> Cost:
        return Cost(loads.astype(float), np.zeros(len(loads)))


OWN_MODULE = ClassCounts.__module__


def test_a_node_does_the_work_of_modules_that_it_knows(tmp_path: Path) -> None:
    node = Node("ada", shard, tmp_path, works=("json", OWN_MODULE))
    facts, arrays = do(node, ClassCounts(2.0), 40)
    _, targets = features_and_targets()
    assert facts["points"] == 40
    np.testing.assert_array_equal(arrays["counts"], 2.0 * targets[:40].sum(0))
    assert arrays["counts"].dtype == np.float32
    with pytest.raises(InputError, match="this node answers for 10 together at least"):
        do(node, ClassCounts(2.0), 9)


def test_a_node_refuses_the_work_of_other_modules(tmp_path: Path) -> None:
    """What a server may ask for is the node's own choice, and of the package itself by default."""
    for works in ((), ("json",), (OWN_MODULE + ".more",)):
        node = Node("ada", shard, tmp_path, works=works)
        with pytest.raises(InputError, match=f"the work '{OWN_MODULE}:ClassCounts' is unknown"):
            do(node, ClassCounts(2.0), 40)


@pytest.mark.parametrize(
    "kind",
    [
        "os:system",
        "os:",
        ":system",
        "os",
        "subprocess:Popen",
        "builtins:eval",
        f"{OWN_MODULE}:os.system",
        f"{OWN_MODULE}:my_loader",
        f"{OWN_MODULE}:Shard",
        f"{OWN_MODULE}:nothing",
        "gradent",
        "",
    ],
)
def test_a_name_that_is_no_work_is_refused(kind: str, tmp_path: Path) -> None:
    """Neither another module's functions nor what a known module happens to import."""
    facts: dict[str, Any] = {"work": {"kind": kind}, "round": 0, "load": 40, "answered": 0}
    for works in ((), ("os", "subprocess", "builtins", OWN_MODULE)):
        node = Node("ada", shard, tmp_path, works=works)
        with pytest.raises(InputError, match="is unknown here"):
            ask(node, "work", seconds=None, **facts)


LARGE = """
import sys
from dataclasses import asdict
from pathlib import Path
import numpy as np
from codedfedl.data.shards import read_shard
from codedfedl.federate.job import Job
from codedfedl.federate.node.node import Node

folder = Path(sys.argv[1])
job = asdict(Job("0" * 32, "fourier", 500, 2.0, 0, 1, columns=10))
node = Node("ada", lambda: read_shard(folder / "data"), folder / "cache")
arrays = dict(model=np.zeros((500, 10), np.float32))

def do(work, load, arrays):
    facts = dict(job=job, work=work, round=0, load=load, answered=0, seconds=None)
    node.answer("work", facts, arrays)

gradient = dict(kind="gradient", batch=0)
do(gradient, 100, arrays)
code = dict(name="dealt", nonzeros=1)
do(dict(kind="block_parity", code=code, mixing=1000, bits=16), 200_000, {})
do(gradient, 200_000, arrays)
pages = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")]
print(pages[0] // 1024)
"""


@pytest.mark.slow
def test_data_larger_than_memory_are_read_in_chunks(tmp_path: Path) -> None:
    """400 MB of features, 80 MB of inputs: the process's own memory stays far below either.

    What is mapped from files counts for nothing: the operating system drops it when it must.
    """
    (tmp_path / "data").mkdir()
    inputs = np.lib.format.open_memmap(
        tmp_path / "data" / "inputs.npy", "w+", np.float32, (200_000, 100)
    )
    inputs[:] = np.random.default_rng(0).random((1, 100))
    inputs.flush()
    np.save(tmp_path / "data" / "labels.npy", np.arange(200_000) % 10)
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert int(done.stdout) < 250


def test_shards_are_read_as_they_are(tmp_path: Path) -> None:
    inputs, labels = np.array([[1.0, 200.0], [3.0, 4.0]]), np.array([0, 1])
    np.savez(tmp_path / "a.npz", inputs=inputs, labels=labels)
    (tmp_path / "a.csv").write_text("x,y,label\n1,200,0\n3,4,1\n")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "inputs.npy", inputs)
    np.save(tmp_path / "folder" / "labels.npy", labels)
    for name in ("a.npz", "a.csv", "folder"):
        found = read_shard(tmp_path / name)
        np.testing.assert_array_equal(found.inputs, inputs)
        np.testing.assert_array_equal(found.labels, labels)
        assert found.columns == 2
    assert isinstance(read_shard(tmp_path / "folder").inputs, np.memmap)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros(3), np.zeros(3, int), "inputs has shape"),
        (np.zeros((3, 2)), np.zeros(2, int), "inputs has 3 rows and labels has 2"),
        (np.zeros((3, 2)), np.array(["a", "b", "c"]), "number the classes"),
        (np.zeros((2, 2)), np.array([0, -1]), "labels holds -1"),
        (np.zeros((0, 2)), np.zeros(0, int), "inputs has shape"),
    ],
)
def test_wrong_shards_are_refused(inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Shard(inputs, labels)


def test_missing_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give an .npz"):
        read_shard(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="inputs.npy"):
        read_shard(tmp_path / "folder")


def my_loader(config: dict[str, Any]) -> tuple[list[list[float]], list[int]]:
    return [[float(config["scale"])], [2.0]], [0, 1]


def broken_loader(config: dict[str, Any]) -> tuple[list[list[float]], list[int]]:
    raise ZeroDivisionError(str(config))


def test_a_users_own_loader() -> None:
    found = load_shard("tests.test_node:my_loader", {"scale": 3})
    assert found.inputs.tolist() == [[3.0], [2.0]]
    for wrong in ("tests.test_node:nothing", "no.such.module:f", "nonsense", ":f"):
        with pytest.raises(InputError, match="write module:function"):
            load_shard(wrong, {})
    with pytest.raises(InputError, match="failed .ZeroDivisionError.* must return inputs"):
        load_shard("tests.test_node:broken_loader", {})
