"""What a client of a federation computes, keeps on its disk, and never gives away."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codedfedl.data import mini_batches
from codedfedl.data.partitions import processing_order
from codedfedl.data.shards import Shard, load_shard, read_shard
from codedfedl.errors import InputError
from codedfedl.federate import node as nodes
from codedfedl.federate.node import Arrays, Job, Node
from codedfedl.learning.codes import Code
from codedfedl.learning.gradients import gradient
from codedfedl.learning.parity import encode, point_weights
from codedfedl.streams import stream

JOB = Job("0" * 32, "fourier", 32, 2.0, 0, 2, columns=3)
SPARSE = asdict(Code("sparse", 2))


def shard(points: int = 101) -> Shard:
    rng = np.random.default_rng(0)
    return Shard(rng.random((points, 5)), rng.integers(0, 3, points))


def make(tmp_path: Path, load: Callable[[], Shard] = shard, seed: int = 0) -> Node:
    entropy = stream(seed, "code").bytes
    return Node("ada", load, tmp_path / "cache", least=1, entropy=entropy)


def ask(node: Node, kind: str, job: Job = JOB, arrays: Arrays | None = None, **facts: Any) -> Any:
    return node.answer(kind, {"job": asdict(job), **facts}, arrays or {})


def features_and_targets() -> tuple[Any, Any]:
    data, order = shard(), processing_order(101, 0)
    return JOB.features.transform(data.inputs[order]), data.targets(order, 3)


def model() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=(32, 3)).astype(np.float32)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_gradient_is_that_over_the_first_points_of_its_mini_batch(
    batch: int, tmp_path: Path
) -> None:
    features, targets = features_and_targets()
    rows = mini_batches([np.arange(101)], 2)[batch][0][:7]
    facts, arrays = ask(
        make(tmp_path), "gradient", arrays={"model": model()}, round=4, batch=batch, load=7
    )
    assert (facts["round"], facts["points"]) == (4, 7)
    expected = gradient(features[rows], targets[rows], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-5)
    assert arrays["gradient"].dtype == np.float32


def test_parity_is_the_papers_with_the_nodes_own_code(tmp_path: Path) -> None:
    features, targets = features_and_targets()
    plan: dict[str, Any] = {
        "rows": [4, 6],
        "loads": [20, 50],
        "return_probabilities": [0.5, 0.9],
    }
    _, arrays = ask(make(tmp_path), "parity", **plan, code=SPARSE)
    entropy = stream(0, "code").bytes
    for b, part in enumerate(mini_batches([np.arange(101)], 2)):
        rng = np.random.default_rng(int.from_bytes(entropy(32)))
        weights = point_weights(len(part[0]), plan["loads"][b], plan["return_probabilities"][b])
        expected = encode(
            features[part[0]], targets[part[0]], weights, plan["rows"][b], rng, Code("sparse", 2)
        )
        np.testing.assert_allclose(arrays[f"features{b}"], expected.features, atol=1e-5)
        np.testing.assert_allclose(arrays[f"targets{b}"], expected.targets, atol=1e-5)


def test_parity_is_given_once(tmp_path: Path) -> None:
    """The same question has the same answer, also after a restart; another has none."""
    plan: dict[str, Any] = {"loads": [20, 50], "return_probabilities": [0.5, 0.9], "code": SPARSE}
    _, first = ask(make(tmp_path), "parity", rows=[4, 6], **plan)
    _, again = ask(make(tmp_path, seed=7), "parity", rows=[4, 6], **plan)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    with pytest.raises(InputError, match="gave its parity already"):
        ask(make(tmp_path), "parity", rows=[5, 6], **plan)
    with pytest.raises(InputError, match="gave its parity already"):
        ask(make(tmp_path), "block_parity", code=SPARSE, mixing=10, points=101, seconds=9.0)


def test_the_code_comes_from_the_operating_system_and_is_kept_nowhere(tmp_path: Path) -> None:
    """Two nodes with the same data differ, and no file holds the 32 bytes of entropy."""
    drawn: list[bytes] = []

    def entropy(size: int) -> bytes:
        drawn.append(os.urandom(size))
        return drawn[-1]

    plan: dict[str, Any] = {"rows": [4, 6], "loads": [0, 0], "return_probabilities": [0.0, 0.0]}
    watched = Node("ada", shard, tmp_path / "a", least=1, entropy=entropy)
    _, first = ask(watched, "parity", **plan, code=SPARSE)
    other_node = Node("ada", shard, tmp_path / "b", least=1)
    _, other = ask(other_node, "parity", **plan, code=SPARSE)
    assert not np.allclose(first["features0"], other["features0"])
    assert [len(secret) for secret in drawn] == [32, 32]
    for path in (path for path in (tmp_path / "a").rglob("*") if path.is_file()):
        assert not any(secret in path.read_bytes() for secret in drawn)
    assert Node("ada", shard, tmp_path).entropy is os.urandom


def test_block_parity_stands_for_all_points(tmp_path: Path) -> None:
    facts, arrays = ask(
        make(tmp_path), "block_parity", code=SPARSE, mixing=10, points=60, seconds=9.0
    )
    assert facts["points"] == 60
    assert arrays["features0"].shape == (6, 32)
    features, targets = features_and_targets()
    rng = np.random.default_rng(int.from_bytes(stream(0, "code").bytes(32)))
    weights = np.full(60, np.sqrt(101 / 60))
    expected = encode(features[:60], targets[:60], weights, 6, rng, Code("sparse", 2))
    np.testing.assert_allclose(arrays["features0"], expected.features, atol=1e-5)


def test_a_node_without_time_sends_no_block_parity(tmp_path: Path) -> None:
    facts, arrays = ask(
        make(tmp_path), "block_parity", code=SPARSE, mixing=10, points=60, seconds=0.0
    )
    assert facts["points"] == 0
    assert arrays == {}
    again, _ = ask(make(tmp_path), "block_parity", code=SPARSE, mixing=10, points=60, seconds=9.0)
    assert again["points"] == 60  # what was not given may still be


def test_an_embedded_gradient_stands_for_all_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_ROWS_AT_ONCE", 20)
    features, targets = features_and_targets()
    arrays = {"model": model()}
    ask(make(tmp_path), "probe", arrays=arrays, load=40)  # embeds no more
    facts, answer = ask(
        make(tmp_path),
        "embedded_gradient",
        arrays=arrays,
        round=0,
        least=1,
        seconds=0.0,
        answered=0,
    )
    assert facts["points"] == 40
    expected = gradient(features[:40], targets[:40], model()) * (101 / 40)
    np.testing.assert_allclose(answer["gradient"], expected, rtol=2e-5, atol=1e-4)
    facts, _ = ask(
        make(tmp_path),
        "embedded_gradient",
        arrays=arrays,
        round=1,
        least=1,
        seconds=9.0,
        answered=40,
    )
    assert facts["points"] == 101


def test_embedding_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_ROWS_AT_ONCE", 20)
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
        ask(make(tmp_path, load), "prepare")
    ask(make(tmp_path, load), "prepare")
    assert calls == [20, 20, 20, 20, 20, 20, 1]
    _, arrays = ask(
        make(tmp_path, load), "gradient", arrays={"model": model()}, round=0, batch=0, load=51
    )
    features, targets = features_and_targets()
    expected = gradient(features[:51], targets[:51], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("gradient", {"round": 0, "batch": 0, "load": 9, "arrays": {"model": model()}}),
        ("block_parity", {"code": SPARSE, "mixing": 9, "points": 101, "seconds": 9.0}),
        (
            "parity",
            {
                "rows": [20, 20],
                "loads": [9, 9],
                "return_probabilities": [0.5, 0.5],
                "code": SPARSE,
            },
        ),
    ],
)
def test_a_node_does_not_answer_for_few_points(
    kind: str, facts: dict[str, Any], tmp_path: Path
) -> None:
    """A gradient over one point is the point; so is a parity row of one."""
    with pytest.raises(InputError, match="ada answers for 10 together at least"):
        ask(Node("ada", shard, tmp_path), kind, **facts)


def test_a_probe_tells_nothing_of_the_data(tmp_path: Path) -> None:
    facts, arrays = ask(make(tmp_path), "probe", arrays={"model": model()}, load=40)
    assert not arrays["gradient"].any()
    assert 0 < facts["seconds"] <= facts["busy"]


def test_after_a_lost_cache_only_what_is_embedded_counts(tmp_path: Path) -> None:
    arrays = {"model": model()}
    common: dict[str, Any] = {"round": 3, "least": 1, "seconds": 0.0, "answered": 90}
    facts, answer = ask(make(tmp_path), "embedded_gradient", arrays=arrays, **common)
    assert (facts["points"], answer) == (0, {})


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match="bytes for .*: No space left"):
        ask(make(tmp_path), "prepare")


def test_a_restarted_node_needs_no_data(tmp_path: Path) -> None:
    def gone() -> Shard:
        raise AssertionError("the cache holds everything")

    ask(make(tmp_path), "prepare")
    ask(make(tmp_path, gone), "gradient", arrays={"model": model()}, round=0, batch=0, load=5)


def test_goodbye_clears_the_cache(tmp_path: Path) -> None:
    ask(make(tmp_path), "prepare")
    ask(make(tmp_path), "goodbye")
    ask(make(tmp_path), "goodbye")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    ask(make(tmp_path), "prepare")
    assert (tmp_path / "cache" / JOB.key).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("key", ["", "../../etc/cron.d/evil", "0" * 31 + "/", "0" * 31])
def test_a_server_cannot_choose_a_path(key: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        make(tmp_path).answer("hello", {"job": asdict(JOB) | {"key": key}}, {})


@pytest.mark.parametrize("kind", ["_rng", "entropy", "__init__", "shard", "secret"])
def test_only_the_questions_are_answered(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is unknown"):
        ask(make(tmp_path), kind)


def test_too_few_points_for_the_mini_batches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ada has 1 points for 2 mini-batches"):
        ask(make(tmp_path, lambda: shard(1)), "prepare")


def test_points_that_are_not_finite(tmp_path: Path) -> None:
    def load() -> Shard:
        data = shard()
        data.inputs[3, 1] = np.nan
        return data

    with pytest.raises(InputError, match="not finite"):
        ask(make(tmp_path, load), "prepare")


def test_regression_targets(tmp_path: Path) -> None:
    data = Shard(shard().inputs, np.random.default_rng(2).normal(size=(101, 3)))
    node = make(tmp_path, lambda: data)
    hello, _ = ask(node, "hello", replace(JOB, columns=0))
    assert (hello["columns"], hello["classes"], hello["points"]) == (3, False, 101)
    _, arrays = ask(node, "gradient", arrays={"model": model()}, round=0, batch=0, load=9)
    order = processing_order(101, 0)[:9]
    expected = gradient(JOB.features.transform(data.inputs[order]), data.labels[order], model())
    np.testing.assert_allclose(arrays["gradient"], expected, rtol=2e-5, atol=1e-4)


LARGE = """
import resource, sys
from dataclasses import asdict
from pathlib import Path
import numpy as np
from codedfedl.data.shards import read_shard
from codedfedl.federate.node import Job, Node

folder = Path(sys.argv[1])
job = asdict(Job("0" * 32, "fourier", 500, 2.0, 0, 1, columns=10))
node = Node("ada", lambda: read_shard(folder / "data"), folder / "cache")
model = np.zeros((500, 10), np.float32)
node.answer("gradient", dict(job=job, round=0, batch=0, load=100), dict(model=model))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = dict(name="balanced", nonzeros=1)
node.answer("block_parity", dict(job=job, code=code, mixing=1000, points=200_000, seconds=1e9), {})
node.answer("gradient", dict(job=job, round=0, batch=0, load=200_000), dict(model=model))
pages = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")]
print(pages[0] // 1024)
"""


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
