"""The report of a run, or of several compared: a page, tables in the terminal, a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from codedfedl.cli.output import messages, print_json, progress, results, wrote
from codedfedl.errors import InputError
from codedfedl.io.files import FIGURE_SUFFIXES, check_destination, replacing
from codedfedl.report.comparison import change, changes_sentence, configuration_diff
from codedfedl.report.html import main_figure, render_report
from codedfedl.report.results import Outcome, outcomes
from codedfedl.report.sending import send_run
from codedfedl.report.tables import outcome_rows, outcome_view
from codedfedl.runs.directory import RunDirectory
from codedfedl.tracking import open_tracker

__all__ = ["write_report"]


def write_report(
    runs: Sequence[Path],
    out: Path | None,
    figure: Path | None,
    as_json: bool,
    track: Sequence[str],
) -> None:
    """Write the page, print the results of each run, and send them to trackers."""
    page = out or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    directories = [RunDirectory(run) for run in runs]
    trackers = [[open_tracker(text, run) for text in track] for run in runs]
    found = {str(run.path): outcomes(run) for run in directories}
    check_destination(page, (".html",))
    if figure is not None:
        if len(runs) > 1:
            raise InputError(f"--figure {figure} is of one run, and {len(runs)} are given")
        check_destination(figure, FIGURE_SUFFIXES)
    for directory in directories:
        _note_unfinished(directory)
    with progress("drawing"), replacing(page) as partial:
        partial.write_text(render_report(*directories), "utf-8")
    differences = configuration_diff([run.experiment() for run in directories])
    if as_json:
        told: list[dict[str, Any]] = [
            {"run": run, "rows": outcome_rows(rows)} for run, rows in found.items()
        ]
        print_json(told[0] if len(told) == 1 else {"differences": differences, "runs": told})
    else:
        _print(found, differences)
    wrote(page)
    for directory, opened in zip(directories, trackers, strict=True):
        if opened:
            send_run(directory, opened, page, messages.print)
    if figure is not None:
        from codedfedl.report.figures import save_figure

        save_figure(main_figure(directories[0]), figure)
        wrote(figure)


def _print(found: Mapping[str, list[Outcome]], differences: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of each run; for several, the differences first and their effect last."""
    if len(found) == 1:
        (rows,) = found.values()
        results.print(outcome_view(rows, results.width))
        return
    results.print(Text("Configuration changes", style="bold"))
    for row in differences:
        results.print(f"  {row['key']}: {' → '.join(row['values'])}", soft_wrap=True)
    if not differences:
        results.print("  none: the configurations are the same")
    (_, first), *_ = found.items()
    before = {o.setting: o for o in first}
    for run, rows in found.items():
        results.print(Text(f"\n{run}", style="bold"))
        changes = None if rows is first else [change(before.get(o.setting), o) for o in rows]
        results.print(outcome_view(rows, results.width, changes))
    results.print("\n" + "\n".join(changes_sentence(found)), soft_wrap=True)


def _note_unfinished(directory: RunDirectory) -> None:
    """Print the state of an unfinished run: its tables may be out of date."""
    status = directory.status.read()
    if status is not None and status.state != "done":
        messages.print(
            f"note: {directory.path} is {status}; the report shows what was finished before",
            soft_wrap=True,
        )
