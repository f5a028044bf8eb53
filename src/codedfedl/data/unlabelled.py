"""Points to predict for, from a file that may or may not have labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from codedfedl.data.files import TABLES, input_columns, label_column, label_names, number_columns
from codedfedl.data.loading import DATASET_NAMES, load_dataset
from codedfedl.errors import InputError
from codedfedl.io.archives import read_arrays
from codedfedl.io.names import nearest
from codedfedl.io.tables import load_table

__all__ = ["Unlabelled", "read_unlabelled"]

Array = npt.NDArray[Any]


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
        found = load_dataset(data, directory)
        return Unlabelled(found.test_inputs, found.test_labels, scaled=True)
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
