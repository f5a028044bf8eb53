"""The experiments that come with the package, one TOML file each."""

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from codedfedl.errors import InputError
from codedfedl.io.names import nearest
from codedfedl.runs.config import Experiment
from codedfedl.runs.documents import read_experiment

__all__ = ["BUILT_IN", "built_in", "named_experiment", "set_options"]

BUILT_IN = sorted(
    entry.name.removesuffix(".toml")
    for entry in files(__package__).iterdir()
    if entry.name.endswith(".toml")
)
"""Names of the built-in experiments."""


def built_in(
    name: str,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> Experiment:
    """Read one of the package's own experiments, such as ``table1-mnist`` or ``demo``.

    See `read_experiment` for the parameters.
    """
    with as_file(files(__package__) / f"{name}.toml") as path:
        return read_experiment(Path(path), changes, options)


def named_experiment(
    name: str | Path, changes: Mapping[str, Any] | None = None, *, trust: bool = False
) -> Experiment:
    """Read a TOML file, or a built-in experiment where there is no such file.

    The changes are those of --set; `trust` is as in `read_experiment`.
    """
    options = set_options(changes or {})
    if not Path(name).is_file() and str(name) in BUILT_IN:
        return built_in(str(name), changes, options)
    if not Path(name).suffix:
        raise InputError(
            f"{str(name)!r} is neither a TOML file nor a built-in experiment: "
            f"{nearest(str(name), BUILT_IN)}"
        )
    return read_experiment(name, changes, options, trust=trust)


def set_options(changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the keys of --set in error messages."""
    return {key: f"--set {key}" for key in changes}
