"""The model that a federation leaves behind."""

from typing import Any

import numpy as np

from codedfedl.core.record import metric_name
from codedfedl.data.scaling import Scaling
from codedfedl.federate.evaluation import Evaluation
from codedfedl.learning.features import map_settings
from codedfedl.models.model import Model
from codedfedl.runs.config import Experiment
from codedfedl.runs.directory import RunDirectory
from codedfedl.runs.journal import Journal
from codedfedl.runs.tables import Ending

__all__ = ["trained_model"]


def trained_model(
    experiment: Experiment, ending: Ending, evaluation: Evaluation, journal: Journal
) -> Model:
    """Return the model with its card, calibrated on the server's test points where it has some."""
    members, scheme = ending.members, experiment.schemes[0]
    features = experiment.feature_map(experiment.seeds[0], scheme)
    scaling = Scaling(**members.scaling)
    model = Model(
        features=features,
        weights=ending.model,
        inputs=members.inputs,
        classes=np.arange(members.columns) if members.classes else None,
        columns=() if experiment.data.text is None else (experiment.data.text,),
        labels=tuple((experiment.data.label or "label").split(",")),
        low=np.array(scaling.low) if scaling.low else None,
        span=np.array(scaling.span) if scaling.low else None,
        offset=np.array(scaling.offset) if scaling.offset else None,
        scale=np.ones(members.columns) if scaling.offset else None,
        card=_card(experiment, ending, journal) | {"features": map_settings(features)},
    )
    points = evaluation.points()
    if points is None or not members.classes:
        return model
    inputs, labels = points
    return model.calibrated(
        scaling.inputs(inputs), labels, f"the server's {len(labels):,} test points"
    )


def _guarantee(directory: RunDirectory) -> dict[str, Any] | None:
    """Return what the run's account guarantees, and against whom; None if it promises nothing."""
    document = directory.privacy()
    return {"holds": document["holds"], **document["runs"][0]} if document else None


def _card(experiment: Experiment, ending: Ending, journal: Journal) -> dict[str, Any]:
    members, scheme = ending.members, experiment.schemes[0]
    records = journal.records()
    metric = float(records[-1].metric) if records else float("nan")
    setup = sum(record.seconds for record in records if record.is_setup)
    total = sum(record.seconds for record in records)
    return {
        "training_points": sum(members.points),
        "scheme": scheme.plain_name,
        "setting": scheme.label,
        "seed": experiment.seeds[0],
        "clients": len(members.names),
        "rounds": sum(not record.is_setup for record in records),
        "training_hours": (total - setup) / 3600,
        "total_hours": total / 3600,
        "simulated": False,
        "metric": metric_name(members.classes),
        "test_metric": metric if np.isfinite(metric) else None,
        "epsilon": ending.facts.get("epsilon"),
        "privacy": _guarantee(RunDirectory(journal.folder)),
        "calibrated_on": None,
        "temperature": None,
    }
