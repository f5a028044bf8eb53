"""`codedfedl predict` and `export`: use a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.options import Data, Json, Trust
from codedfedl.cli.output import View, check_outputs, json_number, show, wrote
from codedfedl.io.files import check_destination

if TYPE_CHECKING:
    import numpy.typing as npt

    from codedfedl.models import Model

    Array = npt.NDArray[Any]


SHOWN_POINTS = 10

EncoderName = Annotated[
    str | None,
    typer.Option(
        help="The encoder that the model was trained on: an .onnx file, or module:function."
    ),
]


def predict_command(
    model: Path,
    points: str,
    *,
    out: Path | None = None,
    probabilities: bool = False,
    encoder: EncoderName = None,
    trust: Trust = False,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Predict with a run's model, and score it if the data have labels.

    Columns of a table are matched by name if the model knows names, otherwise by position.
    Values are scaled like the training data. The label column is optional.

    Examples: `codedfedl predict runs/run/model.npz new.csv --out predictions.csv`,
    `codedfedl predict runs/run/model.npz mnist --json`.

    Parameters
    ----------
    model
        The model.npz of a run.
    points : DATA
        A .csv, .parquet or .npz file, or the name of a data set: its test points.
    out
        Write the predictions here (.csv or .parquet).
    probabilities
        Also give the probability of every class.
    """
    from codedfedl.data.loading import read_unlabelled
    from codedfedl.io.tables import write_table
    from codedfedl.models import load_model

    check_outputs({}, out=out)
    known = load_model(model, encoder, trust=trust)
    how: dict[str, Any] = {"text": known.takes_text, "preparation": known.preparation}
    given = read_unlabelled(points, known.columns, known.labels, data, **how)
    inputs = given.inputs if given.scaled else known.raw(given.inputs)
    predicted = known.predict(inputs)
    likely = known.predict_proba(inputs) if probabilities else None
    score = None if given.labels is None else _score(known, predicted, given.labels)
    document = {
        "model": str(model),
        "points": len(predicted),
        "predictions": predicted.tolist(),
        "accuracy": score if known.is_classifier else None,
        "r_squared": None if known.is_classifier else score,
    }
    if likely is not None:
        document |= {
            "probabilities": likely.tolist(),
            "calibrated_on": known.card.get("calibrated_on"),
        }
    if out is not None:
        write_table(out, _columns(known, predicted, likely))
    show(as_json, document, *_views(known, predicted, score))
    if out is not None:
        wrote(out)


def _score(model: "Model", predicted: "Array", labels: "Array") -> float | None:
    """Return the accuracy, or R² pooled over the label columns."""
    if model.is_classifier:
        return float((predicted.astype(str) == labels.astype(str)).mean())
    wanted = labels.astype(float).reshape(len(predicted), -1)
    residual = ((predicted.reshape(wanted.shape) - wanted) ** 2).sum()
    total = ((wanted - wanted.mean(axis=0)) ** 2).sum()
    return json_number(float(1 - residual / total)) if total > 0 else None


def _columns(model: "Model", predicted: "Array", likely: "Array | None") -> dict[str, "Array"]:
    columns = {"prediction": predicted}
    if predicted.ndim == 2:
        names = model.labels or tuple(str(c) for c in range(predicted.shape[1]))
        columns = {f"prediction_{name}": predicted[:, c] for c, name in enumerate(names)}
    if likely is not None and model.classes is not None:
        columns |= {f"probability_{n}": likely[:, c] for c, n in enumerate(model.classes.tolist())}
    return columns


def _views(model: "Model", predicted: "Array", score: float | None) -> list[View]:
    import numpy as np

    first = [np.array2string(np.asarray(value), precision=4) for value in predicted[:SHOWN_POINTS]]
    views: list[View] = [[{"point": k, "prediction": text} for k, text in enumerate(first)]]
    if len(predicted) > SHOWN_POINTS:
        views.append(f"… and {len(predicted) - SHOWN_POINTS:,} more: use --out FILE, or --json")
    if score is not None:
        quality = f"accuracy {score:.2%}" if model.is_classifier else f"R² {score:.4f}"
        views.append(f"{quality} on {len(predicted):,} points")
    return views


def export_command(
    model: Path,
    *,
    out: Path = Path("model.onnx"),
    encoder: EncoderName = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX: a graph from points to scores.

    The graph of a model with an encoder begins at the encoder's outputs.
    It needs the extra: pip install 'codedfedl[onnx]'.

    Parameters
    ----------
    model
        The model.npz of a run.
    out
        The ONNX file.
    """
    from codedfedl.models import load_model
    from codedfedl.models.onnx import export_onnx

    check_destination(out, (".onnx",))
    known = load_model(model, encoder, trust=trust)
    export_onnx(known, out)
    show(as_json, {"model": str(model), "onnx": str(out), "inputs": known.inputs})
    wrote(out)
