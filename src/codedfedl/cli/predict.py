"""`codedfedl predict` and `export`: use a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from codedfedl.cli.options import Data, Json, Trust
from codedfedl.cli.output import print_json, wrote
from codedfedl.io.files import check_destination

__all__ = ["export_command", "predict_command"]

EncoderName = Annotated[
    str | None,
    typer.Option(
        help="The encoder that the model was trained on: an .onnx file, or module:function.",
        show_default=False,
    ),
]
ModelFile = Annotated[Path, typer.Argument(help="The model.npz of a run.", show_default=False)]


def predict_command(
    model: ModelFile,
    points: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A .csv, .parquet or .npz file, or the name of a data set: its test points.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write the predictions here (.csv or .parquet).", show_default=False),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also give the probability of every class.")
    ] = False,
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
    """
    from codedfedl.cli.predicting import write_predictions

    write_predictions(model, points, out, probabilities, encoder, trust, data, as_json)


def export_command(
    model: ModelFile,
    out: Annotated[Path, typer.Option(help="The ONNX file.")] = Path("model.onnx"),
    encoder: EncoderName = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX: a graph from points to scores.

    The graph of a model with an encoder begins at the encoder's outputs.
    It needs the extra: pip install 'codedfedl[onnx]'.
    """
    from codedfedl.models import load_model
    from codedfedl.models.onnx import export_onnx

    check_destination(out, (".onnx",))
    known = load_model(model, encoder, trust=trust)
    export_onnx(known, out)
    if as_json:
        print_json({"model": str(model), "onnx": str(out), "inputs": known.inputs})
    wrote(out)
