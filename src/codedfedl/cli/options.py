"""Options that several commands share, and groups of options as one parameter of a command."""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

__all__ = [
    "Data",
    "Device",
    "Json",
    "Overrides",
    "Resume",
    "Serve",
    "Track",
    "Trust",
    "Workers",
    "grouped",
    "known_experiments",
    "known_schemes",
]

_SCHEME_NAME = re.compile(r'(?:Info\(\s*|\.info,\s*name=)"([a-z-]+)"')


def known_experiments(begun: str) -> list[str]:
    """Complete the name of a built-in experiment, or of a file, in a shell."""
    folder = files("codedfedl") / "experiments"
    found = sorted(entry.name for entry in folder.iterdir())
    built_in = [name.removesuffix(".toml") for name in found if name.endswith(".toml")]
    written = [str(path) for path in Path().glob(f"{begun}*") if path.suffix == ".toml"]
    return [name for name in built_in if name.startswith(begun)] + written


def known_schemes(begun: str) -> list[str]:
    """Complete the name of a scheme, built in or of an entry point, in a shell.

    Built-in names are read from the source: importing the schemes would be too slow for completion.
    """
    from importlib.metadata import entry_points

    spec = find_spec("codedfedl.schemes")
    folders = [] if spec is None else spec.submodule_search_locations or []
    texts = [path.read_text("utf-8") for folder in folders for path in Path(folder).glob("*.py")]
    names = [name for text in texts for name in _SCHEME_NAME.findall(text)]
    names += [entry.name for entry in entry_points(group="codedfedl.schemes")]
    return sorted(name for name in names if name.startswith(begun))


def known_devices(begun: str) -> list[str]:
    """Complete the name of a device, in a shell."""
    return [name for name in ("cpu", "cuda", "cupy", "torch") if name.startswith(begun)]


Data = Annotated[
    str | None,
    typer.Option(help="Folder of the data files; by default $CODEDFEDL_DATA.", show_default=False),
]
Device = Annotated[
    str,
    typer.Option(help="cpu, or cuda, torch or cupy if installed.", autocompletion=known_devices),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key, such as data.name=mnist.", metavar="KEY=VALUE"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]


@dataclass(frozen=True)
class Workers:
    """Where the units of a run, which are its seeds or parts of them, are computed."""

    jobs: Annotated[
        int, typer.Option(min=1, help="Processes of this machine that share the seeds.")
    ] = 1
    dask: Annotated[
        str | None,
        typer.Option(
            help="Share the seeds among the workers of this Dask scheduler, such as "
            "tcp://host:8786; needs codedfedl[dask].",
            metavar="ADDRESS",
            show_default=False,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of the linear algebra for each seed, which its last digits depend on; by "
            "default all there are, divided by --jobs, and 1 with --dask.",
            show_default=False,
        ),
    ] = None


Track = Annotated[
    list[str] | None,
    typer.Option(
        help="Send every round, the configuration and the report to tensorboard, mlflow or wandb; "
        "=WHERE names a folder, a tracking URI or a project. Repeat it for more.",
        metavar="TRACKER[=WHERE]",
        show_default=False,
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import and run the Python code that the run directory names (module:Class).",
    ),
]
Serve = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Serve a live page on this port of loopback; 0 for a free one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command have dataclasses as parameters: each of their fields becomes an option.

    A field is annotated as a parameter of a command would be, ``Annotated[…, typer.Option(…)]``.
    On the command line, the options stand where their group does.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            flat += _options(groups[parameter.name])
        else:
            flat.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def flattened(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **given)

    # A parameter without a default may follow one that has one: all are given by name.
    keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in flat]
    flattened.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    flattened.__annotations__ = {option.name: option.annotation for option in flat}
    return flattened


def _options(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.signature(group).parameters[field.name].replace(annotation=hints[field.name])
        for field in fields(group)
    ]
