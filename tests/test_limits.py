"""What a malicious server cannot get out of an honest node: attacks, and a search for more."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from math import inf
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codedfedl.arrays import FloatArray
from codedfedl.core.client import (
    WORK,
    BlockParity,
    Counts,
    DrawnGradient,
    Embedded,
    FirstGradient,
    Gradient,
    Gram,
    LocalDirection,
    LocalModel,
    Parity,
    WeightedGradient,
    work_to,
)
from codedfedl.core.clipped import ClippedGradient, ClippedMoments, PrivateSum
from codedfedl.core.encoding import MoreParity
from codedfedl.core.masked import GradientDelta, Masked
from codedfedl.core.work import ArrayClient, Work
from codedfedl.data.shards import Shard
from codedfedl.errors import InputError
from codedfedl.federate.job import Job
from codedfedl.federate.node.limits import digest_of
from codedfedl.federate.node.node import Node
from codedfedl.federate.node.schema import Sizes, checked_work
from codedfedl.federate.secure.helper import HelperNode
from codedfedl.learning.codes import Code
from codedfedl.privacy.accounting import Account, Release
from codedfedl.privacy.contract import Contract, contract_of
from codedfedl.privacy.fixed_point import FixedPoint, noise_steps

POINTS, INPUTS, FEATURES, LEAST = 40, 3, 64, 10
JOB = Job("0" * 32, "fourier", FEATURES, 1.0, 0, 2, columns=POINTS)
OTHER = "1" * 32


def shard() -> Shard:
    """Return points each of which has a label column of its own, so that it marks its answers."""
    rng = np.random.default_rng(0)
    return Shard(rng.random((POINTS, INPUTS)), np.eye(POINTS, dtype=np.float64))


class Attack:
    """A server that keeps every sum it gets, as the coefficients of a node's points in it."""

    def __init__(self, folder: Path, least: int = LEAST, accepted: tuple[str, ...] = ()) -> None:
        self.folder, self.least = folder, least
        self.node = Node("ada", shard, folder, least=least, accepted=accepted)
        self.sums: list[FloatArray] = []

    def ask(self, kind: str, job: Job | Mapping[str, Any] = JOB, **facts: Any) -> Any:
        """Ask in the words that come over a network."""
        document = asdict(job) if isinstance(job, Job) else dict(job)
        arrays = {"model": facts.pop("model")} if "model" in facts else {}
        return self.node.answer(kind, json.loads(json.dumps({"job": document, **facts})), arrays)

    def work(self, work: Work | Mapping[str, Any], load: int, job: Job = JOB, **more: Any) -> Any:
        """Ask for work at the model 0, where a sum shows whose labels are in it."""
        document = work_to(work) if isinstance(work, Work) else work
        facts = {"round": 0, "load": load, "answered": 0, "seconds": None} | more
        model = np.zeros((job.n_components, job.columns), dtype=np.float32)
        _, arrays = self.ask("work", job, work=document, model=model, **facts)
        if "counts" in arrays:
            self.sums.append(arrays["counts"])
        for name in ("gradient", "moment", "direction", "model"):
            if name in arrays:
                self.sums.append(self.coefficients(arrays[name], job))
        return arrays

    def coefficients(self, array: FloatArray, job: Job) -> FloatArray:
        """Return how often each point is in Σ x·yᵀ, whose column k is point k's features."""
        features = job.features().transform(shard().inputs).astype(np.float64)
        along = np.einsum("kq,qk->k", features, array)
        weights: FloatArray = np.abs(along / (features**2).sum(1))
        largest = float(weights.max())
        return np.where(weights > 1e-4 * largest, weights, 0.0) / max(largest, 1e-30)

    def fewest(self) -> int:
        """Return how few points are in a combination of sums that elimination finds."""
        rows = [row for row in self.sums if row.any()]
        pairs = [a - b for a in rows for b in rows]
        reduced = _eliminated(np.array(rows)) if rows else []
        counts = [int(np.count_nonzero(np.abs(row) > 1e-3)) for row in [*rows, *pairs, *reduced]]
        return min((count for count in counts if count), default=POINTS)


def _eliminated(rows: FloatArray) -> list[FloatArray]:
    """Return the reduced row echelon form: sums from which all others were subtracted."""
    rows, done = rows.copy(), 0
    for column in range(rows.shape[1]):
        if done == len(rows):
            break
        best = done + int(np.argmax(np.abs(rows[done:, column])))
        if abs(rows[best, column]) < 1e-3:
            continue
        rows[[done, best]] = rows[[best, done]]
        rows[done] /= rows[done, column]
        others = np.arange(len(rows)) != done
        rows[others] -= np.outer(rows[others, column], rows[done])
        done += 1
    return list(rows)


@contextmanager
def attack(**options: Any) -> Iterator[Attack]:
    with tempfile.TemporaryDirectory() as folder:
        yield Attack(Path(folder), **options)


def refused(message: str) -> Any:
    return pytest.raises(InputError, match=message)


class TestFewPoints:
    """Every one of these read single points once."""

    def test_an_honest_sum_is_over_the_points_asked_for(self) -> None:
        with attack() as server:
            server.work(Gradient(0), 15)
            assert np.count_nonzero(server.sums[0]) == server.fewest() == 15

    def test_a_mini_batch_of_one_point(self) -> None:
        job = replace(JOB, batches=POINTS)
        for work in (
            Gradient(0),
            WeightedGradient(0, 1.0),
            LocalModel(0, 1, 0.1, 0.0),
            LocalDirection(0, 1, 0.1, 0.0),
        ):
            with attack() as server, refused("its points end at 1"):
                server.work(work, LEAST, job)

    def test_points_that_are_not_embedded_do_not_count(self) -> None:
        model = np.zeros((FEATURES, POINTS), dtype=np.float32)
        with attack() as server:
            server.ask("probe", load=1, model=model)
            for work in (Gradient(0), Gram(), Embedded()):
                with suppress(InputError):
                    server.work(work, LEAST, seconds=0.0)
            assert server.sums == []

    def test_another_seed_orders_nothing_anew(self) -> None:
        """Ten probes with other seeds once embedded ten times the same point."""
        model = np.zeros((FEATURES, POINTS), dtype=np.float32)
        with attack() as server:
            server.ask("probe", load=1, model=model)
            with refused("is not accepted: another job was answered before"):
                server.ask("probe", replace(JOB, seed=1), load=2, model=model)
            with refused("--accept"):
                server.ask("probe", replace(JOB, seed=1, key=OTHER), load=2, model=model)

    def test_parity_of_one_point(self) -> None:
        """All weights are 0 but one: a row of parity is that point, times a random number."""
        for chance in (1.0, 1 - 1e-12):
            thin = Parity([5, 5], [19, 20], [chance, chance])
            with attack() as server, refused("parity mixes 1 points"):
                server.work(thin, POINTS)

    @pytest.mark.parametrize(
        "change", [{"low": [[0.0] * 3] * 40}, {"span": [[1.0]] * 40}, {"offset": [[0.0] * 40] * 40}]
    )
    def test_scaling_has_no_axis_of_points(self, change: dict[str, Any]) -> None:
        plain = {"low": [0.0] * 3, "span": [1.0] * 3, "offset": [0.0] * 40}
        with attack() as server, refused("job.scaling"):
            server.work(Gradient(0), 20, replace(JOB, scaling=plain | change))

    def test_means_and_a_sum_over_all_points_but_one(self, tmp_path: Path) -> None:
        """Exact means of raw points, less a sum over all but one, once were this one."""
        rng = np.random.default_rng(0)
        inputs, labels = rng.normal(size=(200, 5)), rng.integers(0, 3, 200)
        node = Node("ada", lambda: Shard(inputs, labels), tmp_path)
        job = asdict(replace(JOB, kind="identity", n_components=5, batches=1, columns=3))
        with refused(r"moments\.about is unknown"):
            node.answer("moments", {"job": job, "about": [0.0] * 5}, {})
        _, moments = node.answer("moments", {"job": job}, {})
        work = {"work": work_to(Gradient(0)), "round": 0, "load": 199, "answered": 0}
        model = {"model": np.zeros((5, 3), np.float32)}
        asked = {"job": job | {"points": 199}, "seconds": None, **work}
        _, arrays = node.answer("work", asked, model)
        last = 200 * moments["means"] + arrays["gradient"].sum(1)
        assert np.abs(inputs - last).max(1).min() > 1.0
        np.testing.assert_allclose(moments["means"], inputs.mean(0), atol=1 / 8)
        np.testing.assert_allclose(moments["spreads"], inputs.std(0), rtol=0.1)

    def test_counts_and_a_sum_over_all_points_but_one(self) -> None:
        """With features that are all alike a sum shows its labels; counts less these, one label."""
        job = replace(JOB, batches=1)
        with attack() as server:
            server.work(Counts(), POINTS, job)
            np.testing.assert_array_equal(server.sums[0], np.ones(POINTS))
            server.work(Counts(), POINTS, job)
            for load in (POINTS - 1, POINTS - 9):
                with refused("would show, beside earlier sums"):
                    server.work(Gradient(0), load, job)
            server.work(Gradient(0), POINTS - 10, job)  # a tenth of all points is no rule for them
            assert server.fewest() == 10
        with attack() as server:
            server.work(Gradient(0), POINTS - 1, job)
            with refused("would show, beside earlier sums"):
                server.work(Counts(), POINTS, job)

    def test_counts_leave_an_elastic_sum_its_points_but_the_last(self) -> None:
        with attack() as server:
            server.work(Counts(), POINTS)
            server.work(Embedded(), POINTS - 2)
            assert np.count_nonzero(server.sums[1]) == POINTS - 10

    def test_counts_are_of_all_points_of_a_job(self) -> None:
        for load in (1, 10, 39):
            with attack() as server, refused("counts (mixes|over)|the work needs points 0 to 40"):
                server.work(Counts(), load)
        with attack() as server:
            with refused("this node answers for 41 together at least"):
                server.node.least = POINTS + 1
                server.work(Counts(), POINTS)
            with refused(r"counts\.\w+ is unknown"):
                server.work(work_to(Counts()) | {"first": 3}, POINTS)

    def test_counts_of_two_accepted_jobs(self) -> None:
        """Of 30 and of 31 points: the difference once was the label of one."""
        one, other = (replace(JOB, points=30 + k, key=str(k) * 32) for k in (0, 1))
        with attack(accepted=(digest_of(other, shard().fingerprint),)) as server:
            server.work(Counts(), 30, one)
            server.work(Gradient(0), 15, one)
            assert (server.sums[0] >= server.sums[1]).all()  # in the order of all sums
            with refused("would show, beside earlier sums"):
                server.work(Counts(), 31, other)

    def test_means_of_few_points(self, tmp_path: Path) -> None:
        """Of one point they are this point."""
        node = Node("ada", lambda: Shard(np.ones((1, 2)), np.zeros(1)), tmp_path)
        with refused("ada holds 1 points, and answers for 10 together at least"):
            node.answer("moments", {"job": asdict(JOB)}, {})

    def test_means_of_changed_data_are_refused(self, tmp_path: Path) -> None:
        """The difference of exact means of both would be what changed."""
        Attack(tmp_path).ask("moments")
        changed = Attack(tmp_path)
        changed.node = Node("ada", lambda: Shard(shard().inputs[1:], shard().labels[1:]), tmp_path)
        with refused("the data have changed since an earlier job") as error:
            changed.ask("moments")
        changed.node.accepted = [str(error.value).rpartition(" ")[2]]
        changed.ask("moments")
        scaled = {"low": [0.0] * 3, "span": [1.0] * 3, "offset": [0.0] * 40}
        changed.work(Gradient(0), 15, replace(JOB, scaling=scaled))  # accepted with the means
        with refused("another job was answered before"):
            changed.work(Gradient(0), 15, replace(JOB, key=OTHER))

    @pytest.mark.parametrize("name", ["dealt", "sparse"])
    def test_rows_of_a_code_with_uneven_weights(self, name: str, tmp_path: Path) -> None:
        """A row that mixes forty points once mixed six whose weight was not 0."""
        labels = np.eye(1000)
        node = Node("ada", lambda: Shard(labels[:, :3], labels), tmp_path)
        job = asdict(replace(JOB, batches=1, n_components=8, columns=1000))
        fewest = []
        for load in range(990, -10, -10):
            work = work_to(Parity([25], [load], [1.0], Code(name)))
            asked = {"job": job, "work": work, "round": 0, "load": 1000, "answered": 0}
            with suppress(InputError):
                _, arrays = node.answer("work", asked | {"seconds": None}, {})
                fewest.append((np.abs(arrays["targets0"]) > 1e-6).sum(1).min())
                break
        assert all(count >= LEAST for count in fewest)
        assert name == "sparse" or fewest

    def test_questions_at_the_same_time(self, tmp_path: Path) -> None:
        """A second process once emptied the cache while the first embedded: all rows counted."""
        other = Attack(tmp_path)
        threads: list[Thread] = []
        model = np.zeros((FEATURES, POINTS), dtype=np.float32)

        def clock() -> float:
            if not threads:
                asked = {"load": 1, "model": model}
                threads.append(Thread(target=other.ask, args=("probe",), kwargs=asked))
                threads[0].start()
                threads[0].join(0.5)
            return 0.0

        server = Attack(tmp_path)
        server.node.clock = clock
        server.work(Gradient(0), 15)
        threads[0].join()
        assert np.count_nonzero(server.sums[0]) == 15

    def test_parity_asked_for_by_two_at_the_same_time_is_given_once(self, tmp_path: Path) -> None:
        """Two processes would draw a code each, before either writes down that it has."""
        both, threads = [Attack(tmp_path), Attack(tmp_path)], list[Thread]()
        answers: list[Any] = []

        def ask(server: Attack) -> None:
            answers.append(server.work(Parity([4, 4], [20, 20], [0.5, 0.5]), POINTS))

        def entropy(count: int) -> bytes:
            if not threads:
                threads.append(Thread(target=ask, args=(both[1],)))
                threads[0].start()
                threads[0].join(0.5)
            return os.urandom(count)

        both[0].node.entropy = entropy
        ask(both[0])
        threads[0].join()
        for name, array in answers[0].items():
            np.testing.assert_array_equal(array, answers[1][name])

    def test_whether_an_answer_is_finite_depends_on_no_single_point(self) -> None:
        """With numbers near the largest float32, one point's product once was beyond it, or not."""
        model = np.full((FEATURES, POINTS), 1e37, np.float32)
        facts: dict[str, Any] = {"round": 0, "load": 15, "answered": 0, "seconds": None}
        with attack() as server, refused("the model has numbers beyond"):
            server.ask("work", work=work_to(Gradient(0)), model=model, **facts)

    @pytest.mark.parametrize("load", [1, 2, 10, 40])
    def test_parity_that_16_bits_cannot_hold_tells_nothing(self, load: int) -> None:
        """The refusal once named the largest number of a row, also where a row was one point."""
        scaling = {"low": [0.0] * 3, "span": [1e-6, 1e9, 1e9], "offset": [0.0] * POINTS}
        raw = replace(JOB, kind="identity", n_components=INPUTS, batches=1, scaling=scaling)
        with attack() as server, refused("mixes 1 points"):
            server.work(BlockParity(Code("dealt"), 1, 16), load, raw)

    @pytest.mark.parametrize("scaling", [{"low": 1e300}, {"span": 1e-290}, {"offset": -1e300}])
    def test_a_scale_makes_no_point_too_large(self, scaling: dict[str, float]) -> None:
        """Whether the first point was refused once told on which side of a number it lies."""
        plain = {"low": [0.0] * 3, "span": [1.0] * 3, "offset": [0.0] * POINTS}
        changed = {name: [value] * len(plain[name]) for name, value in scaling.items()}
        model = np.zeros((FEATURES, POINTS), dtype=np.float32)
        with attack() as server:
            server.ask("probe", replace(JOB, scaling=plain | changed), load=1, model=model)
            server.work(Counts(), POINTS, replace(JOB, scaling=plain | changed))

    def test_a_seed_is_one_that_features_are_drawn_with(self) -> None:
        for seed in (-1, 2**32):
            with attack() as server, refused(r"job\.seed is"):
                server.ask("hello", asdict(JOB) | {"seed": seed})

    def test_an_encoder_that_fails_tells_the_server_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The error quotes the point, for the node's owner."""
        texts = np.array([["a secret"]] * 20)
        node = Node(
            *("ada", lambda: Shard(texts, np.zeros(20, np.int64)), tmp_path),
            encoder="tests.encoders:not_finite",
        )
        job = replace(JOB, kind="encoder", n_components=2, columns=1, batches=1)
        asked = {"job": asdict(job) | {"encoder": {"text": True, "normalise": True}}, "load": 5}
        with refused("ada cannot embed its points") as error:
            node.answer("probe", asked, {"model": np.zeros((2, 1), np.float32)})
        assert "secret" not in str(error.value)
        assert "a secret" in caplog.text

    def test_data_that_cannot_be_read_tell_the_server_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def load() -> Shard:
            raise InputError("row 3 holds 'a secret'")

        with refused("ada cannot read its data") as error:
            Node("ada", load, tmp_path).answer("hello", {"job": asdict(JOB)}, {})
        assert "secret" not in str(error.value)
        assert "a secret" in caplog.text

    def test_points_beyond_any_sum(self, tmp_path: Path) -> None:
        raw = replace(JOB, kind="identity", n_components=INPUTS, batches=1)
        large = Node("ada", lambda: Shard(shard().inputs * 1e12, shard().labels), tmp_path, least=1)
        asked = {"job": asdict(raw), "load": 15}
        model = {"model": np.zeros((INPUTS, POINTS), np.float32)}
        with refused("numbers that are not finite, or beyond"):
            large.answer("probe", asked, model)

    def test_two_sums_do_not_show_their_difference(self) -> None:
        with attack() as server:
            server.work(Gradient(0), 15)
            for load in (14, 16, 20):
                with refused("would show, beside earlier sums"):
                    server.work(Gradient(0), load)
            server.work(Gradient(0), 15)
            assert server.fewest() == 15

    def test_the_mini_batches_of_an_epoch_and_all_of_them(self) -> None:
        """They are sums side by side, which tell no more together than one by one."""
        job = replace(JOB, batches=4)
        with attack() as server:
            for batch in (0, 1, 2, 3, 0):
                server.work(Gradient(batch), 10, job)
            server.work(Embedded(), POINTS, job)
            assert server.fewest() == 10

    def test_an_elastic_sum_is_cut_at_the_end_of_an_earlier_one(self) -> None:
        with attack() as server:
            server.work(Gradient(0), 15)
            server.work(Embedded(), 18)
            assert np.count_nonzero(server.sums[1]) == server.fewest() == 15

    def test_sums_of_two_federations_are_judged_together(self) -> None:
        with attack() as server:
            server.work(Gradient(0), 15)
            with refused("would show, beside earlier sums"):
                server.work(Gradient(0), 16, replace(JOB, key=OTHER))

    def test_sums_of_two_accepted_jobs_are_judged_together(self) -> None:
        """Other mini-batches, and another seed: the points have one order all the same."""
        other = replace(JOB, batches=1, key=OTHER)
        reseeded = replace(JOB, seed=5, key="2" * 32)
        accepted = tuple(digest_of(job, shard().fingerprint) for job in (other, reseeded))
        with attack(accepted=accepted) as server:
            server.work(Gradient(0), 15)
            with refused("has another job already"):
                server.work(Gradient(0), 15, replace(reseeded, key=JOB.key))
            for job in (other, reseeded):
                with refused("would show, beside earlier sums"):
                    server.work(Gradient(0), 16, job)
            server.work(Gradient(0), 30, other)
            server.work(Gradient(0), 15, reseeded)
            np.testing.assert_array_equal(server.sums[0] > 0, server.sums[2] > 0)
            assert server.fewest() == 15

    @pytest.mark.parametrize("kind", ["identity", "semilinear"])
    def test_raw_points_need_longer_sums(self, kind: str) -> None:
        """One point may be the only one that is not 0 in a column, in sums of any length."""
        raw = replace(JOB, kind=kind, n_components=INPUTS, batches=1)
        asked = {"job": asdict(raw), "work": work_to(Gradient(0)), "round": 0, "load": POINTS}
        size = raw.features().size(INPUTS)
        model = {"model": np.zeros((size, POINTS), np.float32)}
        with attack() as server, refused("answers for 50 together at least"):
            server.node.answer("work", asked | {"answered": 0, "seconds": None}, model)

    def test_a_node_with_few_points_does_not_take_part(self, tmp_path: Path) -> None:
        node = Node("ada", lambda: Shard(np.ones((9, 2)), np.zeros(9)), tmp_path)
        with refused("ada holds 9 points, and answers for 10 together at least"):
            node.answer("hello", {"job": asdict(JOB)}, {})

    def test_changed_data_are_another_data_set(self, tmp_path: Path) -> None:
        """Sums over the old and the new points would show what changed."""
        Attack(tmp_path).work(Gradient(0), 15)
        changed = Attack(tmp_path)
        changed.node = Node("ada", lambda: Shard(shard().inputs * 2, shard().labels), tmp_path)
        with refused("the data have changed since an earlier job") as error:
            changed.work(Gradient(0), 15)
        changed.node.accepted = [str(error.value).rpartition(" ")[2]]
        with refused("has another job already"):  # its points are embedded as they were
            changed.work(Gradient(0), 15)
        assert changed.work(Gradient(0), 15, replace(JOB, key=OTHER))["gradient"].any()

    def test_a_damaged_record_answers_nothing(self, tmp_path: Path) -> None:
        server = Attack(tmp_path)
        server.work(Gradient(0), 15)
        for path in (tmp_path / "given").glob("*.json"):
            path.write_text("[]")
        with refused("is damaged"):
            server.work(Gradient(0), 15)


LOADS = st.integers(0, POINTS + 2)
CHANCES = st.floats(0, 1)
BATCHES = st.integers(0, 3)
WORKS = st.one_of(
    st.builds(Gradient, BATCHES),
    st.builds(WeightedGradient, BATCHES, st.floats(-1, 10)),
    st.builds(LocalModel, BATCHES, st.integers(0, 2), st.floats(0, 1), st.just(0.0)),
    st.builds(LocalDirection, BATCHES, st.integers(1, 2), st.floats(1e-3, 1), st.just(0.0)),
    st.builds(Embedded, st.integers(0, 20), st.booleans()),
    st.just(Gram()),
    st.just(Counts()),
)
JOBS = st.builds(
    lambda batches, points, seed, key: replace(
        JOB, batches=batches, points=points, seed=seed, key=key
    ),
    st.sampled_from([1, 2, 3, 7]),
    st.sampled_from([0, 0, 30, 31]),
    st.sampled_from([0, 1]),
    st.sampled_from(["0" * 32, OTHER]),
)
ASKS = st.tuples(WORKS, LOADS, JOBS, st.sampled_from([None, 0.0]), st.integers(0, POINTS))


@given(asks=st.lists(ASKS, max_size=8))
def test_no_series_of_asks_shows_few_points(asks: list[Any]) -> None:
    """With every job accepted: all sums, and all differences of sums, are over many points."""
    accepted = tuple(digest_of(job, shard().fingerprint) for _, _, job, _, _ in asks)
    with attack(accepted=accepted) as server:
        for work, load, job, seconds, answered in asks:
            with suppress(InputError):
                server.work(work, load, job, seconds=seconds, answered=answered)
        assert server.fewest() >= LEAST


NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**70), 2**70),
    st.sampled_from([True, "1", None, [], {}, [1.0], 1e-12, -1, 0.5]),
)


@given(kind=st.sampled_from(sorted(WORK)), values=st.lists(NUMBERS, min_size=8, max_size=8))
def test_fields_of_any_value_are_refused_or_right(kind: str, values: list[Any]) -> None:
    """A field outside its rule is an InputError, never another error and never let through."""
    work = {"kind": kind}
    names = [field.name for field in fields(WORK[kind])]  # type: ignore[arg-type]
    work |= dict(zip(names, values, strict=False))
    with attack() as server, suppress(InputError):
        arrays = server.work(work, 20)
        assert all(np.isfinite(array).all() for array in arrays.values())


def test_every_kind_of_work_has_rules() -> None:
    sizes = Sizes(POINTS, INPUTS, 2, FEATURES, POINTS)
    for kind in WORK:
        with refused(rf"{kind}\.\w+ is (missing|unknown)"):
            checked_work({"kind": kind, "zest": 1}, sizes)


class TestNoise:
    PARTIES: ClassVar = {"helper": "a" * 64, "clients": "b" * 64}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"sigma": 1e300}, "steps of the integers"),
            ({"sigma": inf}, "must be finite"),
            ({"count": 1e-12}, "must be a whole number"),
            ({"count": True}, "must be a whole number"),
            ({"sensitivity": inf}, "must be a finite number"),
        ],
    )
    @pytest.mark.parametrize("shares", [0, 1])
    def test_a_contract_is_of_whole_sums_with_noise(
        self, change: dict[str, Any], message: str, shares: int
    ) -> None:
        plain: dict[str, Any] = {"what": "gradient", "count": 1, "sensitivity": 1.0, "sigma": 3.0}
        release = Release(**(plain | change))
        account = Account(1e-5, [release], shares=shares)
        with refused(message):
            Contract("0" * 32, least=3, account=account, scale=2.0**10, **self.PARTIES)

    def test_noise_that_does_not_fit_is_an_error_and_not_0(self) -> None:
        for sigma in (1e300, inf, -1.0, float("nan")):
            with refused("noise of"):
                noise_steps(sigma, np.ones(3))


@pytest.mark.parametrize("name", ["radius", "residual"])
def test_lengths_whose_product_float32_cannot_hold(name: str) -> None:
    """With 1e-22 each, a record once moved a sum by 1.8 times its bound."""
    sizes = Sizes(POINTS, INPUTS, 2, FEATURES, POINTS)
    work = work_to(private_sum(0, [1.0] * 4, np.zeros(FEATURES)))
    with refused(rf"clipped_gradient\.{name} is"):
        checked_work(json.loads(json.dumps(work | {name: 1e-22})), sizes)


def test_only_works_that_an_allowed_module_defines() -> None:
    """One that it imports is the package's, whose fields obey rules."""
    with attack() as server:
        server.node.works = [__name__]
        assert server.node.allowed(f"{__name__}:Own") is Own
        assert server.node.allowed(f"{__name__}:ClippedGradient") is None


class Own(Gradient):
    """A kind of work of a node's owner."""


@pytest.mark.parametrize(
    "work",
    [
        DrawnGradient(0, 0, 1.0),
        MoreParity(Code("dealt"), 10, after=30),
    ],
)
def test_work_that_only_simulations_do_is_refused(work: Work) -> None:
    """Also where a module of the package is allowed as if it were the owner's."""
    with attack() as server:
        server.node.works = [type(work).__module__]
        for document in (work_to(work), work_to(work) | {"kind": work.kind}):
            with refused(f"the work '{document['kind']}' is unknown here, or has no rules"):
                server.work(document, POINTS)
        alias = f"{Gradient.__module__}:{Gradient.__qualname__}"
        with refused(f"the work '{alias}' is unknown here, or has no rules"):
            server.work(work_to(Gradient(0)) | {"kind": alias, "batch": -1}, 15)


@pytest.mark.parametrize("batch", [-1, -(10**6), 2, True, 0.0, "0", None])
@pytest.mark.parametrize("work", [Gradient(0), LocalModel(0, 1, 0.1, 0.0)])
def test_a_mini_batch_that_is_not_there_is_refused(work: Work, batch: Any) -> None:
    with attack() as server, refused(rf"{work.kind}\.batch is .*a whole number from 0 to 1"):
        server.work(work_to(work) | {"batch": batch}, POINTS // 2)


@pytest.mark.parametrize("batch", [-1, -2, 4, True, 1.0])
def test_nor_is_there_one_for_work_of_the_nodes_owner(batch: Any) -> None:
    """Rows counted from the end would be noted in another place than those that they are."""
    with attack() as server:
        server.node.works = [__name__]
        with refused("batch is .*: must be from 0 to 3"):
            server.work({"kind": f"{__name__}:Own", "batch": batch}, 10, replace(JOB, batches=4))


@pytest.mark.parametrize("sigma", [10**400, "3", None])
def test_a_contract_of_anything_is_refused(sigma: Any) -> None:
    release = {"what": "gradient", "count": 1, "sensitivity": 1.0, "sigma": sigma}
    document = {"delta": 1e-5, "releases": [release], "scale": 1024.0, **TestNoise.PARTIES}
    with refused("contract"):
        contract_of(document | {"federation": "0" * 32, "least": 3})


def test_numbers_that_are_not_finite_are_refused() -> None:
    sizes = Sizes(POINTS, INPUTS, 2, FEATURES, POINTS)
    for value in (10**400, -(10**400), inf, -inf, float("nan"), True, "1"):
        with refused(r"weighted_gradient\.weights is"):
            checked_work({"kind": "weighted_gradient", "batch": 0, "weights": value}, sizes)


@pytest.mark.parametrize("inner", [ClippedMoments(1.0, 2.0, 1024.0), Masked(Gradient(0), 1024.0)])
def test_a_mask_hides_exact_sums_alone(inner: Work) -> None:
    """A private sum in it would be exempt from what exact sums obey, and have no noise."""
    sizes = Sizes(POINTS, INPUTS, 2, FEATURES, POINTS)
    with refused(r"masked\.work is"):
        checked_work(json.loads(json.dumps(work_to(Masked(inner, 1024.0)))), sizes)


def test_masks_in_masks_are_refused_at_the_first() -> None:
    """A thousand of them once ended in a RecursionError."""
    work = work_to(Gradient(0))
    for _ in range(900):
        work = {"kind": "masked", "work": work, "scale": 1.0}
    with refused("must be work whose answers are numbers"):
        checked_work(work, Sizes(POINTS, INPUTS, 2, FEATURES, POINTS))


@pytest.mark.parametrize("inner", [Gram(), Counts(), FirstGradient(), LocalModel(0, 1, 0.1, 0.0)])
def test_a_change_is_of_one_gradient(inner: Work) -> None:
    sizes = Sizes(POINTS, INPUTS, 2, FEATURES, POINTS)
    with refused(r"gradient_delta\.work is .*one gradient"):
        checked_work(json.loads(json.dumps(work_to(GradientDelta(inner, 1024.0, {})))), sizes)


@pytest.mark.parametrize(
    "change", [{"number": 0.5}, {"attempt": "1"}, {"numbers": True}, {"arrived": "ada"}, {"x": 1}]
)
def test_a_helper_checks_its_numbers_too(change: dict[str, Any], tmp_path: Path) -> None:
    asked = {"number": 0, "attempt": 0, "ask": "a", "arrived": ["ada", "bob"], "numbers": 3}
    with refused(rf"sum\.{next(iter(change))} is"):
        HelperNode("eve", tmp_path).answer("sum", {"job": asdict(JOB), **asked, **change}, {})


def private_sum(kind: int, values: list[float], direction: FloatArray) -> PrivateSum:
    cap, radius, residual, chance = (abs(value) + 1e-3 for value in values)
    if kind:
        return ClippedMoments(min(chance, 1.0), cap, 2.0**12)
    return ClippedGradient(min(chance, 1.0), cap, 2.0**12, direction, radius, residual)


@given(
    kind=st.sampled_from([0, 1]),
    values=st.lists(st.floats(0.01, 50), min_size=4, max_size=4),
    length=st.sampled_from([0.0, 1e-8, 0.3, 1.0, 1.4, 100.0, 1e5, 1e25]),
    size=st.sampled_from([1e-20, 1e-3, 1.0, 1e4, 1e10, 1e15, 3e38]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_record_moves_a_private_sum_beyond_its_bound(
    kind: int, values: list[float], length: float, size: float, seed: int
) -> None:
    """For every direction, model, scaling and record: the sum with it, and without it."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=FEATURES)
    direction *= length / np.linalg.norm(direction)
    work = private_sum(kind, values, direction)
    features = rng.normal(size=(30, FEATURES)).astype(np.float32) / 8
    with np.errstate(over="ignore"):
        features[0] = (
            direction / max(length, 1e-30) + rng.normal(size=FEATURES) * rng.choice([0, 1e-4, 1])
        ) * size
    targets = rng.normal(size=(30, 3)).astype(np.float32)
    model = (rng.normal(size=(FEATURES, 3)) * rng.choice([0, 1, 1e4])).astype(np.float32)
    sums = []
    for zeroed in (False, True):
        rows, labels = features.copy(), targets.copy()
        if zeroed:
            rows[0], labels[0] = 0, 0
        client = ArrayClient(rows, labels, 1, lambda *_: np.random.default_rng(0))
        with np.errstate(all="ignore"):
            (residues,) = work.answer(client, 30, model).arrays.values()
        sums.append(FixedPoint(work.scale).decode(residues).ravel())
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    assert moved <= work.sensitivity(sums[0].size) * (1 + 1e-6)


@pytest.mark.parametrize("size", [2, 8, 64])
def test_a_record_is_no_longer_than_its_bound_however_it_is_rounded(size: int) -> None:
    """At the finest scale, rounding to float32 once moved sums by 5e-8 more than was paid for."""
    scale, rng = 2.0**26, np.random.default_rng(0)
    for seed in range(200):
        record = rng.normal(size=(1, size))
        record *= [1, 1.0001, 10, 1e10][seed % 4] / np.linalg.norm(record)
        works = ClippedMoments(1.0, 1.0, scale), private_sum(1, [1.0] * 4, np.zeros(size))
        for work in (works[0], replace(works[1], cap=1.0, scale=scale)):
            labels = np.array([[1.0, 0.0, 0.0]], np.float32)
            client = ArrayClient(record.astype(np.float32), labels, 1, lambda *_: rng)
            model = np.zeros((size, 3), np.float32)
            (residues,) = work.answer(client, 1, model).arrays.values()
            moved = float(np.linalg.norm(FixedPoint(scale).decode(residues)))
            assert moved <= work.sensitivity(residues.size)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_record_does_not_change_how_others_are_rounded(kind: int) -> None:
    """Of 200,000 points, in single precision, it once moved a sum by 1.006 times its bound."""
    points, size = 200_000, 16
    steps = FixedPoint(2.0**15)  # fine enough to see single precision, and no sum wraps around
    work: PrivateSum = ClippedMoments(1.0, 1.0, steps.scale)
    if kind:
        work = ClippedGradient(1.0, 1.0, steps.scale, np.zeros(size), 1.0, 1.0)
    model, labels = np.zeros((size, 1), np.float32), np.ones((points, 1), np.float32)
    for seed in (1, 2):
        features = np.abs(np.random.default_rng(seed).normal(size=(points, size)))
        features = (features / np.linalg.norm(features, axis=1)[:, None]).astype(np.float32)
        sums = []
        for weight in (1, 0):
            features[0], labels[0] = weight * features[0], weight
            client = ArrayClient(features, labels, 1, lambda *_: np.random.default_rng(0))
            (residues,) = work.answer(client, points, model).arrays.values()
            sums.append(steps.decode(residues).ravel())
        assert np.linalg.norm(sums[0] - sums[1]) <= work.sensitivity(sums[0].size)


@pytest.mark.parametrize("size", [1e2, 1e6, 1e10, 1e15])
def test_a_record_along_the_direction_leaves_no_rounding_error(size: float) -> None:
    """What is left of it is the difference of two large numbers, and may be anything."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        direction = rng.normal(size=FEATURES)
        direction /= np.linalg.norm(direction)
        work = private_sum(0, [2.0, 1.0, 1.0, 1.0], direction)
        record = (size * direction).astype(np.float32)[None]
        labels = np.ones((1, 3), np.float32)
        client = ArrayClient(record, labels, 1, lambda *_: np.random.default_rng(0))
        (residues,) = work.answer(client, 1, np.zeros((FEATURES, 3), np.float32)).arrays.values()
        moved = float(np.linalg.norm(FixedPoint(work.scale).decode(residues)))
        assert moved <= work.sensitivity(residues.size) * (1 + 1e-6)


def test_a_record_that_is_not_finite_leaves_the_others_alone() -> None:
    """A number of 3e38 once made the whole answer 0: more than a record may move."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(30, FEATURES)).astype(np.float32) / 8
    labels, model = np.ones((30, 2), np.float32), np.ones((FEATURES, 2), np.float32)
    for work in (
        private_sum(0, [2.0] * 4, np.eye(FEATURES)[0]),
        private_sum(1, [2.0] * 4, features[0]),
    ):
        answers: list[Any] = []
        for bad in (0.0, np.nan, np.inf):
            features[0], labels[0] = bad, 0
            client = ArrayClient(features, labels, 1, lambda *_: rng)
            with np.errstate(all="ignore"):
                answers.append(*work.answer(client, 30, model).arrays.values())
        for answer in answers[1:]:
            np.testing.assert_array_equal(answer, answers[0])
        assert answers[0].any()
