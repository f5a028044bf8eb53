"""`Dataset`: inputs and labels to train on and to test with, checked once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray, IntArray
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.data.tabular import Preparation


class Rows(ABC):
    """A matrix of float32, shape (n, d), of which only the requested rows ever exist.

    The same row is the same numbers whenever it is asked for. `Dataset` takes it for its training
    points; nobody checks that the numbers are finite.
    """

    dtype = np.dtype(np.float32)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Points, and numbers of each."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return some rows: a slice, or an array of numbers."""

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, eq=False)
class Origin:
    """Metadata of the file that the data come from; empty if it had none.

    Attributes
    ----------
    columns, labels
        Names of the input columns, and of the label columns.
    classes
        Names of the classes, in order.
    low, span : arrays of shape (d,)
        Inputs are (value in the file − low) / span.
    own_scale
        Whether these, or the preparation, come from the training values, rather than being known
        without the data.
    preparation
        How the raw columns of a table became the inputs; then there is no scale.
    held_out : array of bools, optional
        Which rows of a table are test points.
    """

    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    low: FloatArray | None = None
    span: FloatArray | None = None
    own_scale: bool = False
    preparation: "Preparation | None" = None
    held_out: npt.NDArray[np.bool_] | None = None

    def of_pixels(self, inputs: int, whitest: float) -> "Origin":
        """Return the origin of pixel files, whose values from 0 to `whitest` become [0, 1]."""
        return replace(self, low=np.zeros(inputs), span=np.full(inputs, whitest))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Points with their labels, split into training and test points.

    Parameters
    ----------
    name
        Name of the data in tables and figures.
    inputs, test_inputs : arrays of shape (n, d) and (n_test, d)
        One point per row; kept as float32. Texts, for an encoder, have the shape (n, 1). `Rows`
        are made when they are needed.
    labels, test_labels : arrays of shape (n,), or (n, c) for regression
        Class numbers from 0, kept as int64, or the numbers to predict, kept as float64.
    classes
        How many classes there are; None stands for regression.
    image
        Height, width and channels, if a point is an image: its pixels row by row, with the channels
        of a pixel side by side.
    origin
        Metadata of the file that they come from.
    bits
        Bits per input value at its source, such as 8 for the pixels of an image.
    owners : array of shape (n,), optional
        The name of each training point's client, where the data say it.

    Examples
    --------
    >>> data = Dataset("xor", [[0, 0], [0, 1]], [0, 1], [[1, 1], [1, 0]], [0, 1], classes=2)
    >>> data.targets.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name: str
    inputs: npt.NDArray[Any]
    labels: IntArray | FloatArray
    test_inputs: npt.NDArray[Any]
    test_labels: IntArray | FloatArray
    classes: int | None
    image: tuple[int, int, int] | None = None
    origin: Origin = Origin()
    bits: int = 32
    owners: npt.NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        if self.classes is not None and self.classes < 1:
            raise InputError(f"classes is {self.classes}: must be at least 1, or None")
        for part in ("", "test_"):
            inputs = _points(f"{part}inputs", getattr(self, f"{part}inputs"))
            labels = _labels(f"{part}labels", getattr(self, f"{part}labels"), self.classes)
            if len(inputs) != len(labels):
                raise InputError(
                    f"{part}inputs has {len(inputs)} rows and {part}labels has {len(labels)}: "
                    "give every point one label"
                )
            object.__setattr__(self, f"{part}inputs", inputs)
            object.__setattr__(self, f"{part}labels", labels)
        if self.image is not None and prod(self.image) != self.inputs.shape[1]:
            raise InputError(
                f"image is {self.image} where inputs has {self.inputs.shape[1]} columns: give "
                "height, width and channels whose product they are, or None"
            )
        for field in ("inputs", "labels"):
            shape, test = getattr(self, field).shape[1:], getattr(self, f"test_{field}").shape[1:]
            if shape != test:
                raise InputError(
                    f"test_{field} has rows of shape {test} where {field} has {shape}: "
                    "give both the same columns"
                )
        if self.is_text != (self.test_inputs.dtype.kind == "U"):
            raise InputError(
                "one of inputs and test_inputs holds texts, and the other numbers: give both the "
                "same kind"
            )

    @property
    def clients(self) -> npt.NDArray[np.str_] | None:
        """The names of the clients that have training points, in order, where the data say it."""
        return None if self.owners is None else np.unique(self.owners)

    def check_classes(self) -> None:
        """Refuse to train on points that are all of one class."""
        if self.is_classification and len(classes := np.unique(self.labels)) == 1:
            number = int(classes[0])
            word = self.origin.classes[number] if self.origin.classes else number
            raise InputError(
                f"{self.name}: every training point has the label {word!r}: there is nothing to "
                "tell apart; give points of two classes or more"
            )

    @property
    def is_classification(self) -> bool:
        """Whether the labels are classes."""
        return self.classes is not None

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts, which only an encoder takes."""
        return self.inputs.dtype.kind == "U"

    @property
    def input_bits(self) -> int:
        """Bits of a point where it comes from; of a text, eight a character on average."""
        if self.is_text:
            characters = float(np.strings.str_len(self.inputs).mean())
            return round(8 * characters)
        return self.bits * int(self.inputs.shape[1])

    @property
    def label_columns(self) -> int:
        """Columns of the targets (the paper's c): the classes, or the numbers to predict."""
        if self.classes is not None:
            return self.classes
        return 1 if self.labels.ndim == 1 else self.labels.shape[1]

    @property
    def label_bits(self) -> int:
        """Bits that a label takes: a byte or two for a class, 32 for every number."""
        if self.classes is not None:
            return 8 if self.classes <= 256 else 16
        return 32 * self.label_columns

    @property
    def chance(self) -> float:
        """Score of a model that ignores the inputs on the test points: an accuracy, or an R² of 0.

        It always predicts the most frequent class of the test points, or the mean.
        """
        return chance_of(self.test_labels, self.is_classification)

    @property
    def targets(self) -> npt.NDArray[np.float32]:
        """What the model is fitted to, shape (n, c): one-hot classes, or the labels as columns."""
        return targets_of(self.labels, self.classes)

    def targets_of(self, rows: IntArray) -> npt.NDArray[np.float32]:
        """Return the targets of some points."""
        return targets_of(self.labels[rows], self.classes)

    @property
    def test_targets(self) -> npt.NDArray[np.float32]:
        """The same for the test points, shape (n_test, c)."""
        return targets_of(self.test_labels, self.classes)


def chance_of(labels: npt.NDArray[Any], is_classification: bool) -> float:
    """Return the share of the most frequent class; 0, an R², for labels that are not classes."""
    if not is_classification:
        return 0.0
    return float(np.bincount(labels.astype(np.int64)).max() / len(labels))


def check_finite(name: str, values: npt.NDArray[Any]) -> None:
    """Refuse NaN and infinity in an array of shape (n,) or (n, d), naming row and column."""
    finite = np.isfinite(values)
    if not finite.all():
        first = tuple(np.argwhere(~finite)[0].tolist())
        column = "".join(f", column {index}" for index in first[1:])
        raise InputError(
            f"{name}, row {first[0]}{column} (counted from 0) is {values[first]}: "
            "replace it by a finite number, or leave the point out"
        )


def _points(name: str, values: npt.ArrayLike | Rows) -> npt.NDArray[Any]:
    if isinstance(values, Rows):
        return cast("npt.NDArray[Any]", values)
    held = _array(name, values)
    if held.dtype.kind == "U":
        return texts(name, held)
    given = real_numbers(name, held)
    if given.ndim != 2 or given.size == 0:
        raise InputError(f"{name} has shape {given.shape}: give at least one point and one feature")
    return _float32(name, given)


def _labels(name: str, values: npt.ArrayLike, classes: int | None) -> IntArray | FloatArray:
    given = real_numbers(name, values)
    allowed = (1, 2) if classes is None else (1,)
    if given.ndim not in allowed or given.size == 0:
        raise InputError(f"{name} has shape {given.shape}: give one label per point")
    if classes is None:
        _float32(name, given)  # what `targets` will hold
        return given.astype(np.float64, copy=False)
    wrong = ~((given >= 0) & (given < classes) & (given == np.floor(given)))  # NaN is wrong
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{name}, row {row} (counted from 0) is {given[row]}: must be a class, a whole number "
            f"from 0 to {classes - 1}"
        )
    return given.astype(np.int64, copy=False)


def _float32(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    check_finite(name, values)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32, copy=False)
    check_finite(f"{name} as float32", single)
    return single


def real_numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return values as an array, refusing what holds anything but real numbers."""
    array = _array(name, values)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {array.dtype}, not real numbers: convert it first")
    return array


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(
            f"{name} has rows of unequal length: give every point the same length"
        ) from None


def texts(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.str_]:
    """Return texts in one column, shape (n, 1), refusing several columns and anything but text."""
    if values.dtype == object and all(isinstance(cell, str) for cell in values.ravel()):
        values = values.astype(np.str_)
    column = values.reshape(len(values), -1) if values.ndim in (1, 2) and values.size else values
    if column.ndim != 2 or column.shape[1] != 1 or column.dtype.kind != "U":
        raise InputError(
            f"{name} has shape {values.shape} and holds {values.dtype}: give one text per point"
        )
    return column


def scaled(
    inputs: npt.NDArray[Any], low: npt.ArrayLike | None, span: npt.ArrayLike | None
) -> npt.NDArray[Any]:
    """Return (inputs − low) / span, or the inputs where there is no scale."""
    if low is None or span is None:
        return inputs
    with np.errstate(over="ignore", invalid="ignore"):  # `Dataset` refuses what overflows
        return np.asarray((inputs - np.asarray(low)) / np.asarray(span))


def targets_of(labels: npt.NDArray[Any], classes: int | None) -> npt.NDArray[np.float32]:
    """Return what a model is fitted to, shape (n, c): one-hot classes, or labels as columns."""
    if classes is None:
        return labels.reshape(len(labels), -1).astype(np.float32)
    one_hot = np.zeros((len(labels), classes), dtype=np.float32)
    one_hot[np.arange(len(labels)), labels.astype(np.int64)] = 1
    return one_hot
