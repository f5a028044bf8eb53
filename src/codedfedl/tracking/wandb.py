"""Rounds to Weights & Biases: a run for each series, in one group with one for the report."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from codedfedl.tracking import Series


class WeightsAndBiases:
    """Logs to a project, by default ``codedfedl``; ``WANDB_MODE=offline`` keeps it on the disk.

    Its files go to the folder ``wandb`` of the run directory.
    """

    def __init__(self, project: str | None = None, out: Path | None = None) -> None:
        self._project, self._out = project or "codedfedl", out
        self._runs: dict[Series, Any] = {}

    def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
        """Log the values at the step of the round."""
        run = self._runs.get(series) or self._begin(series)
        run.log(dict(values), step=round_)

    def finish(self, report: Path | None) -> None:
        """Show the report in a run of its own, and end all."""
        for run in self._runs.values():
            run.finish(exit_code=0 if report is not None else 1)
        if report is not None and self._runs:
            group = next(iter(self._runs)).run
            page = self._open("report", group, {}, "report")
            page.log({"report": wandb.Html(report.read_text("utf-8"), inject=False)})
            page.finish()

    def _begin(self, series: Series) -> Any:
        settings = {**series.settings, "setting": series.setting, "seed": series.seed}
        self._runs[series] = self._open(series.name, series.run, settings, "setting")
        return self._runs[series]

    def _open(self, name: str, group: str, settings: Mapping[str, Any], kind: str) -> Any:
        return wandb.init(
            project=self._project,
            name=name,
            group=group,
            job_type=kind,
            config=dict(settings),
            dir=self._out,
            reinit="create_new",  # the settings of a run are played side by side
            settings=wandb.Settings(silent=True),
        )
