"""A grid of settings: built, run and compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codedfedl.cli.options import Workers
from codedfedl.cli.output import print_json, results, with_resume_hint, wrote
from codedfedl.cli.running import named_experiment, run_experiment, tracked_by
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import void_settings
from codedfedl.report.comparison import CLOCKS, best, races
from codedfedl.report.figures import save_figure
from codedfedl.report.html import render_report
from codedfedl.report.results import Outcome, outcomes
from codedfedl.report.sweep import sweep_columns, sweep_figure, sweep_verdict
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.documents import check
from codedfedl.runs.grid import axis, cells
from codedfedl.runs.overrides import parse_overrides

__all__ = ["sweep", "with_grid"]


def with_grid(
    experiment: str,
    overrides: list[str] | None,
    vary: list[str] | None,
    seeds: int | None,
    fleet: Path | None,
    trust: bool = False,
) -> Experiment:
    """Read an experiment with the command line's changes, grid, seeds and fleet."""
    changes = parse_overrides(overrides or [])
    named = _for_own_data(named_experiment(experiment, changes, trust), experiment, changes)
    return _with_grid(named, vary, seeds, fleet)


def sweep(
    chosen: Experiment,
    out: Path,
    data: str | None,
    device: str,
    resume: bool,
    as_json: bool,
    workers: Workers,
    track: list[str],
) -> None:
    """Run every cell of a grid, print the table and the best, and write table, picture and page."""
    directory = RunDirectory(out)
    with with_resume_hint(out, resume), tracked_by(track, chosen, directory) as also:
        run_experiment(chosen, directory, data, device, resume, workers=workers, also=also)
        found = outcomes(directory)
        directory.write("sweep.parquet", sweep_columns(found))
        save_figure(sweep_figure(found), out / "sweep.png")
        page = directory.write_text("report.html", render_report(directory))
    if as_json:
        print_json({"run": str(out), "best": _winners(found), "rows": outcome_rows(found)})
    else:
        results.print(outcome_view(found, results.width))
        results.print("\n" + "\n".join(sweep_verdict(found)), soft_wrap=True)
    for path in (out / "sweep.parquet", out / "sweep.png", page):
        wrote(path)


def _winners(found: list[Outcome]) -> dict[str, str | None]:
    """Return the fastest setting on each clock; None if their targets differ."""
    race = found if len(races(found)) == 1 else []
    winners = {clock: best(race, clock) for clock in CLOCKS}
    return {clock: None if one is None else one.setting for clock, one in winners.items()}


def _for_own_data(chosen: Experiment, name: str, given: Mapping[str, Any]) -> Experiment:
    """Drop a built-in experiment's step and target for a user's table: they suit its own data."""
    if Path(name).is_file() or not Path(chosen.data.name).suffix:
        return chosen
    kept = {key for key in ("step", "decay_epochs", "target") if f"training.{key}" in given}
    training = chosen.model_dump(exclude_none=True)["training"]
    for key in {"step", "decay_epochs", "target"} - kept:
        training.pop(key, None)
    return check(chosen.model_dump(exclude_none=True) | {"training": training}, "--set")


def _with_grid(
    experiment: Experiment, vary: list[str] | None, seeds: int | None, fleet: Path | None
) -> Experiment:
    """Put the command line's grid, seeds and fleet into an experiment, and check every cell."""
    schemes = [scheme.name for scheme in experiment.schemes]
    axes = dict(axis(text, schemes) for text in vary or [])
    if len(axes) < len(vary or []):
        raise InputError("--vary has a key twice: give all its values at once")
    document = experiment.model_dump(exclude_none=True)
    if "seeds" in axes:
        if seeds is not None:
            raise InputError("--seeds and --vary seeds=… set the same thing: leave one out")
        document["seeds"] = axes.pop("seeds")
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"--seeds is {seeds}: must be at least 1")
        document["seeds"] = list(range(seeds))
    if axes:
        document["grid"] = axes
    if fleet is not None:
        void = void_settings(str(fleet))
        kept = {key: value for key, value in document["fleet"].items() if key not in void}
        document["fleet"] = kept | {"name": str(fleet)}
    chosen = check(document, "--vary")
    if not chosen.grid:
        raise InputError("there is no grid: name what to vary, such as --vary redundancy=0.1,0.2")
    cells(chosen)
    return chosen
