"""A grid of settings: every combination of some values, where a key is any of an experiment's."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from typing import Any

from codedfedl.errors import InputError
from codedfedl.fleet.built_in import void_settings
from codedfedl.io.names import nearest, shortened
from codedfedl.runs.config import Experiment, SchemeConfig
from codedfedl.runs.documents import check, table_keys
from codedfedl.runs.labels import distinct_labels, flattened
from codedfedl.runs.overrides import parse_value, set_key
from codedfedl.schemes import RENAMED_SETTINGS, SCHEMES, scheme_class, settings_of

__all__ = ["RESULTS", "SCHEME", "Cell", "axis", "cells", "names"]

SCHEME = "scheme"
"""The axis of schemes."""

RESULTS = ("setting", "scheme", "seed", "rounds", "training_hours", "total_hours", "final")
"""What a table of a grid has besides its axes."""

_TABLES = ("data", "fleet", "features", "training")
_WORDS = {"data": "data.name", "fleet": "fleet.name", "features": "features.kind"}


@dataclass(frozen=True)
class Cell:
    """One scheme with everything that it depends on but the seed.

    Attributes
    ----------
    label
        What people call it; it may change with what else is in the run, unlike `id`.
    group
        The grid's values for everything but the scheme: gains are within a group.
    values
        Its place in the grid; None on an axis that its scheme does not have.
    experiment
        Of this scheme alone.
    """

    label: str
    group: str
    values: Mapping[str, Any]
    experiment: Experiment

    @property
    def scheme(self) -> SchemeConfig:
        """The scheme."""
        return self.experiment.schemes[0]

    @property
    def features(self) -> str:
        """The kind of its feature map: the experiment's, the scheme's, or a class of its own."""
        own = scheme_class(self.scheme.name).info.features
        if own is not None:
            return type(own).__name__.lower()
        return self.scheme.features or self.experiment.features.kind

    @property
    def as_in_paper(self) -> bool:
        """Whether the features and the code are the paper's own, and the fleet not a real one."""
        fourier = self.features == "fourier"
        gaussian = self.scheme.settings.get("code", "gaussian") == "gaussian"
        return fourier and gaussian and self.experiment.federation is None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that defines this cell, by dotted keys, without its title and seeds."""
        document = self.experiment.model_dump(
            mode="json", exclude_none=True, exclude={"title", "seeds", "grid", "federation"}
        )
        return flattened(document | {"schemes": document["schemes"][0]})

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of a hash of `settings`: the same in every run, at every place.

        A hash and not a slug of the label, since a label changes with the other cells of a run.
        Among a thousand cells, two share twelve digits with a probability of 2e-9.
        """
        numbers = {key: _plain(value) for key, value in self.settings.items()}
        return sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """Return a whole number as a float: 0 and 0.0 are one setting."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


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
    paths = [f"{table}.{name}" for table in _TABLES for name in table_keys(table)]
    settings = sorted({name for one in {*SCHEMES, *schemes} for name in _settings(one)})
    if key in (SCHEME, "seeds", *paths) or key in settings:
        path = key
    else:
        path = next((path for path in paths if path.partition(".")[2] == key), "")
    if not path:
        every = [SCHEME, "seeds", *settings, *(path.partition(".")[2] for path in paths), *paths]
        raise InputError(f"--vary {key}: there is no such key: {nearest(key, every)}")
    return path


def _settings(scheme: str) -> list[str]:
    """Return the settings of a scheme, and those of earlier runs, which reports still read.

    A name that another scheme has today is left to that one.
    """
    today = {name for one in SCHEMES for name in settings_of(one)}
    once = [
        name
        for name in RENAMED_SETTINGS.get(scheme_class(scheme).info.name, {})
        if name not in today
    ]
    return settings_of(scheme) + once


def cells(experiment: Experiment) -> list[Cell]:
    """Return every setting of an experiment: its schemes, at every point of its grid."""
    grid = _checked(experiment)
    words = names(grid)
    shared = [key for key in grid if "." in key]
    tables = list(_schemes(experiment, grid))
    for key in grid:
        if key not in (SCHEME, *shared) and not any(key in place for _, place in tables):
            raise InputError(
                f"grid.{key}: {_listed(table['name'] for table, _ in tables)} has no such setting: "
                f"{_remedy(key, tables)}"
            )
    different: dict[str, Cell] = {}
    for values in product(*(grid[key] for key in shared)):
        place = dict(zip(shared, values, strict=True))
        group = ", ".join(f"{words[key]} {value}" for key, value in place.items())
        document = experiment.model_dump(exclude_none=True, exclude={"grid"})
        for key, value in place.items():
            set_key(document, key, value)
        for scheme, own in tables:
            document["schemes"] = [scheme]
            one = check(document, "the grid")
            _refuse_void_axes(one, shared)
            label = ", ".join(word for word in (one.schemes[0].label, group) if word)
            axes = {key: (place | own).get(key) for key in grid}
            cell = Cell(label, group, axes, one)
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


def _refuse_void_axes(one: Experiment, shared: Sequence[str]) -> None:
    """Refuse to vary what a fleet file sets itself."""
    for key in shared:
        table, _, name = key.partition(".")
        if table == "fleet" and name in void_settings(one.fleet.name):
            raise InputError(
                f"grid.{name}: {one.fleet.name} has its own; vary fleet=a.csv,b.csv instead"
            )


def _schemes(
    experiment: Experiment, grid: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every scheme of the grid as a table, with its place on the axes that it has."""
    tables = [scheme.model_dump(exclude_none=True) for scheme in experiment.schemes]
    if SCHEME in grid:
        given = [
            (name, [table for table in tables if table["name"] == name]) for name in grid[SCHEME]
        ]
        tables = [table for name, known in given for table in known or [{"name": name}]]
    for table in tables:
        known_settings = _settings(table["name"])
        own = [key for key in grid if key in known_settings]
        for values in product(*(grid[key] for key in own)):
            place = dict(zip(own, values, strict=True))
            yield table | place, {SCHEME: table["name"]} | place
