"""`load_dataset`: built-in data by name, and the user's own from a file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.data.dataset import Dataset, Origin, check_finite, real_numbers, scaled
from codedfedl.data.files import (
    TABLES,
    Image,
    input_columns,
    label_column,
    label_names,
    number_columns,
    read_npz,
    read_points,
)
from codedfedl.data.idx import IDX_NAMES, load_idx
from codedfedl.data.shards import Bounds, Sides, bounds_of
from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.io.names import nearest
from codedfedl.io.tables import load_table

__all__ = ["DATASET_NAMES", "Unlabelled", "load_dataset", "read_unlabelled"]

DATASET_NAMES = ("digits", "digits-halves", *IDX_NAMES)

_WHITEST = 16.0  # pixel of a digit

Array = npt.NDArray[Any]


def load_dataset(
    name: str | Path,
    directory: str | Path | None = None,
    *,
    label: str | Sequence[str] | None = None,
    text: str | None = None,
    low: Sides | None = None,
    high: Sides | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Load a data set, with inputs in [0, 1].

    Parameters
    ----------
    name
        ``digits``, ``digits-halves`` (the lower half of each digit as the label of its upper half:
        a regression with 32 columns), ``mnist``, ``fashion-mnist``, or the path of a file. An
        ``.npz`` file holds the arrays ``inputs`` and ``labels``, and may hold ``test_inputs`` and
        ``test_labels``; inputs of shape (n, height, width) or (n, height, width, channels) are
        images. A ``.csv`` or ``.parquet`` file holds a line per point. Whole numbers or
        words as labels mean classes, and words are numbered in sorted order. Decimal numbers mean
        regression, and so do several label columns.
    directory
        Where the files of ``mnist`` and ``fashion-mnist`` are; see `find_files`.
    label
        The label column of a table, or several, separated by commas; by default ``label``.
    text
        The column of a table that holds texts, for an encoder: no other column is read. For an
        ``.npz`` file any name says that its inputs are texts.
    low, high
        Bounds of a file's values that are known without the data, a number for all input columns or
        one for each, to scale by instead of by the range of the training values.
    test_share
        Share of the points held out for testing, if the data have no test part. The split is
        stratified by class.
    seed
        Seed of that split.

    Notes
    -----
    If a file's training inputs are not all in [0, 1], each column is shifted and scaled so that
    its training values span [0, 1]; for images, all pixels together. Test inputs are transformed
    in the same way, and may lie outside. With `low` and `high`,
    inputs are scaled by these.
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share}: must be above 0 and below 1")
    suffix = Path(name).suffix
    if label is not None and suffix not in TABLES:
        raise InputError(f"label is {label!r}, but only a .csv or .parquet table has label columns")
    if text is not None and suffix not in (*TABLES, ".npz"):
        raise InputError(
            f"data.text is {text!r}, but only a .csv, .parquet or .npz file has texts: leave it out"
        )
    bounds = bounds_of(low, high)
    if bounds is not None and (name in DATASET_NAMES or text is not None):
        raise InputError(
            "data.low and data.high are for a file of numbers: leave them out for texts, and for "
            "a built-in data set, whose pixels have known bounds"
        )
    if name in IDX_NAMES:
        return load_idx(str(name), directory)
    if name == "digits":
        return _of_pixels(_split("digits", *_digits(), test_share, seed, image=(8, 8, 1)))
    if name == "digits-halves":
        upper, lower = np.split(_digits()[0], 2, axis=1)
        return _of_pixels(_split(name, upper, lower, test_share, seed, image=(4, 8, 1)))
    if suffix == ".npz":
        return _load_npz(Path(name), test_share, seed, bounds, text=text is not None)
    if suffix in TABLES:
        points = read_points(Path(name), label, text)
        origin = Origin(points.columns, points.label_columns)
        stem = Path(name).stem
        return _split(stem, points.inputs, points.labels, test_share, seed, bounds, origin=origin)
    raise InputError(
        f"the data set {str(name)!r} is neither a file that ends in .npz, .csv or .parquet nor a "
        f"known name: {nearest(str(name), DATASET_NAMES)}"
    )


def _digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    inputs, labels = load_digits(return_X_y=True)
    return inputs / _WHITEST, labels


def _of_pixels(digits: Dataset) -> Dataset:
    """Record that the files hold integer pixels of at most a byte."""
    return replace(digits, bits=8, origin=digits.origin.of_pixels(digits.inputs.shape[1], _WHITEST))


def _load_npz(
    path: Path, test_share: float, seed: int, bounds: Bounds | None, *, text: bool
) -> Dataset:
    arrays, image = read_npz(path, text=text)
    inputs, labels = arrays["inputs"], arrays["labels"]
    if "test_inputs" not in arrays:
        return _split(path.stem, inputs, labels, test_share, seed, bounds, image)
    test_inputs, test_labels = arrays["test_inputs"], arrays["test_labels"]
    if _kind(labels) != _kind(test_labels) or labels.shape[1:] != test_labels.shape[1:]:
        raise InputError(
            f"{path}: labels and test_labels differ in kind: write both in the same way"
        )
    numbers, classes, words = _numbered(path.stem, np.concatenate([labels, test_labels]))
    labels, test_labels = numbers[: len(labels)], numbers[len(labels) :]
    origin = Origin(classes=words)
    if inputs.shape[1] == test_inputs.shape[1]:  # `Dataset` refuses the rest
        origin = _with_scale(origin, inputs, bounds, image)
        inputs, test_inputs = (
            scaled(part, origin.low, origin.span) for part in (inputs, test_inputs)
        )
    return Dataset(path.stem, inputs, labels, test_inputs, test_labels, classes, image, origin)


def _kind(labels: Array) -> str:
    return {"U": "words", "S": "words", "f": "decimal"}.get(labels.dtype.kind, "whole")


def _numbered(name: str, labels: Array) -> tuple[Array, int | None, tuple[str, ...]]:
    """Return labels as numbers, how many classes they are (None: regression), and their words."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if _kind(labels) == "words" and labels.ndim == 1:
        words, numbers = np.unique(labels, return_inverse=True)
        return numbers, len(words), tuple(map(str, words))
    labels = real_numbers(f"{name}: labels", labels)
    check_finite(f"{name}: labels", labels)
    if _kind(labels) == "decimal" or labels.ndim > 1:
        return labels, None, ()
    for extreme in (labels.min(), labels.max()):
        if not 0 <= extreme < len(labels):
            raise InputError(
                f"{name} has the label {extreme} among {len(labels)} points: number the classes "
                "0, 1, …, or write decimal numbers for regression"
            )
    return labels.astype(np.int64), int(labels.max()) + 1, ()


def _split(
    name: str,
    inputs: Array,
    labels: Array,
    test_share: float,
    seed: int,
    bounds: Bounds | None = None,
    image: Image | None = None,
    origin: Origin | None = None,
) -> Dataset:
    numbers, classes, words = _numbered(name, labels)
    test = _test_rows(np.zeros(len(labels), int) if classes is None else numbers, test_share, seed)
    if not test.any():
        raise InputError(
            f"test_share is {test_share}, which leaves none of the {len(labels)} points of {name} "
            "for testing: raise it, or add points"
        )
    origin = _with_scale(replace(origin or Origin(), classes=words), inputs[~test], bounds, image)
    train_inputs, test_inputs = (
        scaled(inputs[rows], origin.low, origin.span) for rows in (~test, test)
    )
    train, tested = numbers[~test], numbers[test]
    return Dataset(name, train_inputs, train, test_inputs, tested, classes, image, origin)


def _test_rows(strata: IntArray, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Choose the same share of every stratum at random, but never all of it."""
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    counts = np.bincount(strata)
    chosen = np.minimum(np.floor(share * counts + 0.5), counts - 1)
    rank = np.arange(len(strata)) - np.repeat(np.cumsum(counts) - counts, counts)
    test = np.empty(len(strata), dtype=np.bool_)
    test[order] = rank < np.repeat(chosen, counts)
    return test


def _with_scale(
    origin: Origin, inputs: Array, bounds: Bounds | None, image: Image | None
) -> Origin:
    """Return the origin with the scale of its inputs: by bounds, or by their own range."""
    if bounds is not None:
        low, span = bounds.scale(inputs.shape[1])
        return replace(origin, low=low, span=span)
    own_low, own_span = _unit_scale(inputs, image)
    return replace(origin, low=own_low, span=own_span, own_scale=own_low is not None)


def _unit_scale(inputs: Array, image: Image | None) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the lowest value of each column and its span; None for texts, and in [0, 1]."""
    if inputs.dtype.kind == "U":
        return None, None
    low, high = inputs.min(axis=0).astype(np.float64), inputs.max(axis=0).astype(np.float64)
    if low.min() >= 0 and high.max() <= 1:
        return None, None
    if image is not None:  # all pixels have one scale
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    with np.errstate(over="ignore"):  # `Dataset` refuses what overflows
        return low, np.where(high > low, high - low, 1)  # a constant column becomes 0


class Unlabelled(NamedTuple):
    """Points as in a file, and their labels if it has any.

    Attributes
    ----------
    scaled
        Whether they are scaled as by `load_dataset`, not raw as in the file.
    """

    inputs: Array
    labels: Array | None
    scaled: bool = False


def read_unlabelled(
    data: str | Path,
    columns: Sequence[str],
    labels: Sequence[str],
    directory: str | Path | None = None,
    *,
    text: bool = False,
) -> Unlabelled:
    """Read points from a table, an ``.npz`` file, or the test points of a built-in data set.

    Parameters
    ----------
    columns
        The columns of a table that are inputs, in this order; by default all but the labels'.
    labels
        The label columns, if present.
    directory
        Where the files of built-in data sets are.
    text
        Whether inputs are texts: of a table, in the first of `columns`.
    """
    if data in DATASET_NAMES:
        dataset = load_dataset(data, directory)
        return Unlabelled(dataset.test_inputs, dataset.test_labels, scaled=True)
    path = Path(data)
    if path.suffix == ".npz":
        return _npz(path)
    if path.suffix in TABLES:
        return _table(path, columns, labels or label_names(None), text)
    raise InputError(
        f"the data {str(data)!r} are neither a file that ends in .npz, .csv or .parquet nor a "
        f"known name: {nearest(str(data), DATASET_NAMES)}"
    )


def _npz(path: Path) -> Unlabelled:
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file")
    arrays = read_arrays(path, ("inputs", "labels"))
    if "inputs" not in arrays or not arrays["inputs"].ndim:
        raise InputError(f"{path} has no array inputs: write one with a row for every point")
    inputs, labels = arrays["inputs"], arrays.get("labels")
    if labels is not None and labels.shape[:1] != inputs.shape[:1]:
        raise InputError(
            f"{path}: inputs has {len(inputs)} rows and labels has shape {labels.shape}: give "
            "every point one label, or leave the labels out"
        )
    return Unlabelled(inputs, labels)


def _table(path: Path, columns: Sequence[str], labels: Sequence[str], text: bool) -> Unlabelled:
    table = load_table(path)
    there = table.column_names
    for name in columns:
        if name not in there:
            raise InputError(
                f"{path} has no column {name!r}, which the model was trained on: "
                f"{nearest(name, there)}"
            )
    inputs = list(columns) or [name for name in there if name not in labels]
    if table.num_rows == 0 or not inputs:
        raise InputError(f"{path} has no points or no inputs: add a line per point")
    points = input_columns(path, table, inputs, text=text)
    if any(name not in there for name in labels):
        return Unlabelled(points, None)
    if len(labels) == 1:
        return Unlabelled(points, label_column(path, table, labels[0]))
    return Unlabelled(points, number_columns(path, table, labels))
