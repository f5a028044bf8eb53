"""Predictions of a model, written, printed and scored."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from codedfedl.cli.output import json_number, print_json, results, wrote
from codedfedl.data.unlabelled import read_unlabelled
from codedfedl.io.files import TABLE_SUFFIXES, check_destination
from codedfedl.io.tables import write_table
from codedfedl.models import Model, load_model

__all__ = ["write_predictions"]

_SHOWN = 10

Array = npt.NDArray[Any]


def write_predictions(
    model: Path,
    points: str,
    out: Path | None,
    probabilities: bool,
    encoder: str | None,
    trust: bool,
    data: str | None,
    as_json: bool,
) -> None:
    """Predict the points of a file or a data set, and print or write the predictions."""
    if out is not None:
        check_destination(out, TABLE_SUFFIXES)
    known = load_model(model, encoder, trust=trust)
    found = read_unlabelled(points, known.columns, known.labels, data, text=known.takes_text)
    inputs = found.inputs if found.scaled else known.raw(found.inputs)
    predicted = known.predict(inputs)
    likely = known.predict_proba(inputs) if probabilities else None
    score = None if found.labels is None else _score(known, predicted, found.labels)
    if out is not None:
        write_table(out, _columns(known, predicted, likely))
    if as_json:
        document = {
            "model": str(model),
            "points": len(predicted),
            "predictions": predicted.tolist(),
            "accuracy": score if known.is_classifier else None,
            "r_squared": None if known.is_classifier else score,
        }
        calibrated = {"calibrated_on": known.card.get("calibrated_on")}
        more = {} if likely is None else {"probabilities": likely.tolist(), **calibrated}
        print_json(document | more)
    else:
        _show(known, predicted, score)
    if out is not None:
        wrote(out)


def _score(model: Model, predicted: Array, labels: Array) -> float | None:
    """Return the accuracy, or R² pooled over the label columns."""
    if model.is_classifier:
        return float(np.mean(predicted.astype(str) == np.asarray(labels).astype(str)))
    wanted = np.asarray(labels, dtype=np.float64).reshape(len(predicted), -1)
    residual = ((predicted.reshape(wanted.shape) - wanted) ** 2).sum()
    total = ((wanted - wanted.mean(axis=0)) ** 2).sum()
    return json_number(float(1 - residual / total)) if total > 0 else None


def _columns(model: Model, predicted: Array, likely: Array | None) -> dict[str, Array]:
    columns = {"prediction": predicted}
    if predicted.ndim == 2:
        names = model.labels or tuple(str(place) for place in range(predicted.shape[1]))
        columns = {f"prediction_{name}": predicted[:, c] for c, name in enumerate(names)}
    if likely is not None and model.classes is not None:
        columns |= {f"probability_{n}": likely[:, c] for c, n in enumerate(model.classes.tolist())}
    return columns


def _show(model: Model, predicted: Array, score: float | None) -> None:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("point", justify="right")
    table.add_column("prediction")
    for row, value in enumerate(predicted[:_SHOWN]):
        table.add_row(str(row), np.array2string(np.asarray(value), precision=4))
    results.print(table)
    if len(predicted) > _SHOWN:
        results.print(f"… and {len(predicted) - _SHOWN:,} more: use --out FILE, or --json")
    if score is not None:
        what = f"accuracy {score:.2%}" if model.is_classifier else f"R² {score:.4f}"
        results.print(f"{what} on {len(predicted):,} points")
