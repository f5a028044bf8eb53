"""The experiments that come with the package, one TOML file each."""

from importlib.resources import as_file, files
from pathlib import Path

from codedfedl.runs.config import Experiment, read_experiment

__all__ = ["BUILT_IN", "built_in"]

BUILT_IN = sorted(
    entry.name.removesuffix(".toml")
    for entry in files(__package__).iterdir()
    if entry.name.endswith(".toml")
)
"""Their names."""


def built_in(name: str, overrides: list[str] | None = None) -> Experiment:
    """Read one of the package's own experiments, such as ``table1-mnist`` or ``demo``."""
    with as_file(files(__package__) / f"{name}.toml") as path:
        return read_experiment(Path(path), overrides)
