"""What a run will give away: written to `privacy.json` before it starts, and into its models."""

import json
from collections.abc import Sequence
from typing import Any

from codedfedl.core.disclosure import only_private
from codedfedl.errors import InputError
from codedfedl.privacy.accounting import Account
from codedfedl.random import stream
from codedfedl.runs.directory import RunDirectory
from codedfedl.schemes import scheme_class
from codedfedl.simulation.units import Unit, deal, entries_of

__all__ = ["privacy_facts", "write_privacy", "written_privacy"]

_HOLDS = (
    "against those named by each run; where a helper adds the noise, server and helper do not "
    "collude; a simulation, whose noise comes from the seed: anyone who knows the seed knows the "
    "noise"
)


def privacy_facts(account: Account | None) -> dict[str, Any] | None:
    """Return what a model says of its guarantee: against whom it holds, ε, δ and all releases."""
    return None if account is None else {"holds": _HOLDS, **account.document()}


def write_privacy(directory: RunDirectory, units: Sequence[Unit]) -> None:
    """Write the account of every private setting and seed; nothing where there is none."""
    runs: list[dict[str, Any]] = []
    for unit in units:
        schemes = [scheme_class(cell.config.name) for cell in unit.cells]
        if not any(only_private(scheme.info.disclosure) for scheme in schemes):
            continue
        for cell, entry in zip(unit.cells, entries_of(unit, deal(unit)), strict=True):
            if not only_private(entry.scheme.info.disclosure):
                continue
            state = entry.scheme.start(
                entry.task, entry.fleet, None, rng=stream(unit.seed, "scheme")
            )
            account = entry.scheme.describe(state).account
            if account is None:
                raise InputError(
                    f"scheme {cell.config.name!r} discloses 'dp' alone and states no account: "
                    "return one from describe, or disclose more"
                )
            which = {"cell": cell.id, "setting": cell.label, "seed": unit.seed}
            runs.append(which | account.document())
    if runs:
        document = {"holds": _HOLDS, "runs": runs}
        directory.write_text("privacy.json", json.dumps(document, indent=2) + "\n")


def written_privacy(directory: RunDirectory) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the guarantee of every private setting, by its cell and seed."""
    document = directory.privacy()
    return {
        (run.pop("cell"), run.pop("seed")): {"holds": document["holds"], **run}
        for run in document.get("runs", [])
    }
