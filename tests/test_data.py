from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from codedfedl.data import Dataset, load_dataset, mini_batches, partition
from codedfedl.errors import InputError
from codedfedl.io.tables import write_table


def dataset(**changes: object) -> Dataset:
    fields: dict[str, Any] = {
        "name": "toy",
        "inputs": np.array([[0.0, 0.5], [1.0, 0.25], [0.5, 0.5]]),
        "labels": np.array([2, 0, 1]),
        "test_inputs": np.array([[0.1, 0.2]]),
        "test_labels": np.array([1]),
        "classes": 3,
    }
    return Dataset(**{**fields, **changes})


def all_rows(data: Dataset) -> npt.NDArray[np.float32]:
    return np.concatenate([data.inputs, data.test_inputs])


class TestDataset:
    def test_classes_become_one_hot_targets(self) -> None:
        data = dataset()
        assert data.is_classification
        assert data.label_columns == 3
        assert data.targets.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
        assert data.test_targets.tolist() == [[0, 1, 0]]
        assert data.labels.dtype == np.int64
        for array in (data.inputs, data.test_inputs, data.targets, data.test_targets):
            assert array.dtype == np.float32

    def test_numbers_become_columns(self) -> None:
        data = dataset(labels=np.array([0.5, -1, 7]), test_labels=np.array([3]), classes=None)
        assert not data.is_classification
        assert data.label_columns == 1
        assert data.targets.tolist() == [[0.5], [-1], [7]]
        assert data.labels.dtype == data.test_labels.dtype == np.float64

    def test_vectors_stay_vectors(self) -> None:
        labels = np.array([[0.5, 1], [2, 3], [4, 5]])
        data = dataset(labels=labels, test_labels=np.ones((1, 2)), classes=None)
        assert data.label_columns == 2
        assert data.targets.tolist() == labels.tolist()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"inputs": [[0, 0], [0, np.nan], [0, 0]]}, r"inputs, row 1, column 1 .* is nan"),
            ({"test_inputs": [[np.inf, 0]]}, r"test_inputs, row 0, column 0 .* is inf"),
            ({"inputs": [[0, 0], [0, 0], [1e300, 0]]}, r"as float32, row 2, column 0"),
            (
                {"inputs": [["a", "b"]] * 3},
                r"inputs has shape \(3, 2\) and holds <U1: give one text",
            ),
            ({"inputs": [[1], [1, 2], [3]]}, "inputs has rows of unequal length"),
            ({"inputs": [[0, 0]]}, "inputs has 1 rows and labels has 3"),
            ({"test_labels": [1, 1]}, "test_inputs has 1 rows and test_labels has 2"),
            ({"labels": [0, 3, 1]}, r"labels, row 1 .* is 3: .* from 0 to 2"),
            ({"labels": [0, 1, -1]}, r"labels, row 2 .* is -1"),
            ({"labels": [0, 1.5, 1]}, r"labels, row 1 .* is 1.5"),
            ({"labels": [[0], [1], [1]]}, r"labels has shape \(3, 1\)"),
            ({"test_labels": [9]}, r"test_labels, row 0 .* is 9"),
            ({"inputs": np.zeros((0, 2)), "labels": []}, r"inputs has shape \(0, 2\)"),
            ({"test_inputs": np.zeros((0, 2)), "test_labels": []}, "test_inputs has shape"),
            ({"test_inputs": [[1, 2, 3]]}, r"test_inputs has rows of shape \(3,\)"),
            ({"classes": 0}, "classes is 0: must be at least 1"),
            ({"classes": None, "labels": [0, np.nan, 1]}, r"labels, row 1 .* is nan"),
            ({"classes": None, "test_labels": [[1, 2]]}, "test_labels has rows of shape"),
        ],
    )
    def test_what_is_refused(self, changes: dict[str, object], message: str) -> None:
        with pytest.raises(InputError, match=message):
            dataset(**changes)


class TestSplit:
    def test_every_digit_is_in_one_part_unchanged(self) -> None:
        data = load_dataset("digits")
        inputs, labels = load_digits(return_X_y=True)
        assert data.name == "digits"
        assert data.classes == 10
        given = np.column_stack([inputs, labels])
        found = np.column_stack(
            [all_rows(data) * 16, np.concatenate([data.labels, data.test_labels])]
        )
        assert sorted(map(tuple, given)) == sorted(map(tuple, found))

    def test_every_class_gives_its_share(self) -> None:
        data = load_dataset("digits", test_share=0.3)
        train, test = np.bincount(data.labels), np.bincount(data.test_labels)
        assert np.all(np.abs(test - 0.3 * (train + test)) <= 0.5)

    def test_every_class_keeps_a_point_to_train_on(self, tmp_path: Path) -> None:
        labels = np.repeat(np.arange(5), [1, 1, 2, 3, 13])
        np.savez(tmp_path / "a.npz", inputs=np.eye(20), labels=labels)
        data = load_dataset(tmp_path / "a.npz", test_share=0.9)
        assert np.bincount(data.labels).tolist() == [1, 1, 1, 1, 1]

    def test_the_seed_decides_the_split(self) -> None:
        first, same, other = (load_dataset("digits", seed=seed) for seed in (0, 0, 1))
        assert np.array_equal(first.test_inputs, same.test_inputs)
        assert not np.array_equal(first.test_inputs, other.test_inputs)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("minst", "did you mean 'mnist'"),
            ("fashion_mnist", "did you mean 'fashion-mnist'"),
            ("zzz", "known are digits, digits-halves, mnist, fashion-mnist"),
            ("points.xlsx", r"neither a file that ends in \.npz"),
        ],
    )
    def test_unknown(self, name: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_dataset(name)

    @pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
    def test_shares_that_leave_nothing(self, share: float) -> None:
        with pytest.raises(InputError, match=r"test_share is .*: must be above 0 and below 1"):
            load_dataset("digits", test_share=share)

    def test_label_columns_are_for_tables(self) -> None:
        with pytest.raises(InputError, match=r"only a \.csv or \.parquet table"):
            load_dataset("digits", label="y")


class TestArrays:
    def save(self, path: Path, **arrays: npt.ArrayLike) -> Path:
        given: dict[str, Any] = {key: np.asarray(values) for key, values in arrays.items()}
        np.savez(path, **given)
        return path

    def test_given_parts_are_kept_and_scaled_by_the_training_part(self, tmp_path: Path) -> None:
        path = self.save(
            tmp_path / "mine.npz",
            inputs=[[0, 5, 10], [4, 5, 30]],
            labels=["dog", "cat"],
            test_inputs=[[1, 6, 50]],
            test_labels=["eel"],
        )
        data = load_dataset(path)
        assert data.name == "mine"
        assert data.inputs.tolist() == [[0, 0, 0], [1, 0, 1]]
        assert data.test_inputs.tolist() == [[0.25, 1, 2]]
        assert (data.labels.tolist(), data.test_labels.tolist()) == ([1, 0], [2])
        assert data.classes == 3

    def test_inputs_inside_the_unit_interval_stay(self, tmp_path: Path) -> None:
        inputs = np.linspace(0.2, 0.7, 20).reshape(10, 2)
        data = load_dataset(self.save(tmp_path / "a.npz", inputs=inputs, labels=np.arange(10) / 2))
        assert np.isin(all_rows(data), inputs.astype(np.float32)).all()
        assert not data.is_classification
        assert (len(data.inputs), len(data.test_inputs)) == (8, 2)

    def test_scaling_keeps_what_float32_would_lose(self, tmp_path: Path) -> None:
        inputs = 2.0**40 + np.arange(11.0)[:, None]
        data = load_dataset(self.save(tmp_path / "a.npz", inputs=inputs, labels=np.zeros(11)))
        assert len(np.unique(all_rows(data))) == 11

    def test_images_are_flattened(self, tmp_path: Path) -> None:
        images = np.zeros((10, 2, 3), dtype=np.uint8)
        images[0] = 255
        data = load_dataset(
            self.save(tmp_path / "a.npz", inputs=images, labels=[[0], [1]] * 5), test_share=0.4
        )
        assert data.inputs.shape == (6, 6)
        assert data.classes == 2

    def test_labels_in_columns_mean_vector_regression(self, tmp_path: Path) -> None:
        path = self.save(tmp_path / "a.npz", inputs=np.eye(10), labels=np.ones((10, 3), dtype=int))
        assert load_dataset(path).targets.shape == (8, 3)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"labels": [0, 1]}, r"inputs has 4 rows and labels has shape \(2,\)"),
            ({"labels": 3}, r"labels has shape \(\)"),
            ({"labels": [0, -1, 1, 1]}, "label -1 among 4 points: number the classes"),
            ({"labels": [0, 4, 1, 1]}, "label 4 among 4 points"),
            ({"labels": [0, 1, 2, 3]}, "leaves none of the 4 points"),
            ({"labels": [0.5, np.nan, 2, 3]}, r"labels, row 1 .* is nan"),
            ({"labels": [1j, 1, 2, 3]}, "labels holds complex128"),
            ({"labels": [["a", "b"]] * 4}, "labels holds <U1"),
            ({"inputs": [1, 2, 3, 4]}, r"inputs has shape \(4,\): give a row"),
            ({"inputs": [[0], [0], [0], [np.inf]]}, r"inputs, row 3, column 0 .* is inf"),
            ({"inputs": [["x"]] * 4}, "inputs holds texts: say data.text"),
            ({"test_inputs": [[1]]}, "holds inputs, labels, test_inputs: it needs"),
            ({"other": [1]}, "holds inputs, labels, other: it needs"),
            ({"test_inputs": [[1]], "test_labels": ["a"]}, "differ in kind"),
            ({"test_inputs": [[1]], "test_labels": [1.0]}, "differ in kind"),
            ({"test_inputs": [[1]], "test_labels": [[1, 1]]}, "differ in kind"),
            (
                {"test_inputs": [[1, 2]], "test_labels": [1]},
                r"test_inputs has rows of shape \(2,\)",
            ),
        ],
    )
    def test_what_is_refused(
        self, tmp_path: Path, changes: dict[str, npt.ArrayLike], message: str
    ) -> None:
        arrays = {"inputs": [[1], [2], [3], [4]], "labels": [0, 1, 0, 1], **changes}
        with pytest.raises(InputError, match=message):
            load_dataset(self.save(tmp_path / "a.npz", **arrays))

    def test_files_that_are_no_archive(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        with pytest.raises(InputError, match="no such file"):
            load_dataset(path)
        whole = self.save(tmp_path / "b.npz", inputs=np.eye(40), labels=np.ones(40)).read_bytes()
        with (tmp_path / "plain").open("wb") as file:
            np.save(file, np.eye(2))
        plain = (tmp_path / "plain").read_bytes()
        np.savez(tmp_path / "c.npz", inputs=np.array([None]), allow_pickle=True)
        pickled = (tmp_path / "c.npz").read_bytes()
        for content in (b"", b"no archive", whole[: len(whole) // 2], plain, pickled):
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"cannot read .*numpy\.savez|it needs the arrays"):
                load_dataset(path)


class TestTables:
    def csv(self, path: Path, *labels: str, header: str = "x,label") -> Path:
        lines = [header, *(f"{row},{label}" for row, label in enumerate(labels))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def test_words_are_numbered_in_sorted_order(self, tmp_path: Path) -> None:
        words = ["pear", "apple", "fig", "fig", "apple", "pear"]
        data = load_dataset(self.csv(tmp_path / "fruit.csv", *words), test_share=0.5)
        assert data.name == "fruit"
        assert data.classes == 3
        assert np.bincount(data.labels).tolist() == [1, 1, 1]
        assert np.bincount(data.test_labels).tolist() == [1, 1, 1]

    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (np.array([0, 1, 2] * 4), 3),
            (np.array([0.5, 1.5, 2.0] * 4), None),
            (np.array(["b", "c", "a"] * 4), 3),
        ],
    )
    def test_every_point_keeps_its_label(
        self, tmp_path: Path, suffix: str, labels: npt.NDArray[Any], classes: int | None
    ) -> None:
        path = tmp_path / f"t{suffix}"
        write_table(path, {"a": np.arange(12) / 11, "y": labels, "b": np.zeros(12)})
        data = load_dataset(path, label="y", test_share=0.25)
        assert data.classes == classes
        order = np.argsort(all_rows(data)[:, 0])
        found = np.concatenate([data.labels, data.test_labels])[order]
        expected = np.unique(labels, return_inverse=True)[1] if classes else labels
        assert found.tolist() == expected.tolist()
        assert len(data.test_inputs) == 3

    def test_parquet_types_decide(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        write_table(path, {"x": np.arange(9), "label": np.array([0.0, 1.0, 2.0] * 3)})
        assert load_dataset(path).classes is None
        write_table(path, {"x": np.arange(9), "label": np.array(["10", "2", "-1"] * 3)})
        assert load_dataset(path).classes == 3
        write_table(path, {"x": np.arange(8), "label": np.array([True, False] * 4)})
        assert load_dataset(path).classes == 2

    @pytest.mark.parametrize("label", ["u, v", ["u", "v"], ("u", "v")])
    def test_several_label_columns(self, tmp_path: Path, label: str | list[str]) -> None:
        path = tmp_path / "t.csv"
        u = np.arange(10)
        write_table(path, {"u": u, "x": u / 9, "v": u * 0.5})
        data = load_dataset(path, label=label)
        assert data.classes is None
        assert data.inputs.shape == (8, 1)
        assert np.allclose(data.targets, data.inputs * [9, 4.5], rtol=1e-6, atol=0)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (["1.5", "oops", "2"], "line 3: label is 'oops': write a number, or all labels as"),
            (["1", "nan", "2"], "line 3: label is 'nan': write a number"),
            (["1", "2", ""], "line 4: label is empty: write a label"),
            (["1", "inf", "2"], "line 3: label is 'inf': write a finite number"),
            (["0", "9" * 20], "number the classes"),
            (["0", "1", "-1"], "label -1 among 3 points"),
            ([], "no points or no inputs"),
        ],
    )
    def test_bad_labels(self, tmp_path: Path, labels: list[str], message: str) -> None:
        with pytest.raises(InputError, match=message):
            load_dataset(self.csv(tmp_path / "t.csv", *labels))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x,lable\n1,0\n", "no label column 'label': did you mean 'lable'"),
            ("x,x,label\n1,1,0\n", "the column 'x' twice"),
            ("label\n1\n", "no points or no inputs"),
            ("x,label\n1,0\nred,1\n", "line 3: x is 'red': write a finite number"),
            ("x,label\n1,0\ninf,1\n", "line 3: x is 'inf': write a finite number"),
        ],
    )
    def test_bad_tables(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(InputError, match=message):
            load_dataset(tmp_path / "t.csv")

    def test_spaces_and_underscores_as_python_reads_them(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("x,label\n 0, 1\n 1_000, 1\n500,0 \n250, 0\n")
        data = load_dataset(tmp_path / "t.csv", test_share=0.5)
        assert data.classes == 2
        assert len(data.inputs) == len(data.test_inputs) == 2

    def test_parquet_rows_with_nothing(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, None]}), tmp_path / "t.parquet")
        with pytest.raises(InputError, match="row 2: label is empty: write a label"):
            load_dataset(tmp_path / "t.parquet")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file"):
            load_dataset(tmp_path / "t.parquet")


labels_of_points = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(np.array)


class TestPartition:
    @given(labels_of_points, st.data(), st.sampled_from(["sorted", "iid", "dirichlet"]))
    def test_every_point_is_in_one_shard(
        self, labels: npt.NDArray[np.int64], data: st.DataObject, how: str
    ) -> None:
        clients = data.draw(st.integers(1, len(labels)))
        concentration = data.draw(st.floats(1e-3, 1e3))
        seed = data.draw(st.integers(0, 2**32))
        shards = partition(labels, clients, how, concentration=concentration, seed=seed)
        again = partition(labels, clients, how, concentration=concentration, seed=seed)
        assert len(shards) == clients
        assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
        sizes = [len(shard) for shard in shards]
        assert min(sizes) >= 1
        assert how == "dirichlet" or max(sizes) - min(sizes) <= 1
        assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))

    @given(labels_of_points, st.data())
    def test_sorted_shards_follow_one_another(
        self, labels: npt.NDArray[np.int64], data: st.DataObject
    ) -> None:
        shards = partition(labels, data.draw(st.integers(1, len(labels))))
        # A stable sort: by label, and by position where labels are equal.
        points = [
            point for shard in shards for point in sorted(shard, key=lambda p: (labels[p], p))
        ]
        assert points == sorted(range(len(labels)), key=lambda point: (labels[point], point))

    def test_regression_sorts_by_the_first_column(self) -> None:
        labels = np.array([[0.3, 9], [0.1, 8], [0.4, 1], [0.2, 5]])
        shards = partition(labels, 2)
        assert [sorted(shard.tolist()) for shard in shards] == [[1, 3], [0, 2]]

    @pytest.mark.parametrize("how", ["sorted", "iid", "dirichlet"])
    def test_the_seed_decides_the_order(self, how: str) -> None:
        labels = np.repeat(np.arange(4), 50)
        one, two = (partition(labels, 4, how, seed=seed) for seed in (1, 2))
        for a, b in zip(one, two, strict=True):
            assert a.tolist() != b.tolist()
            assert a.tolist() != sorted(a.tolist())

    def test_dirichlet_concentration(self) -> None:
        """Shares of a class have the mean and variance of Beta(α, (n - 1) α), up to a point.

        Each client has 1,000 independent shares. That one of the 24 comparisons is off by 6
        standard errors has a probability of about 5e-8, where the normal approximation holds.
        """
        clients, classes, size = 4, 1000, 400
        labels = np.repeat(np.arange(classes), size)
        for concentration in (0.1, 1.0, 10.0):
            shards = partition(labels, clients, "dirichlet", concentration=concentration, seed=3)
            counts = [np.bincount(labels[shard], minlength=classes) for shard in shards]
            shares = np.stack(counts) / size
            variance = (clients - 1) / clients**2 / (clients * concentration + 1)
            errors = np.sqrt(variance / classes)
            assert np.all(np.abs(shares.mean(1) - 1 / clients) < 6 * errors)
            squares = (shares - 1 / clients) ** 2
            spread = squares.std(1) / np.sqrt(classes)
            assert np.all(np.abs(squares.mean(1) - variance) < 6 * spread + 1 / size**2)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: partition(np.zeros(3, int), 4), "clients is 4 where there are 3 points"),
            (lambda: partition(np.zeros(3, int), 0), "clients is 0"),
            (lambda: partition(np.zeros(3, int), 1, "sort"), "'sort' is unknown: did you mean 'so"),
            (
                lambda: partition(np.zeros(3, int), 1, "dirichlet", concentration=0),
                "concentration is 0: must be finite and above 0",
            ),
            (lambda: partition(np.zeros(3), 1, "dirichlet"), "dirichlet needs classes"),
        ],
    )
    def test_what_is_refused(self, call: Callable[[], object], message: str) -> None:
        with pytest.raises(InputError, match=message):
            call()


class TestMiniBatches:
    @given(st.lists(st.integers(5, 20), min_size=1, max_size=6), st.integers(1, 5))
    def test_parts_are_consecutive_and_nearly_equal(self, sizes: list[int], batches: int) -> None:
        ends = np.cumsum(sizes)
        shards = [np.arange(end - size, end)[::-1] for size, end in zip(sizes, ends, strict=True)]
        result = mini_batches(shards, batches)
        assert len(result) == batches
        for client, shard in enumerate(shards):
            parts = [batch[client] for batch in result]
            assert np.concatenate(parts).tolist() == shard.tolist()
            lengths = [len(part) for part in parts]
            assert max(lengths) - min(lengths) <= 1

    def test_a_shard_that_is_too_small(self) -> None:
        shards = [np.arange(5), np.arange(5, 7)]
        with pytest.raises(InputError, match="client 1 has 2 points for 3 mini-batches: ask for"):
            mini_batches(shards, 3)
        with pytest.raises(InputError, match="batches is 0"):
            mini_batches(shards, 0)
