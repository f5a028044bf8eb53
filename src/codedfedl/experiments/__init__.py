"""The experiments that come with the package, one TOML file each."""

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from codedfedl.runs.config import Experiment
from codedfedl.runs.documents import read_experiment

__all__ = ["BUILT_IN", "built_in"]

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
