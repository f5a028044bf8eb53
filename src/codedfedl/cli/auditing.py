"""An audit of an experiment: every setting attacked, and the bounds printed."""

from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from codedfedl.audit.run import LEAST_CANARIES, LEAST_NON_MEMBERS, Audit, audit
from codedfedl.cli.output import messages, print_json, progress, results
from codedfedl.cli.running import named_experiment, set_options
from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check_trusted, parse_overrides
from codedfedl.runs.grid import cells
from codedfedl.simulation.engine import Entry
from codedfedl.simulation.problem import Problem, embedded
from codedfedl.simulation.units import datasets, deal, entries_of, fleets, units

__all__ = ["show_audit"]


def show_audit(
    audited: str,
    setting: str | None,
    seed: int | None,
    canaries: int,
    records: int,
    overrides: list[str] | None,
    data: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Attack the settings of a run or an experiment, and print what was found."""
    if canaries < LEAST_CANARIES:
        raise InputError(f"--canaries is {canaries}: must be at least {LEAST_CANARIES}")
    if records < 2 * LEAST_NON_MEMBERS:
        raise InputError(
            f"--records is {records}: half of them are non-members, and 0.1% of false positives "
            f"needs {LEAST_NON_MEMBERS}: must be at least {2 * LEAST_NON_MEMBERS}"
        )
    experiment = _experiment(audited, parse_overrides(overrides or []), trust)
    found, skipped = _audited(experiment, setting, seed, canaries, records, data)
    if as_json:
        rows = [one.document() for one in found]
        print_json({"audited": audited, "rows": rows, "skipped": skipped})
    else:
        results.print(_table(found))
        for one in skipped:
            messages.print(f"skipped {one['setting']}: {one['reason']}", soft_wrap=True)
    if any(one.refuted for one in found):
        raise typer.Exit(1)


def _experiment(name: str, changes: dict[str, Any], trust: bool) -> Experiment:
    """Return the experiment of a run, or of a file."""
    directory = RunDirectory(Path(name))
    if not directory.is_run:  # a folder may have the name of a built-in experiment
        return named_experiment(name, changes, trust)
    experiment = directory.experiment()
    if experiment.federation is not None:
        raise InputError(
            f"{name} is a federation, whose nodes hold no canaries: audit its experiment in the "
            "simulator, from a TOML file without [federation]"
        )
    if changes:
        raise InputError(
            f"{', '.join(set_options(changes).values())}: {name} is a run, which has its settings; "
            "audit its experiment instead"
        )
    check_trusted(experiment, directory.path, trust=trust)
    return experiment


def _audited(
    experiment: Experiment,
    setting: str | None,
    seed: int | None,
    canaries: int,
    records: int,
    data: str | None,
) -> tuple[list[Audit], list[dict[str, str]]]:
    """Audit every setting that can be audited; fail if the only one asked for cannot be."""
    found, skipped = [], []
    chosen = _chosen(experiment, setting)
    for problem, entry, its_seed in _settings(experiment, chosen, seed, records, data):
        try:
            with progress(f"auditing {entry.label}"):
                audited = audit(problem, entry, its_seed, canaries=canaries, records=records)
        except InputError as error:
            skipped.append({"setting": entry.label, "reason": str(error)})
        else:
            found.append(audited)
    if not found:
        raise InputError("; ".join(f"{one['setting']}: {one['reason']}" for one in skipped))
    return found, skipped


def _chosen(experiment: Experiment, setting: str | None) -> list[str]:
    """Return the ids of the settings that are wanted."""
    every = cells(experiment)
    wanted = [cell.id for cell in every if setting in (None, cell.label, cell.config.name)]
    if not wanted:
        assert setting is not None
        known = [cell.label for cell in every]
        raise InputError(
            f"--setting {setting!r} is not in the experiment: {nearest(setting, known)}"
        )
    return wanted


def _settings(
    experiment: Experiment, chosen: list[str], seed: int | None, records: int, data: str | None
) -> Any:
    """Yield data, setting and seed of all that is audited."""
    every = [cell for cell in cells(experiment) if cell.id in chosen]
    loaded = datasets(every, data)
    for one in loaded.values():
        if len(one.inputs) < records:
            raise InputError(
                f"{experiment.data.name} has {len(one.inputs)} training points, and {records} "
                "records are to have a coin: audit on larger data, such as mnist"
            )
    seeds = [experiment.seeds[0] if seed is None else seed]
    problem: Problem | None = None
    for unit in units(every, seeds, loaded, fleets(every)):
        parts = deal(unit)
        if problem is None or unit.fresh:
            problem = embedded(unit.dataset, parts, unit.features, "cpu")
        entries: list[Entry] = entries_of(unit, parts)
        for entry in entries:
            yield problem, entry, unit.seed


def _table(found: list[Audit]) -> Table:
    table = Table(
        "setting",
        "claimed ε",
        "lower bound on ε",
        "canaries: right",
        "records: area",
        "found at 0.1% false",
        "claim",
        caption="lower bounds hold at 95%; zero-out adjacency, against anyone who sees what the "
        "server received",
    )
    for one in found:
        best = max(one.canaries.guesses, key=lambda guesses: guesses.right / max(guesses.made, 1))
        document = one.document()
        claimed = "none" if document["claimed"] is None else f"{one.claimed:.3g}, δ {one.delta:g}"
        stands = "refuted" if one.refuted else "stands" if document["claimed"] else "–"
        table.add_row(
            one.setting,
            claimed,
            f"{one.epsilon:.2f}",
            f"{best.right} of {best.made}",
            f"{one.membership.area:.3f}",
            f"{one.membership.true_positives:.2%}",
            stands,
        )
    return table
