"""What is kept of a simulation: checkpoints to continue from, and tables to report from.

The arrays of setting s of unit k are called ``k/s/…``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import asarray_like, to_host
from codedfedl.core.columns import FACTS
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import Record, metric_name, packed, unpacked
from codedfedl.core.task import State
from codedfedl.errors import InputError
from codedfedl.fleet.delays import TIME_PARTS
from codedfedl.models.model import fitted_temperature
from codedfedl.random import stream
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell
from codedfedl.runs.tables import CellRun, planned_share, stated_facts, write_tables
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.units import SeedUnit

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


@dataclass(frozen=True, eq=False)
class Stored:
    """What a checkpoint has of a setting."""

    setting: Setting
    model: npt.NDArray[Any]
    state_round: int
    records: list[Record]

    @property
    def rounds(self) -> int:
        """How many rounds were played."""
        return sum(not record.is_setup for record in self.records)

    @property
    def continues(self) -> bool:
        """Whether the setting goes on from its model and round alone."""
        ask = self.setting.driver.ask()
        return ask is not None and self.setting.state.checkpointed and not ask.keep_late


def bring_back(simulation: Simulation, stored: Sequence[Stored]) -> None:
    """Bring settings to where they were, by their models or by playing their rounds again.

    If any must be played again, all are, side by side as before: what is multiplied together
    decides the last digits.
    """
    if all(part.continues for part in stored):
        for part in stored:
            driver = part.setting.driver
            here = asarray_like(part.model, driver.state.model)
            driver.state = replace(driver.state, model=here, round=part.state_round)
            driver.played = part.rounds
            if simulation.fast is not None:
                for record in part.records[-part.rounds :] if part.rounds else ():
                    simulation.fast.seen(part.setting.label, record.loads)
    else:
        _play_again(simulation, stored)
    for part in stored:
        part.setting.records = part.records


def _play_again(simulation: Simulation, stored: Sequence[Stored]) -> None:
    while asked := [
        (part.setting, ask)
        for part in stored
        if part.setting.driver.played < part.rounds
        and (ask := part.setting.driver.ask()) is not None
    ]:
        simulation.play(asked, measured=False)
    for part in stored:
        if part.setting.driver.played < part.rounds:
            raise InputError(
                f"{part.setting.label}: the checkpoint has {part.rounds} rounds, and the "
                f"scheme now ends after {part.setting.driver.played}: choose another --out"
            )


def restore(simulation: Simulation, checkpoint: Checkpoint, number: int) -> None:
    """Bring a simulation to where its unit was in a checkpoint, if it had begun."""
    begun, processed = [], []
    for s, setting in enumerate(simulation.settings):
        stored = part_of(checkpoint, f"{number}/{s}/")
        if stored:
            records = unpacked(part_of(stored, "records/"))
            begun.append(Stored(setting, stored["model"], int(stored["state_round"]), records))
            processed.append(stored["processed"])
    bring_back(simulation, begun)
    for part, points in zip(begun, processed, strict=True):
        part.setting.timeline.processed = points


def stored_records(checkpoint: Checkpoint, unit: SeedUnit, number: int) -> list[list[Record]]:
    """Return the records of every setting of a unit in a checkpoint."""
    return [unpacked(part_of(checkpoint, f"{number}/{s}/records/")) for s in range(len(unit.cells))]


def result_arrays(simulation: Simulation, unit: SeedUnit, number: int) -> Checkpoint:
    """Return what is kept of a finished unit besides its records: its clients and facts.

    If no target is given, exact ridge regression sets it, except where that may not read the data:
    for a private scheme. If the objective is followed, the part that the optimum explains is kept
    too.
    """
    arrays: Checkpoint = {}
    for s, (setting, cell) in enumerate(zip(simulation.settings, unit.cells, strict=True)):
        prefix = f"{number}/{s}/"
        private = only_private(setting.scheme.disclosure)
        quadratic = setting.state.task.learner.quadratic
        if cell.experiment.training.target is None and quadratic and not private:
            exact = simulation.objectives.of(setting.state.task).best.astype(np.float32)
            model = asarray_like(exact, setting.state.model)
            metrics = simulation.measuring.metrics(setting.state.task.learner, [model])
            arrays[f"{prefix}fact/exact_metric"] = np.array([float(metrics[0])])
        if cell.experiment.training.objective and quadratic:
            explained = simulation.objectives.of(setting.state.task).explained
            arrays[f"{prefix}fact/explained"] = np.array([explained])
        columns = client_columns(setting)
        arrays |= {f"{prefix}story/{name}": values for name, values in columns.items()}
        facts = dict.fromkeys(FACTS, np.nan) | _facts(setting)
        arrays |= {f"{prefix}fact/{name}": np.array([value]) for name, value in facts.items()}
    return arrays


def final_metrics(simulation: Simulation, number: int) -> Checkpoint:
    """Evaluate every setting's last model on the training points."""
    arrays: Checkpoint = {}
    for s, setting in enumerate(simulation.settings):
        if only_private(setting.scheme.disclosure):
            continue  # the privacy budget does not cover this
        with np.errstate(over="ignore", invalid="ignore"):  # it may have diverged
            arrays[f"{number}/{s}/objective"] = np.array(_objective(simulation, setting))
            if simulation.problem.test_classes is None:
                arrays[f"{number}/{s}/offset"] = simulation.problem.target_mean
            else:
                temperature = _temperature(simulation, setting)
                arrays[f"{number}/{s}/temperature"] = np.array(temperature)
    return arrays


def _objective(simulation: Simulation, setting: Setting) -> float:
    """Return the loss of a point, on average over the training points, and the ridge."""
    model, task = setting.state.model, setting.state.task
    parts = chain.from_iterable(batch.parts() for batch in simulation.problem.batches)
    total = sum(task.learner.loss(model, *part) for part in parts)
    penalty = task.ridge * float((to_host(model).astype(np.float64) ** 2).sum())
    return total / float(task.held.sum()) + penalty / 2


def _temperature(simulation: Simulation, setting: Setting) -> float:
    scores, targets = zip(*_calibration_points(simulation, setting.state), strict=True)
    outputs = np.concatenate(scores)
    if not np.isfinite(outputs).all():
        return np.nan
    return fitted_temperature(outputs, np.concatenate(targets).argmax(axis=1))


def _calibration_points(simulation: Simulation, state: State) -> Iterator[tuple[Any, Any]]:
    """Yield scores and targets of training points, as many of each mini-batch."""
    batches = simulation.problem.batches
    for b, batch in enumerate(batches):
        order = stream(simulation.seed, "subset", b).permutation(len(batch.targets))
        rows = np.sort(order[: -(-CALIBRATION_POINTS // len(batches))])
        scores = to_host(state.task.learner.scores(state.model, batch.features[rows]))
        yield scores.astype(np.float64), to_host(batch.targets)[rows]


def _facts(setting: Setting) -> dict[str, float]:
    """Return what the set-up planned and predicted, and a scheme's own facts as they are now."""
    now = stated_facts(setting.scheme, setting.state)
    return setting.facts | {name: value for name, value in now.items() if name not in FACTS}


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


def write_units(directory: RunDirectory, units: Sequence[SeedUnit], stored: Checkpoint) -> None:
    """Write the tables of all units from a finished checkpoint."""
    runs = [
        _cell_run(unit, cell, part_of(stored, f"{number}/{s}/"))
        for number, unit in enumerate(units)
        for s, cell in enumerate(unit.cells)
    ]
    write_tables(directory, runs)


def _cell_run(unit: SeedUnit, cell: Cell, stored: Checkpoint) -> CellRun:
    scheme_facts = {name: value.item() for name, value in part_of(stored, "fact/").items()}
    run_facts = {
        "sigma": getattr(unit.features, "sigma", np.nan),
        "step": cell.experiment.schedule(unit.features, unit.dataset.inputs).step,
        "diverged": float(not np.isfinite(stored["model"]).all()),
        "chance": unit.dataset.chance,
        "test_points": float(len(unit.dataset.test_labels)),
    }
    return CellRun(
        cell=cell,
        seed=unit.seed,
        metric=metric_name(unit.dataset.is_classification),
        records=unpacked(part_of(stored, "records/")),
        clients=part_of(stored, "story/"),
        facts=scheme_facts | run_facts,
    )


def part_of(stored: Checkpoint, prefix: str) -> Checkpoint:
    """Return the arrays whose names begin like that, without the beginning."""
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
