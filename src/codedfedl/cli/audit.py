"""`codedfedl audit`: attack what a server would receive, and test the claimed ε."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codedfedl.cli.options import Data, ExperimentName, Json, Overrides, Trust
from codedfedl.cli.output import progress, say, show
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.audit.lower_bound import Audit
    from codedfedl.runs.config import Experiment
    from codedfedl.simulation.client_data import Problem
    from codedfedl.simulation.engine import Contender


_CAPTION = (
    "Lower bounds hold at 95%; zero-out adjacency, against anyone who sees what the server received"
)


def audit_command(
    audited: ExperimentName,
    *,
    setting: str | None = None,
    seed: int | None = None,
    canaries: int = 1000,
    records: int = 36_000,
    overrides: Overrides = (),
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

    Parameters
    ----------
    audited : RUN|EXPERIMENT
        A run directory, a TOML file, or the name of a built-in experiment.
    setting
        The scheme or setting to audit; by default all.
    seed
        The seed; by default the first.
    canaries
        Number of crafted records (canaries).
    records
        Number of real records to test.
    """
    from codedfedl.audit.lower_bound import LEAST_CANARIES, LEAST_NON_MEMBERS, audit
    from codedfedl.runs.documents import parse_overrides

    if canaries < LEAST_CANARIES:
        raise InputError(f"--canaries is {canaries}: must be at least {LEAST_CANARIES}")
    if records < 2 * LEAST_NON_MEMBERS:
        raise InputError(
            f"--records is {records}: half of them are non-members, and 0.1% of false positives "
            f"needs {LEAST_NON_MEMBERS}: must be at least {2 * LEAST_NON_MEMBERS}"
        )
    experiment = _experiment(audited, parse_overrides(overrides), trust)
    audits: list[Audit] = []
    skipped: list[dict[str, str]] = []
    for problem, entry, its_seed in _settings(experiment, setting, seed, records, data):
        try:
            with progress(f"auditing {entry.label}"):
                audits.append(audit(problem, entry, its_seed, canaries=canaries, records=records))
        except InputError as error:
            skipped.append({"setting": entry.label, "reason": str(error)})
    if not audits:
        raise InputError("; ".join(f"{row['setting']}: {row['reason']}" for row in skipped))
    rows = [result.document() for result in audits]
    document = {"audited": audited, "rows": rows, "skipped": skipped}
    show(as_json, document, [_row(result) for result in audits], _CAPTION)
    for row in [] if as_json else skipped:
        say(f"skipped {row['setting']}: {row['reason']}")
    if any(result.refuted for result in audits):
        raise typer.Exit(1)


def _experiment(name: str, changes: dict[str, Any], trust: bool) -> "Experiment":
    """Return the experiment of a run, or of a file."""
    from codedfedl.experiments import named_experiment, set_options
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.documents import check_trusted

    directory = RunDirectory(Path(name))
    if not directory.is_run:  # a folder may have the name of a built-in experiment
        return named_experiment(name, changes, trust=trust)
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


def _settings(
    experiment: "Experiment", setting: str | None, seed: int | None, records: int, data: str | None
) -> "Iterator[tuple[Problem, Contender, int]]":
    """Yield data, setting and seed of all that is audited."""
    from codedfedl.io.names import nearest
    from codedfedl.runs.grid import cells
    from codedfedl.simulation.units import datasets, units

    every = cells(experiment)
    chosen = [cell for cell in every if setting in (None, cell.label, cell.config.name)]
    if not chosen:
        assert setting is not None
        known = [cell.label for cell in every]
        raise InputError(
            f"--setting {setting!r} is not in the experiment: {nearest(setting, known)}"
        )
    loaded = datasets(chosen, data)
    for dataset in loaded.values():
        if len(dataset.inputs) < records:
            raise InputError(
                f"{experiment.data.name} has {len(dataset.inputs)} training points, and {records} "
                "records are to have a coin: audit on larger data, such as mnist"
            )
    seeds = [experiment.seeds[0] if seed is None else seed]
    problem: Problem | None = None
    for unit in units(chosen, seeds, loaded):
        if problem is None or unit.fresh:
            problem = unit.problem()
        for entry in unit.contenders():
            yield problem, entry, unit.seed


def _row(result: "Audit") -> dict[str, Any]:
    best = max(result.canaries.guesses, key=lambda guess: guess.right / max(guess.made, 1))
    is_private = result.document()["claimed"] is not None
    return {
        "setting": result.setting,
        "claimed ε": f"{result.claimed:.3g}, δ {result.delta:g}" if is_private else "none",
        "lower bound on ε": f"{result.epsilon:.2f}",
        "canaries: right": f"{best.right} of {best.made}",
        "records: area": f"{result.membership.area:.3f}",
        "detected at 0.1% false": f"{result.membership.true_positives:.2%}",
        "claim": "refuted" if result.refuted else "stands" if is_private else "–",
    }
