"""`codedfedl report`: a page and tables of a run, or of several compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedfedl.cli.options import Json, Track
from codedfedl.cli.output import messages, print_json, print_views, progress, results, say, wrote
from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, TABLE_SUFFIXES, check_destination
from codedfedl.io.names import nearest

if TYPE_CHECKING:
    from codedfedl.report.results import Outcome
    from codedfedl.runs.directory import RunDirectory

_MAX_INCHES = 50


@dataclass(frozen=True)
class Saved:
    """What is saved of a single run beside the page."""

    figure: Path | None
    table: Path | None
    panels: str
    width: float | None

    def check(self, runs: int) -> None:
        """Refuse what could not be saved."""
        from codedfedl.report.curves import PANELS

        suffixes = {"figure": FIGURE_SUFFIXES, "table": (*TABLE_SUFFIXES, ".tex")}
        for option, allowed in suffixes.items():
            path = getattr(self, option)
            if path is not None and runs > 1:
                raise InputError(f"--{option} {path} is of one run, and {runs} are given")
            if path is not None:
                check_destination(path, allowed)
        for name in self.chosen:
            if name not in PANELS:
                raise InputError(f"--panels has {name!r}: {nearest(name, list(PANELS))}")
        if self.width is not None and not 1 <= self.width <= _MAX_INCHES:
            raise InputError(f"--width is {self.width:g}: must be from 1 to {_MAX_INCHES} inches")

    @property
    def chosen(self) -> list[str]:
        """The panels of the figure; none by default."""
        return [name.strip() for name in self.panels.split(",") if name.strip()]

    def save(self, directory: "RunDirectory", results: "Sequence[Outcome]") -> None:
        """Save it."""
        if self.figure is not None:
            from codedfedl.report.figures import save_figure
            from codedfedl.report.html import main_figure

            save_figure(main_figure(directory, self.chosen, self.width), self.figure)
            wrote(self.figure)
        if self.table is not None:
            from codedfedl.report.outcome_tables import write_results

            write_results(results, self.table)
            wrote(self.table)


def report_command(
    runs: list[Path],
    *,
    out: Path | None = None,
    figure: Path | None = None,
    panels: str | None = None,
    width: float | None = None,
    table: Path | None = None,
    track: Track = (),
    as_json: Json = False,
) -> None:
    """Write the report of a run again, or one report that compares several runs.

    Runs on the same data with the same target are compared directly; others are shown side by
    side. With --track, their rounds and reports are also sent to a tracker, such as those of a
    federation.

    Parameters
    ----------
    runs
        A run directory, or several to compare.
    out
        The page; by default report.html in the run directory, or comparison.html here for several.
    figure
        Save a run's main figure (.png, .svg, .pdf, or .pgf where LaTeX is installed).
    panels
        Of the figure: total_hours, training_hours, rounds, or several, separated by commas.
    width
        Of the figure, in inches, such as a column's.
    table
        Save a run's results: .csv or .parquet has a row per setting and seed, with all settings of
        schemes and the facts of your own; .tex has the table above, for booktabs.
    """
    from codedfedl.io.files import replacing
    from codedfedl.report.comparison import configuration_diff
    from codedfedl.report.html import render_report
    from codedfedl.report.live import RoundSender
    from codedfedl.report.outcome_tables import outcome_rows
    from codedfedl.report.results import outcomes
    from codedfedl.runs.directory import RunDirectory
    from codedfedl.tracking import open_tracker

    page = out or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    directories = [RunDirectory(run) for run in runs]
    trackers = [[open_tracker(text, run) for text in track] for run in runs]
    by_run = {str(run.path): outcomes(run) for run in directories}
    check_destination(page, (".html",))
    saved = Saved(figure, table, panels or "", width)
    saved.check(len(runs))
    for directory in directories:
        status = directory.status.read()
        if status is not None and status.state != "done":
            say(f"note: {directory.path} is {status}; the report shows what was finished before")
    with progress("drawing"), replacing(page) as partial:
        partial.write_text(render_report(*directories), "utf-8")
    differences = configuration_diff([run.experiment() for run in directories])
    if as_json:
        rows = [{"run": run, "rows": outcome_rows(settings)} for run, settings in by_run.items()]
        print_json(rows[0] if len(rows) == 1 else {"differences": differences, "runs": rows})
    else:
        _print(by_run, differences)
    wrote(page)
    for directory, opened in zip(directories, trackers, strict=True):
        if opened:
            sender = RoundSender(directory, opened, messages.print)
            with sender.broadcast.finished(page):
                sender.send()
    saved.save(directories[0], next(iter(by_run.values())))


def _print(by_run: "Mapping[str, list[Outcome]]", differences: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of each run; for several, the differences first and their effect last."""
    from rich.text import Text

    from codedfedl.report.comparison import change, changes_sentence
    from codedfedl.report.outcome_tables import outcome_views

    first, *_ = by_run.values()
    if len(by_run) == 1:
        print_views(*outcome_views(first, results.width))
        return
    results.print(Text("Configuration changes", style="bold"))
    for row in differences:
        results.print(f"  {row['key']}: {' → '.join(row['values'])}", soft_wrap=True)
    if not differences:
        results.print("  none: the configurations are the same")
    before = {outcome.setting: outcome for outcome in first}
    for run, rows in by_run.items():
        results.print(Text(f"\n{run}", style="bold"))
        changes = None if rows is first else [change(before.get(o.setting), o) for o in rows]
        print_views(*outcome_views(rows, results.width, changes))
    results.print("\n" + "\n".join(changes_sentence(by_run)), soft_wrap=True)
