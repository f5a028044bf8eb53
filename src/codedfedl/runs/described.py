"""The settings of a run as its directory describes them: a report imports no scheme to read it.

`cells.json` is written when a run begins, by the process that runs it. Whoever opens the directory
later may not have the modules that its schemes are written in, and must not import them on the
word of somebody else's file.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from codedfedl.core.disclosure import Disclosure
from codedfedl.errors import InputError
from codedfedl.runs.config import Experiment
from codedfedl.runs.documents import modules_of
from codedfedl.runs.grid import Cell, cells
from codedfedl.runs.settings import checked_scheme
from codedfedl.schemes.on_sums import on_sums

__all__ = ["CELLS", "KnownCell", "cells_text", "described", "known_cells"]

CELLS = "cells.json"
"""The file of a run directory that describes its settings."""

_NOT_SETTINGS = ("name", "features", "secure")


@dataclass(frozen=True)
class KnownCell:
    """A setting, with what reports say of its scheme.

    Attributes
    ----------
    id, label, group, values, settings, features, as_in_paper
        As in `runs.grid.Cell`.
    dataset, fleet, target, redundancy
        Of its experiment; None where there is none.
    scheme
        The scheme's plain name.
    optimiser
        The setting of that name, or the scheme's own.
    disclosure
        What leaves a client, the most telling first.
    baseline
        What the scheme is called as a baseline of gains; empty if it is not one.
    featured
        Whether reports show its rounds and clients.
    """

    id: str
    label: str
    group: str
    values: dict[str, Any]
    settings: dict[str, Any]
    dataset: str
    fleet: str
    target: float | None
    redundancy: float | None
    scheme: str
    features: str
    optimiser: str
    disclosure: list[str]
    baseline: str
    featured: bool
    as_in_paper: bool

    @property
    def scheme_settings(self) -> dict[str, Any]:
        """The settings of the scheme, by their names."""
        table = {key: v for key, v in self.settings.items() if key.startswith("schemes.")}
        named = {key.removeprefix("schemes."): value for key, value in table.items()}
        return {key: value for key, value in named.items() if key not in _NOT_SETTINGS}


def described(cell: Cell) -> KnownCell:
    """Describe a setting; its scheme is made for that."""
    config, experiment = cell.scheme, cell.experiment
    scheme = checked_scheme(config.name, config.settings)
    disclosed = (on_sums(scheme) if config.secure else scheme).info.disclosure
    exact = {f"schemes.{name}": value for name, value in config.settings.items()}  # ∞ is kept
    return KnownCell(
        id=cell.id,
        label=cell.label,
        group=cell.group,
        values=dict(cell.values),
        settings=cell.settings | exact,
        dataset=experiment.data.name,
        fleet=experiment.fleet.name,
        target=experiment.training.target,
        redundancy=config.settings.get("redundancy"),
        scheme=config.plain_name,
        features=cell.features,
        optimiser=str(getattr(scheme, "optimiser", scheme.info.solver)),
        disclosure=[kind.value for kind in Disclosure if kind in disclosed],
        baseline=scheme.info.baseline,
        featured=scheme.info.featured,
        as_in_paper=cell.as_in_paper,
    )


def cells_text(every: Iterable[KnownCell]) -> str:
    """Return the content of `cells.json`."""
    return json.dumps([asdict(cell) for cell in every], indent=1)


def known_cells(folder: Path, experiment: Experiment) -> list[KnownCell]:
    """Return the settings of the run in a folder.

    Of a run of an earlier version, which has no such file, they are made from its configuration
    where that names no modules; else nothing is known but what its tables say.
    """
    path = folder / CELLS
    if not path.is_file():
        return [] if modules_of(experiment) else [described(cell) for cell in cells(experiment)]
    try:
        every = _CELLS.validate_python(json.loads(path.read_text("utf-8")))
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise _unreadable(path, reason) from None
    if any(cell.values.keys() != every[0].values.keys() for cell in every):
        raise _unreadable(path, "its cells differ in their axes")
    return every


def _unreadable(path: Path, reason: str) -> InputError:
    return InputError(f"cannot read {path}: {reason}; restore it from a copy, or delete it")


_CELLS: TypeAdapter[list[KnownCell]] = TypeAdapter(list[KnownCell])
