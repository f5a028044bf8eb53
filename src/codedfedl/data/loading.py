"""`load_dataset`: built-in data by name, and the user's own from a file."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.data.columns import Roles, Task, read_raw_table
from codedfedl.data.dataset import Dataset, Origin, check_finite, real_numbers, scaled
from codedfedl.data.files import (
    FILES,
    TABLES,
    Image,
    Points,
    label_names,
    read_file,
    read_table_points,
)
from codedfedl.data.idx import IDX_NAMES, load_idx
from codedfedl.data.partitions import Split
from codedfedl.data.tabular import Preparation, fitted
from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.io.names import nearest

DATASET_NAMES = ("digits", "digits-halves", *IDX_NAMES)

FOLDS = 5  # Parts of the data that can be held out in turn.
_WHITEST = 16.0  # pixel of a digit

Array = npt.NDArray[Any]
Sides = float | tuple[float, ...]
"""A number for all input columns, or one for each."""

_Bounds = tuple[FloatArray, FloatArray]
"""The lowest and the highest value of each column that are known without looking at the data, or of
all columns. Values beyond them are not refused: they are scaled like all others."""


def load_dataset(
    name: str | Path,
    directory: str | Path | None = None,
    *,
    label: str | Sequence[str] | None = None,
    text: str | None = None,
    low: Sides | None = None,
    high: Sides | None = None,
    client: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    task: Task | None = None,
    test: Literal["points", "clients"] = "points",
    fold: int = 0,
    test_share: float = 1 / FOLDS,
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
        one for each, to scale by instead of by the training values.
    client
        The column of a table that names each row's client.
    columns, drop, categories
        Columns of a table: its inputs, by default all others; those that are left out; and those
        that hold categories although they are written as numbers.
    task
        ``classification`` or ``regression``, where whole numbers as labels could be either.
    test
        ``points`` of every client are held out, or whole ``clients``.
    fold
        Which part is held out, 0 to 4.
    test_share
        Share of the points held out for testing, if the data have no test part. The split is
        stratified by class, and by client if they are named.
    seed
        Seed of that split.

    Notes
    -----
    If the training inputs of an ``.npz`` file are not all in [0, 1], each column is shifted and
    scaled so that its training values span [0, 1]; for images, all pixels together. Test inputs are
    transformed in the same way, and may lie outside. With `low` and `high`, inputs are scaled by
    these.

    The columns of a table become inputs by a `Preparation`, unless all are numbers in [0, 1].
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share}: must be above 0 and below 1")
    suffix = Path(name).suffix
    if label is not None and suffix not in TABLES:
        raise InputError(f"label is {label!r}, but only a .csv or .parquet table has label columns")
    if text is not None and suffix not in FILES:
        raise InputError(
            f"data.text is {text!r}, but only a .csv, .parquet or .npz file has texts: leave it out"
        )
    roles = Roles(label_names(label), client, columns, drop, categories, task)
    if suffix not in TABLES or text is not None:
        _refuse_roles(roles, test)
    if test == "clients" and client is None:
        raise InputError(
            "data.test is 'clients', and there are none: name their column in data.client"
        )
    bounds = _bounds_of(low, high)
    if bounds is not None and (name in DATASET_NAMES or text is not None):
        raise InputError(
            "data.low and data.high are for a file of numbers: leave them out for texts, and for "
            "a built-in data set, whose pixels have known bounds"
        )
    if name in IDX_NAMES:
        return load_idx(str(name), directory)
    if name in DATASET_NAMES:
        return _digits(str(name), test_share, seed)
    if suffix in TABLES and text is None:
        return _table(Path(name), roles, bounds, Split(test, test_share, seed, fold))
    if suffix in FILES:
        points = read_file(Path(name), label, text)
        return _dataset(Path(name).stem, points, test_share, seed, bounds)
    raise _unknown("data set", name)


def _unknown(what: str, name: str | Path) -> InputError:
    return InputError(
        f"the {what} {str(name)!r} is neither a file that ends in .npz, .csv or .parquet nor a "
        f"known name: {nearest(str(name), DATASET_NAMES)}"
    )


def _digits(name: str, test_share: float, seed: int) -> Dataset:
    """Return the digits, or their halves; the files hold integer pixels of at most a byte."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    inputs, labels = load_digits(return_X_y=True)
    inputs, image = inputs / _WHITEST, (8, 8, 1)
    if name == "digits-halves":
        (inputs, labels), image = np.split(inputs, 2, axis=1), (4, 8, 1)
    points = Points(inputs, labels, image=image)
    digits = _dataset(name, points, test_share, seed)
    return replace(digits, bits=8, origin=digits.origin.of_pixels(inputs.shape[1], _WHITEST))


def _dataset(
    name: str, points: Points, test_share: float, seed: int, bounds: _Bounds | None = None
) -> Dataset:
    """Split off test points where the file has none, number classes, and scale the inputs."""
    inputs, labels = points.inputs, points.labels
    assert labels is not None
    if points.test is None:
        numbers, classes, words = _numbered(name, labels)
        strata = np.zeros(len(labels), int) if classes is None else numbers
        test = Split("points", test_share, seed).rows(name, strata)
        parts, numbered = (inputs[~test], inputs[test]), (numbers[~test], numbers[test])
    else:
        parts, test_labels = (inputs, points.test[0]), points.test[1]
        if _kind(labels) != _kind(test_labels) or labels.shape[1:] != test_labels.shape[1:]:
            raise InputError(
                f"{name}: labels and test_labels differ in kind: write both in the same way"
            )
        numbers, classes, words = _numbered(name, np.concatenate([labels, test_labels]))
        numbered = numbers[: len(labels)], numbers[len(labels) :]
    origin = Origin(points.columns, points.label_columns, words)
    if parts[0].shape[1] == parts[1].shape[1]:  # `Dataset` refuses the rest
        origin = _with_scale(origin, parts[0], bounds, points.image)
        low, span = origin.low, origin.span
        parts = scaled(parts[0], low, span), scaled(parts[1], low, span)
    return Dataset(
        name, parts[0], numbered[0], parts[1], numbered[1], classes, points.image, origin
    )


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


def _table(path: Path, roles: Roles, bounds: _Bounds | None, split: Split) -> Dataset:
    """Read a table: hold rows out, and prepare its columns by the others."""
    table = read_raw_table(path, roles)
    numbers, classes, words = _numbered(path.stem, table.labels)
    strata = np.zeros(len(numbers), int) if classes is None else numbers
    test = split.rows(path.stem, strata, table.owners)
    if bounds is not None:
        _check_bounds(bounds, sum(values.dtype.kind == "f" for values in table.cells.values()))
    preparation = fitted(table.cells, ~test, bounds, words)
    names = tuple(table.cells)
    origin = Origin(names, tuple(roles.labels), words, held_out=test)
    raw = np.column_stack(list(table.cells.values()))
    if bounds is None and raw.dtype.kind == "f" and raw.min() >= 0 and raw.max() <= 1:
        inputs = raw
    else:
        is_public = bounds is not None and not any(c.words for c in preparation.columns)
        origin = replace(origin, preparation=preparation, own_scale=not is_public)
        inputs = preparation.transform(table.cells)
    owners = None if table.owners is None else table.owners[~test]
    labelled = (inputs[~test], numbers[~test], inputs[test], numbers[test])
    return Dataset(path.stem, *labelled, classes, None, origin, owners=owners)


def _refuse_roles(roles: Roles, test: str) -> None:
    """Refuse to give columns roles where there is no table of numbers and words."""
    given = {field.name: getattr(roles, field.name) for field in fields(roles)[1:]}
    for key, value in (given | {"test": test if test != "points" else None}).items():
        if value:
            raise InputError(
                f"data.{key} is {value!r}, which is for a .csv or .parquet table of numbers and "
                "categories: leave it out"
            )


def _with_scale(
    origin: Origin, inputs: Array, bounds: _Bounds | None, image: Image | None
) -> Origin:
    """Return the origin with the scale of its inputs: by bounds, or by their own range."""
    if bounds is not None:
        _check_bounds(bounds, inputs.shape[1])
        low, high = (np.broadcast_to(side, inputs.shape[1]) for side in bounds)
        return replace(origin, low=low.copy(), span=high - low)
    own_low, own_span = _unit_scale(inputs, image)
    return replace(origin, low=own_low, span=own_span, own_scale=own_low is not None)


def _bounds_of(low: Sides | None, high: Sides | None) -> _Bounds | None:
    """Return the bounds that are given, checked; None where none are."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InputError(f"data.low is {low} and data.high is {high}: give both")
    lows, highs = (np.atleast_1d(side).astype(np.float64) for side in (low, high))
    if len({len(lows), len(highs)} - {1}) > 1 or not (lows < highs).all():
        raise InputError(
            f"data.low is {low} and data.high is {high}: give a number each, or one for each input "
            "column, with low below high"
        )
    if not np.isfinite([*lows, *highs]).all():
        raise InputError(f"data.low is {low} and data.high is {high}: must be finite")
    return lows, highs


def _check_bounds(bounds: _Bounds, columns: int) -> None:
    for name, side in zip(("low", "high"), bounds, strict=True):
        if len(side) not in (1, columns):
            raise InputError(
                f"data.{name} has {len(side)} values where there are {columns} input columns of "
                "numbers: give one for each, or a single number"
            )


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


def read_unlabelled(
    data: str | Path,
    columns: Sequence[str],
    labels: Sequence[str],
    directory: str | Path | None = None,
    *,
    text: bool = False,
    preparation: Preparation | None = None,
) -> Points:
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
    preparation
        How the raw columns of a table become inputs.
    """
    if data in DATASET_NAMES:
        dataset = load_dataset(data, directory)
        return Points(dataset.test_inputs, dataset.test_labels, scaled=True)
    path = Path(data)
    if path.suffix in TABLES:
        how: dict[str, Any] = {"text": text, "preparation": preparation, "trained": True}
        return read_table_points(path, labels or ["label"], columns, **how)
    if path.suffix != ".npz":
        raise _unknown("data", data)
    return _npz(path)


def _npz(path: Path) -> Points:
    if not path.is_file():
        raise InputError(f"cannot read {path}: there is no such file")
    arrays = read_arrays(path, ("inputs", "labels"))
    if "inputs" not in arrays or not arrays["inputs"].ndim:
        raise InputError(f"{path} has no array inputs: write one with a row for every point")
    inputs, labels = arrays["inputs"], arrays.get("labels")
    if labels is None or labels.shape[:1] == inputs.shape[:1]:
        return Points(inputs, labels)
    raise InputError(
        f"{path}: inputs has {len(inputs)} rows and labels has shape {labels.shape}: give every "
        "point one label, or leave the labels out"
    )
