"""`codedfedl sweep`: a grid of settings, and which of them is best."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codedfedl.cli.options import ExperimentName, Json, Overrides, RunOptions, Trust
from codedfedl.cli.output import results, show, wrote
from codedfedl.errors import InputError

if TYPE_CHECKING:
    from codedfedl.report.results import Outcome
    from codedfedl.runs.config import Experiment


def sweep_command(
    experiment: ExperimentName = "redundancy",
    *,
    run: RunOptions,
    fleet: Path | None = None,
    vary: Annotated[tuple[str, ...], typer.Option(metavar="KEY=V1,V2")] = (),
    seeds: int | None = None,
    search: int | None = None,
    out: Path = Path("runs/sweep"),
    overrides: Overrides = (),
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Run every combination of some settings, and find the best.

    `codedfedl sweep --fleet my.csv` finds the best redundancy for a fleet, on digits; with
    `--set data.name=table.csv --set data.label=kind`, on your own table, with a step and a target
    that suit it. KEY is any key of an experiment (erasure, k1, k2, clients, sigma, step, …; with
    its table where ambiguous, such as training.step), a setting of a scheme (redundancy, drop,
    mixing, …), scheme or seeds. Settings that share their data run in lockstep.

    Writes sweep.parquet (a row per setting and seed), sweep.png, report.html and the other files of
    a run directory to --out. Continue an interrupted sweep with --resume. With --jobs or --dask,
    seeds and settings that do not share their data run at the same time.

    Parameters
    ----------
    experiment
        A TOML file, or the name of a built-in experiment.
    fleet
        Your fleet or device file (.csv, .parquet).
    vary
        An axis of the grid, such as redundancy=0.1,0.2 or erasure=0.1,0.3; repeat it for more. In
        place of the experiment's own grid.
    seeds
        Number of seeds; by default those of the experiment.
    search
        Instead of a grid, try so many settings drawn between the smallest and largest value of each
        --vary, on a logarithmic scale; the best is played again on as many other seeds.
    out
        The run directory.
    """
    from codedfedl.cli.running import run_experiment
    from codedfedl.experiments import named_experiment
    from codedfedl.report.comparison import CLOCKS, best, races
    from codedfedl.report.figures import save_figure
    from codedfedl.report.grids import sweep_figure, sweep_verdict
    from codedfedl.report.outcome_tables import outcome_rows, outcome_views, seed_columns
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.runs.documents import parse_overrides

    def write_table_and_picture(outcomes: "list[Outcome]") -> None:
        RunDirectory(out).write("sweep.parquet", seed_columns(outcomes))
        save_figure(sweep_figure(outcomes), out / "sweep.png")

    changes = parse_overrides(overrides)
    named = named_experiment(experiment, changes, trust=trust)
    chosen = _with_grid(_for_table(named, experiment, changes), vary, seeds, fleet)
    if search is not None:
        rows = _search(chosen, search, out, run)
        show(as_json, {"run": str(out), "rows": rows}, rows)
        return
    outcomes = run_experiment(chosen, out, run, write_more=write_table_and_picture)
    race = outcomes if len(races(outcomes)) == 1 else []  # none where targets differ
    fastest = {clock: best(race, clock) for clock in CLOCKS}
    winners = {clock: winner and winner.setting for clock, winner in fastest.items()}
    show(
        as_json,
        {"run": str(out), "best": winners, "rows": outcome_rows(outcomes)},
        *outcome_views(outcomes, results.width),
        "\n" + "\n".join(sweep_verdict(outcomes)),
    )
    for name in ("sweep.parquet", "sweep.png", "report.html"):
        wrote(out / name)


def _for_table(chosen: "Experiment", name: str, changes: Mapping[str, Any]) -> "Experiment":
    """Drop a built-in experiment's step and target for a user's table: they suit its own data."""
    from codedfedl.runs.documents import check

    if Path(name).is_file() or not Path(chosen.data.name).suffix:
        return chosen
    document = chosen.model_dump(exclude_none=True)
    for key in ("step", "decay_epochs", "target"):
        if f"training.{key}" not in changes:
            document["training"].pop(key, None)
    return check(document, "--set")


def _with_grid(
    experiment: "Experiment", vary: tuple[str, ...], seeds: int | None, fleet: Path | None
) -> "Experiment":
    """Put the command line's grid, seeds and fleet into an experiment, and check every cell."""
    from codedfedl.fleet.built_in import void_settings
    from codedfedl.runs.documents import check
    from codedfedl.runs.grid import axis, cells

    schemes = [scheme.name for scheme in experiment.schemes]
    axes = dict(axis(text, schemes) for text in vary)
    if len(axes) < len(vary):
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


def _search(
    experiment: "Experiment", trials: int, out: Path, run: RunOptions
) -> list[dict[str, Any]]:
    """Play settings drawn at random, then the best on other seeds: its luck is not chosen."""
    import numpy as np

    from codedfedl.cli.running import run_experiment
    from codedfedl.report.results import median_hours

    ends = {key: (min(values), max(values)) for key, values in experiment.grid.items()}
    if trials < 1 or any(
        not isinstance(v, int | float) or v <= 0 for e in ends.values() for v in e
    ):
        raise InputError(f"--search {trials} needs trials, and numbers above 0 in each --vary")
    rng, rows = np.random.default_rng(0), list[dict[str, Any]]()

    def play(grid: dict[str, list[Any]], name: str, seeds: list[int]) -> None:
        drawn = experiment.model_copy(update={"grid": grid, "seeds": seeds})
        results = run_experiment(drawn, out / name, run)
        soonest = min(results, key=median_hours)
        hours = median_hours(soonest)
        values = {key: value for key, (value,) in grid.items()}
        met = hours if np.isfinite(hours) else None
        rows.append({"run": name, "setting": soonest.setting, "hours": met, **values})

    for number in range(1, trials + 1):
        grid = {}
        for key, (low, high) in ends.items():
            value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            whole = isinstance(low, int) and isinstance(high, int)
            grid[key] = [round(value) if whole else float(f"{value:.4g}")]
        play(grid, f"trial-{number}", experiment.seeds)
    best = min(rows, key=lambda row: np.inf if row["hours"] is None else row["hours"])
    others = [max(experiment.seeds) + 1 + k for k in range(len(experiment.seeds))]
    play({key: [best[key]] for key in ends}, "best", others)
    return rows
