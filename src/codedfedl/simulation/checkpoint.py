"""What a simulation can be continued from, and what is kept of it when it has ended.

The arrays of setting s of unit k are called ``k/s/…``.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import asarray_like, to_host
from codedfedl.core.columns import FACTS
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import Record, packed, unpacked
from codedfedl.core.task import State
from codedfedl.errors import InputError
from codedfedl.fleet.delays import TIME_PARTS
from codedfedl.learning.features import Tangent, map_settings
from codedfedl.learning.learner import Learner
from codedfedl.models.model import fitted_temperature
from codedfedl.random import stream
from codedfedl.runs.directory import Checkpoint
from codedfedl.runs.grid import Cell
from codedfedl.runs.sections import TrainingConfig
from codedfedl.runs.tables import planned_share, stated_facts
from codedfedl.simulation.engine import Setting, Simulation

CALIBRATION_POINTS = 2000  # Training points that probabilities are calibrated on.


def snapshot(simulation: Simulation, number: int) -> Checkpoint:
    """Return everything that a resumed simulation needs and cannot compute again."""
    arrays: Checkpoint = {}
    for s, setting in enumerate(simulation.settings):
        prefix = f"{number}/{s}/"
        arrays[f"{prefix}model"] = to_host(setting.state.model)
        arrays[f"{prefix}state_round"] = np.array(setting.state.round)
        arrays[f"{prefix}processed"] = setting.timeline.processed
        arrays |= {
            f"{prefix}records/{name}": values for name, values in packed(setting.records).items()
        }
    return arrays


def restore(simulation: Simulation, checkpoint: Checkpoint, number: int) -> None:
    """Bring a simulation to where its unit was in a checkpoint, if it had begun.

    Settings continue from their models, or play their rounds again. If any must, all do, side by
    side as before: what is multiplied together decides the last digits.
    """
    stored = [part_of(checkpoint, f"{number}/{s}/") for s in range(len(simulation.settings))]
    begun = [
        (setting, arrays, unpacked(part_of(arrays, "records/")))
        for setting, arrays in zip(simulation.settings, stored, strict=True)
        if arrays
    ]
    asks = [(setting, setting.driver.ask()) for setting, _, _ in begun]
    if all(ask and setting.state.checkpointed and not ask.keep_late for setting, ask in asks):
        for setting, arrays, records in begun:
            model = asarray_like(arrays["model"], setting.state.model)
            setting.driver.state = replace(
                setting.state, model=model, round=int(arrays["state_round"])
            )
            rounds = [record for record in records if not record.is_setup]
            setting.driver.played = len(rounds)
            if simulation.fast is not None:
                for record in rounds:
                    simulation.fast.seen(setting.label, record.loads)
    else:
        _play_again(simulation, {setting: records for setting, _, records in begun})
    for setting, arrays, records in begun:
        setting.records, setting.timeline.processed = records, arrays["processed"]


def _play_again(simulation: Simulation, begun: dict[Setting, list[Record]]) -> None:
    rounds = {s: sum(not record.is_setup for record in records) for s, records in begun.items()}
    while asked := [
        (setting, ask)
        for setting, played in rounds.items()
        if setting.driver.played < played and (ask := setting.driver.ask()) is not None
    ]:
        simulation.play(asked, measured=False)
    for setting, played in rounds.items():
        if setting.driver.played < played:
            raise InputError(
                f"{setting.label}: the checkpoint has {played} rounds, and the scheme now ends "
                f"after {setting.driver.played}: choose another --out"
            )


def stored_records(checkpoint: Checkpoint, settings: int, number: int) -> list[list[Record]]:
    """Return the records of every setting of a unit in a checkpoint."""
    return [unpacked(part_of(checkpoint, f"{number}/{s}/records/")) for s in range(settings)]


def part_of(stored: Checkpoint, prefix: str) -> Checkpoint:
    """Return the arrays whose names begin like that, without the beginning."""
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}


def result_arrays(simulation: Simulation, cells: Sequence[Cell], number: int) -> Checkpoint:
    """Return what is kept of a finished unit besides its records: clients, facts, final metrics."""
    arrays: Checkpoint = {}
    for s, (setting, cell) in enumerate(zip(simulation.settings, cells, strict=True)):
        now = stated_facts(setting.scheme, setting.state)
        late = {name: value for name, value in now.items() if name not in FACTS}
        facts = dict.fromkeys(FACTS, np.nan) | now | setting.facts | late
        kept = {f"story/{name}": values for name, values in client_columns(setting).items()}
        if not only_private(setting.scheme.disclosure):  # the privacy budget does not cover this
            kept |= _final_metrics(simulation, setting)
            if setting.state.task.learner.quadratic and setting.state.task.features is None:
                facts |= _exact_facts(simulation, setting, cell.experiment.training)
        if isinstance(setting.state.task.features, Tangent):
            kept |= stored_tangent(setting.state.task.features)
        kept |= {f"fact/{name}": np.array([value]) for name, value in facts.items()}
        arrays |= {f"{number}/{s}/{name}": values for name, values in kept.items()}
    return arrays


def stored_tangent(features: Tangent) -> Checkpoint:
    """Return a network that was linearised, and how."""
    settings = np.array(json.dumps(map_settings(features)))
    return {"tangent/network": features.model, "tangent/settings": settings}


def tangent_of(stored: Checkpoint, learner: Learner) -> Tangent | None:
    """Return the tangent features that `stored_tangent` has kept, if there are some."""
    if "tangent/network" not in stored:
        return None
    known = json.loads(str(stored["tangent/settings"]))
    count, parts, seed = known["n_components"], known["parts"], known["seed"]
    return Tangent(learner, stored["tangent/network"], count, parts, seed)


def _exact_facts(
    simulation: Simulation, setting: Setting, training: TrainingConfig
) -> dict[str, float]:
    """Return the metric of exact ridge regression, which sets the target where none is given.

    If the objective is followed, also the part of it that the optimum explains.
    """
    task, facts = setting.state.task, {}
    if training.target is None:
        exact = simulation.objectives.of(task).best.astype(np.float32)
        model = asarray_like(exact, setting.state.model)
        facts["exact_metric"] = float(simulation.measuring.metrics(task, [model])[0])
    if training.objective:
        facts["explained"] = simulation.objectives.of(task).explained
    return facts


@np.errstate(over="ignore", invalid="ignore")  # it may have diverged
def _final_metrics(simulation: Simulation, setting: Setting) -> Checkpoint:
    """Evaluate a setting's last model on the training points."""
    model, task = setting.state.model, setting.state.task
    problem = simulation.problems.of(task)
    parts = chain.from_iterable(batch.parts() for batch in problem.batches)
    total = sum(task.learner.loss(model, *part) for part in parts)
    penalty = task.ridge * float((to_host(model).astype(np.float64) ** 2).sum())
    arrays = {"objective": np.array(total / float(task.held.sum()) + penalty / 2)}
    if problem.test_classes is None:
        return arrays | {"offset": problem.target_mean}
    return arrays | {"temperature": np.array(_temperature(simulation, setting.state))}


def _temperature(simulation: Simulation, state: State) -> float:
    """Fit the temperature on training points, as many of each mini-batch."""
    batches, outputs, targets = simulation.problems.of(state.task).batches, [], []
    for b, batch in enumerate(batches):
        order = stream(simulation.seed, "subset", b).permutation(len(batch.targets))
        rows = np.sort(order[: -(-CALIBRATION_POINTS // len(batches))])
        outputs.append(to_host(state.task.learner.scores(state.model, batch.features[rows])))
        targets.append(to_host(batch.targets)[rows])
    scores = np.concatenate(outputs).astype(np.float64)
    if not np.isfinite(scores).all():
        return np.nan
    return fitted_temperature(scores, np.concatenate(targets).argmax(axis=1))


def client_columns(setting: Setting) -> dict[str, npt.NDArray[Any]]:
    """Per client: load, how often it arrived, and where its time went on average."""
    timeline, clock = setting.timeline, setting.timeline.clock
    task, records = setting.state.task, setting.rounds or setting.records
    loads, rounds = timeline.processed, max(len(setting.rounds), 1)
    spent = clock.model.mean_parts(loads, clock.chance[:rounds])
    everything = any(record.loads.sum() > task.points[0].sum() for record in records)
    return {
        "client": clock.model.client,
        "rate": spent["rate"],
        "points": (task.held if everything else task.points[0]).astype(np.float64),
        "load": np.asarray(loads, dtype=np.float64),
        "planned_share": planned_share(setting.scheme, setting.state),
        "arrived_share": np.mean([record.arrived for record in records], axis=0),
        **{name: spent[name] for name in TIME_PARTS},
        "setup_compute_s": timeline.setup_compute,
        "setup_upload_s": timeline.setup_upload,
    }
