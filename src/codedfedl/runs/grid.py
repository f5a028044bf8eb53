"""A grid of settings: every combination of some values, where a key is any of an experiment's.

`cells.json` describes the settings of a run, written when it begins by the process that runs it.
Whoever opens the directory later may not have the modules that its schemes are written in, and must
not import them on the word of somebody else's file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from codedfedl.core.disclosure import Disclosure
from codedfedl.errors import InputError
from codedfedl.fleet.built_in import void_settings
from codedfedl.io.names import nearest, shortened
from codedfedl.learning.optimisers import chosen_optimiser
from codedfedl.runs.config import USUAL_CLIENTS, USUAL_RIDGE, Experiment, distinct_labels, flattened
from codedfedl.runs.documents import check, modules_of, parse_value, set_key, table_keys
from codedfedl.runs.sections import SchemeConfig
from codedfedl.schemes import RENAMED_SETTINGS, SCHEMES, scheme_class, settings_of

CELLS = "cells.json"
"""The file of a run directory that describes its settings."""

SCHEME = "scheme"
"""The axis of schemes."""

RESULTS = ("setting", "scheme", "seed", "rounds", "training_hours", "total_hours", "final")
"""What a table of a grid has besides its axes."""

_TABLES = ("data", "fleet", "features", "training", "model")
_WORDS = {
    "data": "data.name",
    "fleet": "fleet.name",
    "features": "features.kind",
    "model": "model.module",
}
_NOT_SETTINGS = ("name", "features", "secure")


@dataclass(frozen=True)
class KnownCell:
    """A setting: one scheme with everything that it depends on but the seed, as reports know it.

    Attributes
    ----------
    id
        Twelve hex digits of a hash of what defines the setting: the same in every run. A hash and
        not a slug of the label, since a label changes with the other cells of a run. Among a
        thousand cells, two share twelve digits with a probability of 2e-9.
    label
        What people call it; it may change with what else is in the run.
    group
        The grid's values for everything but the scheme: gains are within a group.
    values
        Its values in the grid; None on an axis that its scheme does not have.
    settings
        Everything that defines it, by dotted keys, without its title and seeds.
    dataset, fleet, target, redundancy
        Of its experiment; None where there is none.
    scheme
        The scheme's plain name.
    features
        The kind of its feature map: the experiment's, the scheme's, or a class of its own.
    optimiser
        The setting of that name, or the scheme's own.
    disclosure
        What leaves a client, the most telling first.
    baseline
        What the scheme is called as a baseline of gains; empty if it is not one.
    featured
        Whether reports show its rounds and clients.
    model
        What is trained: ``linear``, or the module of a network.
    as_in_paper
        Whether the features and the code are the paper's own, and the fleet not a real one.
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
    as_in_paper: bool
    optimiser: str = ""
    disclosure: list[str] = field(default_factory=list)
    baseline: str = ""
    featured: bool = False
    model: str = "linear"

    @property
    def scheme_settings(self) -> dict[str, Any]:
        """The settings of the scheme, by their names; a table is one of them, its keys are not."""
        table = {key: v for key, v in self.settings.items() if key.startswith("schemes.")}
        named = {key.removeprefix("schemes."): value for key, value in table.items()}
        return {
            key: value
            for key, value in named.items()
            if key not in _NOT_SETTINGS and "." not in key
        }


_CELLS: TypeAdapter[list[KnownCell]] = TypeAdapter(list[KnownCell])


@dataclass(frozen=True)
class Cell(KnownCell):
    """A setting that can be run: `experiment` is of its scheme alone."""

    experiment: Experiment = field(kw_only=True)

    @property
    def config(self) -> SchemeConfig:
        """The scheme's table."""
        return self.experiment.schemes[0]


def _cell(experiment: Experiment, group: str, values: dict[str, Any]) -> Cell:
    """Return the setting of an experiment with one scheme, which is made for that."""
    config = experiment.schemes[0]
    scheme = config.scheme()
    features = config.features or experiment.features.kind
    if scheme.info.features is not None:
        features = type(scheme.info.features).__name__.lower()
    apart = {"title", "seeds", "grid", "federation"}
    if experiment.model.kind == "linear":  # what it has no part in changes no id
        apart.add("model")
    document = experiment.model_dump(mode="json", exclude_none=True, exclude=apart)
    settings = flattened(document | {"schemes": document["schemes"][0]})
    if experiment.data.client is None:
        settings.setdefault("fleet.clients", USUAL_CLIENTS)
    if not experiment.data.is_table:
        settings.setdefault("training.ridge", USUAL_RIDGE)
    numbers = {key: _plain(value) for key, value in settings.items()}
    return Cell(
        id=sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:12],
        label=", ".join(word for word in (config.label, group) if word),
        group=group,
        values=values,
        settings=settings | {f"schemes.{key}": value for key, value in config.settings.items()},
        dataset=experiment.data.name,
        fleet=experiment.fleet.name,
        target=experiment.training.target,
        redundancy=config.settings.get("redundancy"),
        scheme=config.plain_name,
        features=features,
        optimiser=chosen_optimiser(
            str(getattr(scheme, "optimiser", scheme.info.solver)),
            steps=experiment.descends,
        ),
        disclosure=[kind.value for kind in Disclosure if kind in scheme.disclosure],
        baseline=scheme.info.baseline,
        featured=scheme.info.featured,
        model=experiment.model.name,
        as_in_paper=features == "fourier"
        and experiment.model.kind == "linear"
        and config.settings.get("code", "gaussian") == "gaussian"
        and experiment.federation is None,
        experiment=experiment,
    )


def _plain(value: Any) -> Any:
    """Return a whole number as a float: 0 and 0.0 are one setting."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def cells_text(every: Iterable[KnownCell]) -> str:
    """Return the content of `cells.json`."""
    names = [entry.name for entry in fields(KnownCell)]
    return json.dumps([{name: getattr(cell, name) for name in names} for cell in every], indent=1)


def known_cells(folder: Path, experiment: Experiment) -> Sequence[KnownCell]:
    """Return the settings of the run in a folder.

    Of a run of an earlier version, which has no such file, they are made from its configuration
    where that names no modules; else nothing is known but what its tables say.
    """
    path = folder / CELLS
    if not path.is_file():
        return [] if modules_of(experiment) else cells(experiment)
    try:
        every = _CELLS.validate_python(json.loads(path.read_text("utf-8")))
        if any(cell.values.keys() != every[0].values.keys() for cell in every):
            raise ValueError("its cells differ in their axes")
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot read {path}: {reason}; restore it from a copy, or delete it"
        ) from None
    return every


def axis(text: str, schemes: Iterable[str] = ()) -> tuple[str, list[Any]]:
    """Read ``key=value,value`` into a key of the grid and its values.

    A key is ``scheme``, a setting of a scheme such as ``redundancy``, or a key of the experiment,
    whose table may be left out: ``erasure`` is ``fleet.erasure``.

    Examples
    --------
    >>> axis("erasure=0.1,0.3")
    ('fleet.erasure', [0.1, 0.3])
    """
    key, equals, listed = text.partition("=")
    values = [parse_value(value.strip()) for value in listed.split(",") if value.strip()]
    if not equals or not values:
        raise InputError(f"--vary {text!r}: write key=value,value, such as redundancy=0.1,0.2")
    if len(set(map(str, values))) < len(values):
        raise InputError(f"--vary {text!r} has a value twice: remove one")
    return _full_key(key.strip(), schemes), values


def names(grid: Iterable[str]) -> dict[str, str]:
    """Say each key of a grid in a word or two, or in full where two would be called the same."""
    words = {path: word for word, path in _WORDS.items()}
    short = {key: words.get(key, key.rpartition(".")[2].replace("_", " ")) for key in grid}
    every = [*short.values(), *RESULTS]
    return {
        key: word if every.count(word) == 1 or key == SCHEME else key for key, word in short.items()
    }


def _full_key(key: str, schemes: Iterable[str]) -> str:
    if key in _WORDS:
        return _WORDS[key]
    classes = {*SCHEMES, *schemes}
    settings = sorted({name for scheme in classes for name in settings_of(scheme)})
    paths = [f"{table}.{name}" for table in _TABLES for name in table_keys(table)]
    if key in (SCHEME, "seeds", *paths, *settings):
        return key
    short = {path.partition(".")[2]: path for path in reversed(paths)}
    if key in short:
        return short[key]
    renamed: dict[str, str] = {}
    for scheme in classes:
        renamed |= RENAMED_SETTINGS.get(scheme_class(scheme).info.name, {})
    hint = nearest(key, [SCHEME, "seeds", *settings, *reversed(short), *paths])
    hint = f"it is now {renamed[key]!r}" if key in renamed else hint
    raise InputError(f"--vary {key}: there is no such key: {hint}")


def cells(experiment: Experiment) -> list[Cell]:
    """Return every setting of an experiment: its schemes, at every point of its grid."""
    grid = _checked(experiment)
    words = names(grid)
    shared = [key for key in grid if "." in key]
    schemes = list(_schemes(experiment, grid))
    for key in grid:
        if key not in (SCHEME, *shared) and not any(key in values for _, values in schemes):
            raise InputError(
                f"grid.{key}: {_listed(table['name'] for table, _ in schemes)} has no such "
                f"setting: {_remedy(key, schemes)}"
            )
    different: dict[str, Cell] = {}
    for point in product(*(grid[key] for key in shared)):
        values = dict(zip(shared, point, strict=True))
        group = ", ".join(f"{words[key]} {value}" for key, value in values.items())
        document = experiment.model_dump(exclude_none=True, exclude={"grid"})
        for key, value in values.items():
            set_key(document, key, value)
        for scheme, settings in schemes:
            single = check(document | {"schemes": [scheme]}, "the grid")
            _refuse_void_axes(single, shared)
            cell = _cell(single, group, {key: (values | settings).get(key) for key in grid})
            different.setdefault(cell.id, cell)
    if not different:
        raise InputError("schemes: there is none; add a [[schemes]] table")
    unique = list(different.values())
    labels = distinct_labels([cell.label for cell in unique], [cell.settings for cell in unique])
    return [replace(cell, label=label) for cell, label in zip(unique, labels, strict=True)]


def _listed(schemes: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(schemes))


def _remedy(key: str, tables: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Say what to vary instead of a setting that none of the schemes has, or where it is one."""
    for table, _ in tables:
        if new := RENAMED_SETTINGS.get(scheme_class(table["name"]).info.name, {}).get(key):
            return f"it is now {new!r}"
    having = _listed(name for name in SCHEMES if key in settings_of(name))
    return f"add a scheme that has it ({having}), or vary another key"


def _checked(experiment: Experiment) -> dict[str, list[Any]]:
    """Return the grid by full keys."""
    grid: dict[str, list[Any]] = {}
    for key, values in experiment.grid.items():
        full = _full_key(key, [scheme.name for scheme in experiment.schemes])
        if full == "seeds":
            raise InputError("grid.seeds: seeds are not an axis; write seeds = [0, 1] at the top")
        if full in grid:
            raise InputError(f"grid.{key} is listed twice: remove one")
        if full == SCHEME and not all(isinstance(value, str) for value in values):
            raise InputError(f"grid.{key} is {shortened(values)}: write names of schemes")
        grid[full] = values
    return grid


def _refuse_void_axes(experiment: Experiment, shared: Sequence[str]) -> None:
    """Refuse to vary what a fleet file sets itself."""
    for key in shared:
        table, _, name = key.partition(".")
        if table == "fleet" and name in void_settings(experiment.fleet.name):
            raise InputError(
                f"grid.{name}: {experiment.fleet.name} has its own; vary fleet=a.csv,b.csv instead"
            )


def _schemes(
    experiment: Experiment, grid: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every scheme of the grid as a table, with its values on the axes that it has."""
    tables = [scheme.model_dump(exclude_none=True) for scheme in experiment.schemes]
    if SCHEME in grid:
        tables = [
            table
            for name in grid[SCHEME]
            for table in [t for t in tables if t["name"] == name] or [{"name": name}]
        ]
    for table in tables:
        known_settings = settings_of(table["name"])
        axes = [key for key in grid if key in known_settings]
        for point in product(*(grid[key] for key in axes)):
            settings = dict(zip(axes, point, strict=True))
            yield table | settings, {SCHEME: table["name"]} | settings
