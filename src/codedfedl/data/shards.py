"""A client's own data, as they lie on its disk: read as they are, never scaled.

All clients must use the same units, so nothing here depends on the values of a single client.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.data.dataset import texts
from codedfedl.data.files import TABLES, read_npz, read_points
from codedfedl.errors import InputError

__all__ = ["Shard", "load_shard", "read_shard"]

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Shard:
    """Points with their labels; both may be memory-mapped.

    Parameters
    ----------
    inputs : array of shape (n, d)
        Numbers; or texts, shape (n, 1), for an encoder.
    labels : array of shape (n,) or (n, c)
        Whole numbers in one column mean classes, and decimal numbers regression.
    """

    inputs: npt.NDArray[Any]
    labels: npt.NDArray[Any]

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
        labels = self.labels[rows]
        if not self.is_classification:
            return labels.reshape(len(rows), -1).astype(np.float32)
        one_hot = np.zeros((len(rows), columns), dtype=np.float32)
        one_hot[np.arange(len(rows)), labels.astype(np.int64)] = 1
        return one_hot


def read_shard(path: str | Path, label: str | None = None, text: str | None = None) -> Shard:
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
    """
    path = Path(path)
    if path.suffix == ".npz":
        arrays, _ = read_npz(path, text=text is not None)
        return Shard(arrays["inputs"], arrays["labels"])
    if path.suffix in TABLES:
        found = read_points(path, label, text)
        return Shard(found.inputs, found.labels)
    if not path.is_dir():
        raise InputError(
            f"cannot read {path}: give an .npz, .csv or .parquet file, or a folder with inputs.npy "
            "and labels.npy"
        )
    try:
        return Shard(*(np.load(path / f"{name}.npy", "r") for name in ("inputs", "labels")))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


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
