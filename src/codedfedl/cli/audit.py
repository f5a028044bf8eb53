"""`codedfedl audit`: attack what a server would receive, and say what that proves of a claim."""

from typing import Annotated

import typer

from codedfedl.cli.options import Data, Json, Overrides, known_experiments

__all__ = ["audit_command"]


def audit_command(
    audited: Annotated[
        str,
        typer.Argument(
            metavar="RUN|EXPERIMENT",
            help="A run directory, a TOML file, or the name of a built-in experiment.",
            show_default=False,
            autocompletion=known_experiments,
        ),
    ],
    setting: Annotated[
        str | None,
        typer.Option(help="The scheme or setting to audit; all by default.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed; the first by default.", show_default=False)
    ] = None,
    canaries: Annotated[int, typer.Option(help="Crafted records with a coin.")] = 1000,
    records: Annotated[int, typer.Option(help="Real records with a coin.")] = 36_000,
    overrides: Overrides = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Attack what the server receives, to tell whether a record was there.

    The experiment is run twice more. In the first run, crafted records (canaries) are in the data
    by a fair coin each, and an attacker who knows everything else guesses the coins. In the second,
    real records are, and an attacker who knows only the population scores them by their likelihood
    ratio. Both give a lower bound on ε at 95%, beside the claim of the scheme.

    Exit code 1 says that a claim is refuted.
    """
    from codedfedl.cli.auditing import show_audit

    show_audit(audited, setting, seed, canaries, records, overrides, data, as_json)
