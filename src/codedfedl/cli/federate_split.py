"""`codedfedl federate split`: a table in one place becomes a federation, a file for each client."""

from pathlib import Path
from typing import TYPE_CHECKING

from codedfedl.cli.options import Json, Overrides
from codedfedl.cli.output import show, wrote
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.runs.config import Experiment


def split_command(
    experiment: Path,
    *,
    out: Path = Path("federation"),
    overrides: Overrides = (),
    as_json: Json = False,
) -> None:
    """Split an experiment's table: a CSV file for each client, and what a federation needs.

    Writes NAME.csv for every client of data.client, test.csv for the server, preparation.json with
    the public constants that turn columns into inputs (give it to every node), and federation.toml
    for `codedfedl federate run`. Where sites never show their tables to anybody, fit
    preparation.json to public or invented rows of the same form.

    Parameters
    ----------
    experiment
        A TOML file whose data are a table with data.client.
    out
        The folder for the files.
    """
    from codedfedl.io.files import make_folder
    from codedfedl.runs.documents import parse_overrides, read_experiment

    chosen = read_experiment(experiment, parse_overrides(overrides))
    if not chosen.data.is_table or chosen.data.client is None:
        raise InputError(
            f"{experiment} has no table with data.client: name the column of the clients"
        )
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out} is not empty: choose another --out")
    make_folder(out)
    rows = _write(chosen, out)
    document = {"folder": str(out), "clients": rows}
    show(as_json, document, [{"client": name, "points": n} for name, n in rows.items()])
    wrote(out / "federation.toml")


def _write(experiment: "Experiment", out: Path) -> dict[str, int]:
    """Write all files; return how many points each client has."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import tomli_w

    from codedfedl.data.tabular import Preparation, TableColumn
    from codedfedl.federate.deploy.keys import check_name
    from codedfedl.io.tables import load_table
    from codedfedl.learning.features import typical_sigma
    from codedfedl.runs.config import Experiment
    from codedfedl.simulation.quadratics import ridge_for_new_clients

    data = experiment.data
    dataset = data.load()
    origin, owners, clients = dataset.origin, dataset.owners, dataset.clients
    assert origin.held_out is not None
    assert owners is not None
    assert clients is not None
    for name in clients.tolist():
        check_name(name)
    table = load_table(Path(data.name))
    train = np.flatnonzero(~origin.held_out)
    for name in clients.tolist():
        rows = table.take(pa.array(train[owners == name]))
        pa.csv.write_csv(rows.drop_columns([data.client]), out / f"{name}.csv")
    pa.csv.write_csv(table.filter(pa.array(origin.held_out)), out / "test.csv")
    plain = tuple(TableColumn(name) for name in origin.columns)
    preparation = origin.preparation or Preparation(plain, None, origin.classes)
    preparation.write(out / "preparation.json")
    points = {name: int((owners == name).sum()) for name in clients.tolist()}
    federation = {"clients": len(points), "test": str((out / "test.csv").resolve())}
    chosen = experiment.with_sigma(typical_sigma(dataset.inputs))
    ridge = experiment.ridge(len(dataset.inputs))
    if experiment.for_new_clients:
        ridge = ridge_for_new_clients(dataset, chosen.feature_map(points=len(dataset.inputs)))
    document = {
        "data": {
            "label": data.label or "label",
            "preparation": str((out / "preparation.json").resolve()),
        },
        "features": chosen.features,
        "training": experiment.training.model_copy(update={"ridge": ridge}),
        "schemes": experiment.schemes[:1],
        "federation": federation | {"points": points},
    }
    plain_document = Experiment.model_validate(document).model_dump(
        exclude_none=True, exclude_defaults=True
    )
    (out / "federation.toml").write_text(tomli_w.dumps(plain_document), encoding="utf-8")
    return points
