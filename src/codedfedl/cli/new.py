"""`codedfedl new`: the experiment of a user's own table, as a commented file that runs."""

import json
from pathlib import Path
from typing import Literal, get_args

import typer

from codedfedl.cli.options import Json
from codedfedl.cli.output import show, wrote
from codedfedl.errors import InputError

Goal = Literal["simulate", "compare", "federate"]
_NEWTON = """
[[schemes]]
name = "coded-newton"
excess = 0.02
"""
_RIVALS = """
[[schemes]]
name = "balanced"

[[schemes]]
name = "one-shot"

[[schemes]]
name = "uncoded"
optimiser = "block-cg"
"""
_PARTITION = 'partition = "sorted"   # rows are dealt to clients: sorted by label, iid, dirichlet'


def new_command(
    out: Path = Path("experiment.toml"),
    *,
    data: str | None = None,
    label: str | None = None,
    client: str | None = None,
    fleet: str | None = None,
    goal: Goal | None = None,
    as_json: Json = False,
) -> None:
    """Write a commented experiment for a table: five options, or five questions.

    What is not given is asked; with --json, or without a terminal, it has its default.

    Parameters
    ----------
    out
        The TOML file.
    data
        A .csv or .parquet table.
    label
        The label column; by default the last column.
    client
        The column that names each row's client; none by default.
    fleet
        paper, phones, or a fleet file.
    goal
        simulate one scheme, compare several, or federate.
    """
    from codedfedl.fleet.built_in import check_fleet_name, own_delays
    from codedfedl.io.files import replacing
    from codedfedl.io.tables import column_names
    from codedfedl.io.toml import parse_toml
    from codedfedl.runs.documents import check

    if out.suffix != ".toml" or out.exists():
        what = "exists" if out.exists() else "must end in .toml"
        raise InputError(f"{out} {what}: choose another file")
    asks = not as_json and typer.get_text_stream("stdin").isatty()
    data = data or (typer.prompt("Table (.csv or .parquet)") if asks else None)
    if data is None:
        raise InputError("there is no --data: name a .csv or .parquet table")
    columns = column_names(data)
    label = label or _asked("Label column", columns[-1], asks)
    client = client or _asked("Column of clients (empty for none)", "", asks)
    fleet = fleet or _asked("Fleet: paper, phones, or a file", "paper", asks)
    chosen: str = goal or _asked("Goal: simulate, compare or federate", "simulate", asks)
    if chosen not in get_args(Goal):
        raise InputError(f"the goal is {chosen!r}: must be {', '.join(get_args(Goal))}")
    for name in filter(None, (*label.split(","), client)):
        if name.strip() not in columns:
            raise InputError(f"{data} has no column {name.strip()!r}: it has {', '.join(columns)}")
    text = _text(data, label, client, fleet, chosen)
    experiment = check(parse_toml(text), str(out))
    if own_delays(fleet) is None:
        check_fleet_name(fleet)
    experiment.data.load()  # refuses what would fail later
    with replacing(out) as partial:
        partial.write_text(text, "utf-8")
    command = "federate split" if chosen == "federate" else "simulate"
    show(as_json, {"experiment": str(out)}, f"run it with: codedfedl {command} {out}")
    wrote(out)


def _asked(question: str, default: str, asks: bool) -> str:
    return str(typer.prompt(question, default=default)) if asks else default


def _text(data: str, label: str, client: str, fleet: str, goal: str) -> str:
    named = f"client = {json.dumps(client)}" if client else '# client = "..."'
    schemes = _NEWTON + (_RIVALS if goal == "compare" else "")
    return f"""\
seeds = [0]            # results are medians over seeds; add 1, 2, ... for ranges

[data]
name = {json.dumps(data)}
label = {json.dumps(label)}
{named}    # the column that names each row's client
# drop = ["..."]       # columns that are left out
# test = "clients"     # hold out whole clients instead of points of each
{"" if client else _PARTITION}

[fleet]
name = {json.dumps(fleet)}    # or phones, or a file: codedfedl fit makes one from measured times

# [training]
# target = 0.9         # accuracy to which hours are counted; by default what exact ridge reaches
{schemes}"""
