"""What a simulation leaves behind: checkpoints to continue from, and tables to report from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from codedfedl.arrays import to_host
from codedfedl.core.columns import FACTS
from codedfedl.core.disclosure import only_private
from codedfedl.core.record import Record, metric_name, packed, unpacked
from codedfedl.fleet.delays import TIME_PARTS
from codedfedl.runs.directory import Checkpoint, RunDirectory
from codedfedl.runs.grid import Cell
from codedfedl.runs.tables import CellRun, planned_share, stated_facts, write_tables
from codedfedl.simulation.engine import Setting, Simulation
from codedfedl.simulation.units import Unit

__all__ = ["client_columns", "restore", "snapshot", "stored_records", "stories", "write_units"]

_SPENT = ("compute_s", "link_s", "retransmission_s", "overhead_s")


def snapshot(simulation: Simulation, place: int) -> Checkpoint:
    """Return everything that a resumed simulation needs and cannot compute again."""
    arrays: Checkpoint = {}
    for s, setting in enumerate(simulation.settings):
        prefix = f"{place}/{s}/"
        arrays[f"{prefix}model"] = to_host(setting.state.model)
        arrays[f"{prefix}state_round"] = np.array(setting.state.round)
        arrays[f"{prefix}processed"] = setting.timeline.processed
        arrays |= {
            f"{prefix}records/{name}": values for name, values in packed(setting.records).items()
        }
    return arrays


def restore(simulation: Simulation, checkpoint: Checkpoint, place: int) -> None:
    """Bring a simulation to where its unit was in a checkpoint, if it had begun."""
    for s, setting in enumerate(simulation.settings):
        stored = _part(checkpoint, f"{place}/{s}/")
        if stored:
            records = unpacked(_part(stored, "records/"))
            simulation.restore(setting, stored["model"], int(stored["state_round"]), records)
            setting.timeline.processed = stored["processed"]


def stored_records(checkpoint: Checkpoint, unit: Unit, place: int) -> list[list[Record]]:
    """Return the records of every setting of a unit in a checkpoint."""
    return [unpacked(_part(checkpoint, f"{place}/{s}/records/")) for s in range(len(unit.cells))]


def stories(simulation: Simulation, unit: Unit, place: int) -> Checkpoint:
    """Return what is kept of a finished unit besides its records: its clients and facts.

    If no target is given, exact ridge regression sets it, except where that may not read the data:
    for a private scheme. If the objective is followed, the part that the optimum explains is kept
    too.
    """
    arrays: Checkpoint = {}
    for s, (setting, cell) in enumerate(zip(simulation.settings, unit.cells, strict=True)):
        prefix = f"{place}/{s}/"
        if cell.experiment.training.target is None and not only_private(
            setting.scheme.info.disclosure
        ):
            exact = simulation.exact_metric(setting.state.task)
            arrays[f"{prefix}fact/exact_metric"] = np.array([exact])
        if cell.experiment.training.objective:
            explained = simulation.objective(setting.state.task).explained
            arrays[f"{prefix}fact/explained"] = np.array([explained])
        columns = client_columns(setting)
        arrays |= {f"{prefix}story/{name}": values for name, values in columns.items()}
        facts = dict.fromkeys(FACTS, np.nan) | _facts(setting)
        arrays |= {f"{prefix}fact/{name}": np.array([value]) for name, value in facts.items()}
    return arrays


def _facts(setting: Setting) -> dict[str, float]:
    """Return what the set-up planned and predicted, and a scheme's own facts as they are now."""
    now = stated_facts(setting.scheme, setting.state)
    return setting.facts | {name: value for name, value in now.items() if name not in FACTS}


def client_columns(setting: Setting) -> dict[str, npt.NDArray[Any]]:
    """Per client: load, how often it arrived, and where its time went on average."""
    timeline, clock = setting.timeline, setting.timeline.clock
    task, told = setting.state.task, setting.rounds or setting.records
    loads, rounds = timeline.processed, max(len(setting.rounds), 1)
    spent = clock.model.mean_parts(loads, clock.chance[:rounds])
    everything = any(record.loads.sum() > task.points[0].sum() for record in told)
    return {
        "client": clock.model.client,
        "rate": spent["rate"],
        "points": (task.held if everything else task.points[0]).astype(np.float64),
        "load": np.asarray(loads, dtype=np.float64),
        "planned_share": planned_share(setting.scheme, setting.state),
        "arrived_share": np.mean([record.arrived for record in told], axis=0),
        **{name: spent[name] for name in TIME_PARTS},
        "setup_compute_s": timeline.setup_compute,
        "setup_upload_s": timeline.setup_upload,
    }


def write_units(directory: RunDirectory, units: Sequence[Unit], stored: Checkpoint) -> None:
    """Write the tables of all units from a finished checkpoint."""
    runs = [
        _cell_run(unit, cell, _part(stored, f"{place}/{s}/"))
        for place, unit in enumerate(units)
        for s, cell in enumerate(unit.cells)
    ]
    write_tables(directory, runs)


def _cell_run(unit: Unit, cell: Cell, stored: Checkpoint) -> CellRun:
    scheme_facts = {name: value.item() for name, value in _part(stored, "fact/").items()}
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
        records=unpacked(_part(stored, "records/")),
        clients=_part(stored, "story/"),
        facts=scheme_facts | run_facts,
    )


def _part(stored: Checkpoint, prefix: str) -> Checkpoint:
    return {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
