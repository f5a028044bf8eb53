"""`codedfedl report`: a page and tables of a run, or of several compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codedfedl.cli.options import Json, Track
from codedfedl.cli.output import messages, print_json, print_views, progress, results, say, wrote
from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, check_destination

if TYPE_CHECKING:
    from codedfedl.report.results import Outcome


def report_command(
    runs: list[Path],
    *,
    out: Path | None = None,
    figure: Path | None = None,
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
        Save a run's main figure (.png, .svg or .pdf).
    """
    from codedfedl.io.files import replacing
    from codedfedl.report.comparison import configuration_diff
    from codedfedl.report.html import main_figure, render_report
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
    if figure is not None:
        if len(runs) > 1:
            raise InputError(f"--figure {figure} is of one run, and {len(runs)} are given")
        check_destination(figure, FIGURE_SUFFIXES)
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
    if figure is not None:
        from codedfedl.report.figures import save_figure

        save_figure(main_figure(directories[0]), figure)
        wrote(figure)


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
