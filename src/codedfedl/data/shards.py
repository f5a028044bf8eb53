"""A client's own data as they lie on its disk, and the scale that clients agree on by sums.

All clients must use the same units, so nothing here depends on the values of a single client.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import FloatArray
from codedfedl.data.columns import Roles, Task, read_raw_table
from codedfedl.data.dataset import scaled, targets_of, texts
from codedfedl.data.files import FILES, TABLES, Points, label_names, read_file
from codedfedl.data.tabular import Preparation, read_preparation
from codedfedl.errors import InputError
from codedfedl.io.names import listed

_ROWS_AT_ONCE = 4096
ROWS_SUMMED_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Shard:
    """Points with their labels; both may be memory-mapped.

    Parameters
    ----------
    inputs : array of shape (n, d)
        Numbers; or texts, shape (n, 1), for an encoder.
    labels : array of shape (n,) or (n, c)
        Whole numbers in one column mean classes, and decimal numbers regression.
    names
        The input columns of a table.
    words
        The classes of labels that are words in the file, in order.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        inputs, labels = self.inputs, self.labels
        if inputs.dtype.kind == "U":
            object.__setattr__(self, "inputs", texts("inputs", inputs))
        elif inputs.ndim != 2 or inputs.shape[0] == 0 or inputs.dtype.kind not in "biuf":
            raise InputError(
                f"inputs has shape {inputs.shape} and holds {inputs.dtype}: give a row of numbers "
                "for every point"
            )
        if labels.ndim not in (1, 2) or labels.dtype.kind not in "biuf":
            raise InputError(
                f"labels has shape {labels.shape} and holds {labels.dtype}: number the classes "
                "0, 1, … in the same way at all clients, or write decimal numbers"
            )
        if len(labels) != len(inputs):
            raise InputError(
                f"inputs has {len(inputs)} rows and labels has {len(labels)}: "
                "give every point one label"
            )
        if self.is_classification and labels.min() < 0:
            raise InputError(f"labels holds {labels.min()}: number the classes 0, 1, …")

    @property
    def is_classification(self) -> bool:
        """Whether the labels are classes."""
        return self.labels.dtype.kind in "biu" and self.labels.ndim == 1

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts, which only an encoder takes."""
        return self.inputs.dtype.kind == "U"

    @property
    def columns(self) -> int:
        """Label columns that these points need: classes so far, or numbers to predict."""
        if self.is_classification:
            return int(self.labels.max()) + 1
        return 1 if self.labels.ndim == 1 else self.labels.shape[1]

    def in_classes(self, words: Sequence[str]) -> Self:
        """Return the points with labels that number these classes, among which are its own."""
        if not words and not self.words:
            return self
        if not self.words or not set(self.words) <= set(words):
            mine, theirs = (listed(names) or "numbers" for names in (self.words, words))
            raise InputError(
                f"labels are {mine}, and the federation's classes are {theirs}: name classes in "
                "the same way everywhere"
            )
        places = np.searchsorted(words, self.words)
        return replace(self, labels=places[self.labels], words=tuple(words))

    @property
    def fingerprint(self) -> str:
        """A hash of all points and labels, which are read once for it."""
        digest = hashlib.sha256()
        for array in (self.inputs, self.labels):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            for start in range(0, len(array), _ROWS_AT_ONCE):
                rows = np.ascontiguousarray(array[start : start + _ROWS_AT_ONCE])
                digest.update(rows.tobytes())
        return digest.hexdigest()

    def targets(self, rows: npt.NDArray[np.int64], columns: int) -> npt.NDArray[np.float32]:
        """Return what the model is fitted to, for some points: one-hot classes or the labels."""
        return targets_of(self.labels[rows], columns if self.is_classification else None)


def read_shard(
    path: str | Path,
    label: str | None = None,
    text: str | None = None,
    preparation: str | Path | None = None,
) -> Shard:
    """Read a client's data.

    Parameters
    ----------
    path
        An ``.npz`` file with ``inputs`` and ``labels``; a ``.csv`` or ``.parquet`` table; or, for
        data larger than memory, a folder with ``inputs.npy`` and ``labels.npy``, which are
        memory-mapped.
    label
        The label column of a table, or several, separated by commas; ``label`` by default.
    text
        The column of a table that holds texts, for an encoder; any name for the texts of an
        ``.npz`` file.
    preparation
        The file of public constants that turn a table's columns into inputs.
    """
    path = Path(path)
    if preparation is not None and path.suffix in TABLES:
        return _prepared(path, label, read_preparation(preparation))
    if path.suffix in FILES:
        points = read_file(path, label, text)
        assert points.labels is not None
        return _matched(points, text)
    if not path.is_dir():
        raise InputError(
            f"cannot read {path}: give an .npz, .csv or .parquet file, or a folder with inputs.npy "
            "and labels.npy"
        )
    try:
        return Shard(*(np.load(path / f"{name}.npy", "r") for name in ("inputs", "labels")))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _matched(points: Points, text: str | None) -> Shard:
    """Return points with columns in the order of their names, and words of labels numbered."""
    inputs, labels, words = points.inputs, points.labels, ()
    assert labels is not None
    names = points.columns if text is None else ()
    order = sorted(range(len(names)), key=names.__getitem__)
    if labels.dtype.kind == "U" and labels.ndim == 1:
        classes, labels = np.unique(labels, return_inverse=True)
        words = tuple(classes.tolist())
    inputs = inputs[:, order] if names else inputs
    return Shard(inputs, labels, tuple(names[k] for k in order), words)


def _prepared(path: Path, label: str | None, preparation: Preparation) -> Shard:
    """Read a table whose columns become inputs, and words of labels the numbers of classes."""
    task: Task | None = "classification" if preparation.classes else None
    table = read_raw_table(path, Roles(label_names(label), task=task), preparation)
    labels = table.labels
    if preparation.classes:
        words = labels.astype(str)
        if unknown := sorted(set(words.tolist()) - set(preparation.classes)):
            raise InputError(
                f"{path} has the label {unknown[0]!r}, and the federation's classes are "
                f"{', '.join(preparation.classes)}: correct it, or leave the row out"
            )
        labels = np.searchsorted(preparation.classes, words)
    return Shard(preparation.transform(table.cells).astype(np.float32), labels)


def load_shard(loader: str, config: dict[str, Any]) -> Shard:
    """Call a user's own loader, named ``module:function``, with the node's configuration."""
    module, _, name = loader.partition(":")
    try:
        function: Callable[[dict[str, Any]], Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"loader is {loader!r}, which cannot be imported ({error}): write module:function"
        ) from None
    try:
        inputs, labels = function(config)
    except Exception as error:
        raise InputError(
            f"loader {loader!r} failed ({type(error).__name__}: {error}): it must return inputs, "
            "shape (n, d), and labels"
        ) from None
    return Shard(np.asanyarray(inputs), np.asanyarray(labels))


STEPS_PER_DOUBLING, STEPS_PER_SPREAD = 4, 8
"""A client's spreads are rounded to so many steps per factor of 2, its means to so many steps per
spread: the mean of n points moves by a step only where points change by n/8 spreads together."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Means and spreads over the points of one client, rounded so that no point shows in them.

    Attributes
    ----------
    means, spreads : arrays of shape (d,)
        Of every input column. A spread is a power of the fourth root of 2, and 0 where all values
        are the same; a mean is a multiple of an eighth of it.
    labels : array of shape (c,)
        Means of the numbers to predict, likewise; of shape (0,) for classes.
    """

    means: FloatArray
    spreads: FloatArray
    labels: FloatArray


def moments(shard: Shard) -> Moments:
    """Return a client's rounded means and spreads, from some rows at a time."""
    labels = np.zeros(0)
    if not shard.is_classification:
        labels, _ = _rounded(np.asarray(shard.labels).reshape(len(shard.labels), -1))
    return Moments(*_rounded(shard.inputs), labels)


def _rounded(columns: npt.NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of every column, rounded.

    Two passes: sums of squares about 0 would lose the digits of columns far from it.
    """
    means, squares = np.zeros((2, columns.shape[1]))
    for rows in _blocks(columns):
        means += rows.sum(0) / len(columns)
    for rows in _blocks(columns):
        squares += ((rows - means) ** 2).sum(0) / len(columns)
    varies = squares > 0
    steps = np.rint(STEPS_PER_DOUBLING * np.log2(np.sqrt(np.where(varies, squares, 1.0))))
    spreads = np.where(varies, 2.0 ** (steps / STEPS_PER_DOUBLING), 0.0)
    grid = np.where(varies, spreads / STEPS_PER_SPREAD, 1.0)
    return np.where(varies, np.rint(means / grid) * grid, means), spreads


def _blocks(columns: npt.NDArray[Any]) -> Iterator[FloatArray]:
    for start in range(0, len(columns), ROWS_SUMMED_AT_ONCE):
        yield np.asarray(columns[start : start + ROWS_SUMMED_AT_ONCE], np.float64)


def agreed_scaling(clients: Sequence[Moments], points: Sequence[float]) -> "Scaling":
    """Return the common scale of clients with so many points each; spreads of 0 become 1."""
    shares = np.asarray(points, np.float64) / np.sum(points)
    means, labels = (
        np.stack([getattr(client, name) for client in clients]) for name in ("means", "labels")
    )
    low = means[0] + shares @ (means - means[0])  # exact where all are the same
    offset = labels[0] + shares @ (labels - labels[0])
    variance = sum(
        share * (client.spreads**2 + (client.means - low) ** 2)
        for share, client in zip(shares, clients, strict=True)
    )
    span = np.where(variance > 0, np.sqrt(variance), 1.0)
    return Scaling(low.tolist(), span.tolist(), offset.tolist())


@dataclass(frozen=True)
class Scaling:
    """How every client shifts and scales its data; plain lists, to be sent as JSON.

    Attributes
    ----------
    low, span
        Inputs become (value − low) / span.
    offset
        Subtracted from the numbers to predict; empty for classes.
    """

    low: list[float] = field(default_factory=list)
    span: list[float] = field(default_factory=list)
    offset: list[float] = field(default_factory=list)

    def inputs(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return scaled inputs; as they are where nothing was agreed on."""
        if not self.low:
            return values
        return scaled(np.asarray(values, np.float64), self.low, self.span)

    def targets(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return centred targets; as they are for classes."""
        return values - np.asarray(self.offset, np.float32) if self.offset else values


UNSCALED = Scaling()
"""No scaling."""
