"""Rounds to MLflow: a run for each series, below one run that holds the report."""

import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from codedfedl.tracking import Series, flat

_BATCH_METRICS = 500  # MLflow takes a thousand metrics in a message.
_MAX_VALUE_CHARACTERS = 6000  # MLflow refuses longer values of a parameter.


class MLflow:
    """Logs to a tracking URI, in the experiment ``codedfedl``; by default MLflow's own settings.

    Parameters
    ----------
    uri
        Such as ``http://host:5000`` or ``sqlite:///mlflow.db``.
    """

    def __init__(self, uri: str | None = None, out: Path | None = None) -> None:
        self._client = MlflowClient(uri)
        self._experiment = ""
        self._parent = ""
        self._runs: dict[Series, str] = {}
        self._waiting: dict[str, list[Metric]] = {}

    def log(self, series: Series, round_: int, values: Mapping[str, float]) -> None:
        """Keep the values until there are enough for a message."""
        run = self._runs.get(series) or self._begin(series)
        now = int(time.time() * 1000)
        waiting = self._waiting.setdefault(run, [])
        waiting += [Metric(name, value, now, round_) for name, value in values.items()]
        if len(waiting) >= _BATCH_METRICS:
            self._send(run)

    def finish(self, report: Path | None) -> None:
        """Send what is left, and the report."""
        for run in self._runs.values():
            self._send(run)
            self._client.set_terminated(run)
        if self._parent:
            if report is not None:
                self._client.log_artifact(self._parent, str(report))
            self._client.set_terminated(self._parent, None if report is not None else "FAILED")

    def _begin(self, series: Series) -> str:
        if not self._experiment:
            known = self._client.get_experiment_by_name("codedfedl")
            number = known.experiment_id if known else self._client.create_experiment("codedfedl")
            self._experiment = str(number)
            parent = self._client.create_run(self._experiment, run_name=series.run)
            self._parent = str(parent.info.run_id)
        tags = {"mlflow.parentRunId": self._parent}
        made = self._client.create_run(self._experiment, tags=tags, run_name=series.name)
        run = str(made.info.run_id)
        settings = flat({**series.settings, "seed": series.seed})
        parameters = [Param(key, value[:_MAX_VALUE_CHARACTERS]) for key, value in settings.items()]
        label = [RunTag("setting", series.setting)]
        self._client.log_batch(run, params=parameters, tags=label)
        self._runs[series] = run
        return run

    def _send(self, run: str) -> None:
        waiting = self._waiting.pop(run, [])
        if waiting:
            self._client.log_batch(run, metrics=waiting)
