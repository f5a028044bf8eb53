"""`codedfedl audit`: attack what a server would receive, and test the claimed ε."""

from typing import Annotated

import typer

from codedfedl.cli.options import Data, Json, Overrides, Trust, known_experiments

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
        typer.Option(help="The scheme or setting to audit; by default all.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed; by default the first.", show_default=False)
    ] = None,
    canaries: Annotated[int, typer.Option(help="Number of crafted records (canaries).")] = 1000,
    records: Annotated[int, typer.Option(help="Number of real records to test.")] = 36_000,
    overrides: Overrides = None,
    data: Data = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Attack what the server receives, to test whether a record was used.

    The experiment is run twice more. In the first run, each of a set of crafted records (canaries)
    is included on a fair coin flip, and an attacker who knows everything else guesses the coins. In
    the second, the same is done with real records, and an attacker who knows only the population
    scores them by their likelihood ratio. Both give a lower bound on ε at 95%, shown beside the
    scheme's claim.

    Exit code 1 means that a claim is refuted.
    """
    from codedfedl.cli.auditing import show_audit

    show_audit(audited, setting, seed, canaries, records, overrides, data, trust, as_json)
