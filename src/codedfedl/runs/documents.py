"""A TOML file turned into an experiment, or an error that says what is wrong and where."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from codedfedl.errors import InputError
from codedfedl.fleet.built_in import void_settings
from codedfedl.io.names import nearest, shortened
from codedfedl.io.toml import parse_toml, read_toml
from codedfedl.runs.config import USUAL_CLIENTS, Experiment
from codedfedl.runs.sections import FleetConfig
from codedfedl.schemes import SCHEMES, settings_of

_TABLES = ("data", "fleet", "features", "model", "training", "federation", "server")
_MODULE_KEYS = ("fleet", "scheme", "encoder", "kind", "features", "optimiser", "module")


def read_experiment(
    path: str | Path,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    *,
    trust: bool = False,
) -> Experiment:
    """Read a TOML file, with some values changed.

    Parameters
    ----------
    changes
        Values by their keys, such as ``{"training.epochs": 7}``.
    options
        The option by which a user gave a key, for errors.
    trust
        Whether a run's own ``config.toml``, which may be somebody else's, may name Python modules.
        Any other file is the user's own experiment, and may.
    """
    path = Path(path)
    document = read_toml(path)
    if path.name == "config.toml" and (path.parent / "environment.json").is_file():
        check_trusted(check(dict(document), str(path)), path.parent, trust=trust)
    return changed(document, changes or {}, str(path), options)


def modules_of(experiment: Experiment) -> list[str]:
    """Return the Python code that an experiment would import, as ``module:member``."""
    features, model = experiment.features, experiment.model
    named: list[Any] = [experiment.fleet.name, features.encoder, features.kind, model.module]
    for scheme in experiment.schemes:
        named += [scheme.name, scheme.features, scheme.settings.get("optimiser")]
    for key, values in experiment.grid.items():
        if key.rpartition(".")[2] in _MODULE_KEYS:
            named += values
    return [name for name in named if isinstance(name, str) and ":" in name]


def check_trusted(experiment: Experiment, run: Path, *, trust: bool) -> None:
    """Refuse to import what a run directory names, unless its user trusts it."""
    if (modules := modules_of(experiment)) and not trust:
        raise InputError(
            f"{run} names the Python code {', '.join(modules)}, which would be imported "
            "and run: read it, and if you trust it, add --trust"
        )


def changed(
    document: dict[str, Any],
    changes: Mapping[str, Any],
    where: str,
    options: Mapping[str, str] | None = None,
) -> Experiment:
    """Turn a document with some values changed into an experiment."""
    if not changes and all(table == {} for table in document.values()):
        raise InputError(
            f"{where} is empty: name at least the data and the fleet, a line each, such as "
            'data.name = "my.csv", data.label = "kind", fleet.name = "fleet.csv"'
        )
    fleet = document.get("fleet")
    if "fleet.name" in changes and isinstance(fleet, dict):
        void = void_settings(str(changes["fleet.name"]))
        document["fleet"] = {key: fleet[key] for key in fleet if key not in void}
    for key, value in changes.items():
        set_key(document, key, value)
    _refuse_ignored(document, changes, where, options or {})
    experiment = check(document, where, options)
    _refuse_misplaced(experiment, where)
    experiment.build_schemes()
    return experiment


def _refuse_ignored(
    document: Mapping[str, Any], changes: Mapping[str, Any], where: str, options: Mapping[str, str]
) -> None:
    """Refuse a key of built-in fleets next to a fleet file that sets it itself.

    A run's own ``config.toml`` has every key: there, keys at their default are ignored.
    """
    fleet = document.get("fleet")
    if not isinstance(fleet, dict):
        return
    defaults = FleetConfig()
    for key in void_settings(str(fleet.get("name", defaults.name))):
        changed_here = f"fleet.{key}" in changes or key in changes.get("fleet", {})
        usual = (getattr(defaults, key), USUAL_CLIENTS if key == "clients" else None)
        if key in fleet and (changed_here or fleet[key] not in usual):
            setting = _option(f"fleet.{key}", options) or f"{where}: fleet.{key}"
            raise InputError(
                f"{setting} is {fleet[key]!r}, but the fleet is {fleet['name']}, which has its own "
                f"clients and delays: leave fleet.{key} out, or change the file"
            )


def check(
    document: dict[str, Any], where: str, options: Mapping[str, str] | None = None
) -> Experiment:
    """Turn a document into an experiment, or say what is wrong with it and where."""
    try:
        return Experiment.model_validate(document)
    except ValidationError as error:
        raise InputError(_sentence(error.errors(), where, options or {})) from None


def _sentence(errors: Sequence[ErrorDetails], where: str, options: Mapping[str, str]) -> str:
    """Say in our own words what is wrong with the first value that pydantic refuses."""
    first, location = errors[0], errors[0]["loc"]
    # Where a value may be of several types, pydantic adds the one that it tried.
    key = ".".join(str(part) for part in location if _names_a_key(part))
    option = _option(key, options)
    if first["type"] == "extra_forbidden":
        hint = nearest(str(location[-1]), list(_table_at(location[:-1]).model_fields))
        hint = _where_it_belongs(str(location[-1]), at_top=len(location) == 1) or hint
        below = next((known for known in options if known.startswith(f"{key}.")), "")
        return f"{option or options.get(below, where)}: unknown key {shortened(key)}: {hint}"
    if first["type"] == "missing":
        return f"{where}: {key} is missing: add it"
    if key == "schemes":
        return f"{where}: schemes is {shortened(first['input'])}: write [[schemes]] above each"
    same_value = (error for error in errors if error["input"] is first["input"])
    wanted, *others = dict.fromkeys(_wanted(error) for error in same_value)
    wanted = ", or ".join([wanted, *(word.removeprefix("must be ") for word in others)])
    return f"{option or f'{where}: {key}'} is {shortened(first['input'])}: {wanted}"


def _where_it_belongs(key: str, *, at_top: bool = False) -> str:
    """Say in which table a key belongs that is in the wrong one; empty where that is unclear."""
    if key in Experiment.model_fields:
        return f"{key} is a top-level key: move it above the first table"
    tables = [name for name in _TABLES if key in table_keys(name)]
    if not tables and any(key in settings_of(name) for name in SCHEMES):
        return f"{key} is a setting of schemes: write it in a [[schemes]] table that has it"
    where = "a table" if at_top else "another table"
    return f"{key} belongs to {where}: write {tables[0]}.{key}" if len(tables) == 1 else ""


def _refuse_misplaced(experiment: Experiment, where: str) -> None:
    """Refuse a scheme's key that belongs to another table."""
    for scheme in experiment.schemes:
        for key in scheme.settings.keys() - settings_of(scheme.name):
            if hint := _where_it_belongs(key):
                raise InputError(f"{where}: unknown key 'schemes.{key}': {hint}")


_WANTED = {
    "bool": "write true or false",
    "dict": "write a table, with a key and a value on each line",
    "float": "write a number",
    "int": "write a whole number",
    "list": "write a list, such as [0, 1]",
    "model": "write a table, with a key and a value on each line",
    "string": "write text in quotes",
    "tuple": "write a list, such as [28, 28, 1]",
}
_BOUNDS = {
    "greater_than": ("must be above {}", "gt"),
    "greater_than_equal": ("must be at least {}", "ge"),
    "less_than": ("must be below {}", "lt"),
    "less_than_equal": ("must be at most {}", "le"),
    "too_short": ("must have {} or more entries", "min_length"),
    "too_long": ("must have {} or fewer entries", "max_length"),
    "literal_error": ("must be {}", "expected"),
    "value_error": ("{}", "error"),
}


def _wanted(error: ErrorDetails) -> str:
    """Say in our own words what pydantic wants of a value."""
    if error["type"] in _BOUNDS:
        sentence, fact = _BOUNDS[error["type"]]
        value = error["ctx"][fact]
        return sentence.format(f"{value:g}" if isinstance(value, float) else value)
    return _WANTED.get(error["type"].partition("_")[0], error["msg"])


def _option(key: str, options: Mapping[str, str]) -> str:
    """Return the option that gave a key, or a table around it; empty where none did."""
    given = [known for known in options if f"{key}.".startswith(f"{known}.")]
    longest = max(given, key=len, default="")
    return "" if not given else options[longest] + key.removeprefix(longest)


def _names_a_key(part: int | str) -> bool:
    types = ("bool", "int", "float", "str")
    return isinstance(part, int) or (part.isidentifier() and part not in types)


def table_keys(name: str) -> list[str]:
    """Return the keys of a table, such as ``fleet``."""
    return list(_table_at((name,)).model_fields)


def _table_at(location: tuple[int | str, ...]) -> type[BaseModel]:
    table: type[BaseModel] = Experiment
    for part in location:
        annotation = table.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            table = annotation
    return table


def parse_overrides(texts: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Read what a user typed as ``key.sub=value``; of a key that comes twice the last counts.

    Examples
    --------
    >>> parse_overrides(["training.epochs=7", "data.name=mnist"])
    {'training.epochs': 7, 'data.name': 'mnist'}
    """
    changes = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"{option} {text!r} has no '=': write key=value, such as data.name=mnist"
            )
        changes[key.strip()] = parse_value(value)
    return changes


def parse_value(text: str) -> Any:
    """Read a value as TOML does; a bare word is a string."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def set_key(document: dict[str, Any], key: str, value: Any) -> None:
    """Set ``table.key`` of a document."""
    *tables, last = key.split(".")
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise InputError(f"cannot set {key!r}: {table} is not a table")
    document[last] = value
