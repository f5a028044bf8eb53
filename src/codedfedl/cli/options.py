"""Options that several commands share, and functions as commands, with help from docstrings."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

_REPEATED = list[str] | None
_SECTION = re.compile(r"^(?:Parameters|Attributes)\n-+\n", re.MULTILINE)
_ENTRY = re.compile(r"(\w+)(?: : (.+))?")
_SCHEME_NAME = re.compile(r'(?:Info\(\s*|\.info,\s*name=)"([a-z-]+)"')


def known_experiments(prefix: str) -> list[str]:
    """Complete the name of a built-in experiment, or of a file, in a shell."""
    names = sorted(entry.name for entry in (files("codedfedl") / "experiments").iterdir())
    built_in = [name.removesuffix(".toml") for name in names if name.endswith(".toml")]
    written = [str(path) for path in Path().glob(f"{prefix}*") if path.suffix == ".toml"]
    return [name for name in built_in if name.startswith(prefix)] + written


def known_schemes(prefix: str) -> list[str]:
    """Complete the name of a scheme, built in or of an entry point, in a shell.

    Built-in names are read from the source: importing the schemes would be too slow for completion.
    """
    from importlib.metadata import entry_points

    spec = find_spec("codedfedl.schemes")
    folders = [] if spec is None else spec.submodule_search_locations or []
    texts = [path.read_text("utf-8") for folder in folders for path in Path(folder).glob("*.py")]
    names = [name for text in texts for name in _SCHEME_NAME.findall(text)]
    names += [entry.name for entry in entry_points(group="codedfedl.schemes")]
    return sorted(name for name in names if name.startswith(prefix))


def _known_devices(prefix: str) -> list[str]:
    """Complete the name of a device, in a shell."""
    return [name for name in ("cpu", "cuda", "cupy", "torch") if name.startswith(prefix)]


Count = Annotated[int, typer.Option(min=1)]
Port = Annotated[int, typer.Option(min=1, max=65535)]
ExperimentName = Annotated[str, typer.Argument(autocompletion=known_experiments)]
SchemeName = Annotated[str, typer.Option(autocompletion=known_schemes)]
Data = Annotated[
    str | None, typer.Option(help="Folder of the data files; by default $CODEDFEDL_DATA.")
]
Device = Annotated[
    str,
    typer.Option(help="cpu, or cuda, torch or cupy if installed.", autocompletion=_known_devices),
]
Overrides = Annotated[
    tuple[str, ...],
    typer.Option("--set", help="Override a key, such as data.name=mnist.", metavar="KEY=VALUE"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Track = Annotated[
    tuple[str, ...],
    typer.Option(
        help="Send every round, the configuration and the report to tensorboard, mlflow or wandb; "
        "=WHERE names a folder, a tracking URI or a project. Repeat it for more.",
        metavar="TRACKER[=WHERE]",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(help="Import and run the Python code that the run directory or the model names."),
]
Log = Annotated[str, typer.Option(help="The form of the log on stderr: text or json.")]
Serve = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Serve a live page on this port of loopback; 0 for a free one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@dataclass(frozen=True)
class RunOptions:
    """How the run is computed and followed.

    Attributes
    ----------
    jobs
        Processes of this machine that share the seeds.
    dask : ADDRESS
        Share the seeds among the workers of this Dask scheduler, such as tcp://host:8786; needs
        codedfedl[dask].
    threads
        Threads of the linear algebra for each seed, which its last digits depend on; by default all
        there are, divided by --jobs, and 1 with --dask.
    """

    data: Data = None
    device: Device = "cpu"
    jobs: Count = 1
    dask: str | None = None
    threads: Annotated[int | None, typer.Option(min=1)] = None
    resume: Resume = False
    track: Track = ()


def add_commands(app: typer.Typer, panels: Mapping[str, Mapping[str, Callable[..., None]]]) -> None:
    """Make functions the commands of an application, by their names in the panels of its help."""
    for panel, commands in panels.items():
        for name, command in commands.items():
            app.command(name, rich_help_panel=panel)(documented(command))


def documented(command: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command: its docstring has the help of each of its parameters.

    Positional parameters are arguments, and parameters by keyword are options. Their help stands
    under "Parameters", where ``name : WORD`` gives the name of the value. A parameter that is a
    dataclass stands for its fields, which are options in a panel of their own: its title is the
    first line of the class's docstring, and their help stands under "Attributes". A field that is a
    mapping is not an option.
    """
    text, described = _sections(command)
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    declared: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            declared += _options_of(groups[parameter.name])
        else:
            declared.append(_declared(parameter, hints[parameter.name], described))
    annotations = {parameter.name: parameter.annotation for parameter in declared}
    repeated = {name for name, kind in annotations.items() if get_args(kind)[0] == _REPEATED}

    @functools.wraps(command)
    def flattened(**values: Any) -> None:
        values |= {name: tuple(values[name] or ()) for name in repeated}
        made = {
            name: kind(**{f.name: values.pop(f.name) for f in fields(kind) if f.name in values})
            for name, kind in groups.items()
        }
        command(**made, **values)

    flattened.__doc__ = text
    flattened.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    flattened.__annotations__ = annotations
    return flattened


def _options_of(group: Any) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as options."""
    title, described = _sections(group)
    hints = get_type_hints(group, include_extras=True)
    parameters = inspect.signature(group).parameters.values()
    panel = title.split("\n")[0].removesuffix(".")
    return [
        _declared(parameter.replace(kind=parameter.KEYWORD_ONLY), hint, described, panel)
        for parameter in parameters
        if get_origin(hint := hints[parameter.name]) is not Mapping
    ]


def _declared(
    parameter: inspect.Parameter,
    hint: Any,
    described: Mapping[str, tuple[str | None, str]],
    panel: str | None = None,
) -> inspect.Parameter:
    """Return a parameter as typer understands it; all are given by name."""
    annotated = get_origin(hint) is Annotated
    kind, *infos = get_args(hint) if annotated else (hint,)
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    info: OptionInfo | ArgumentInfo
    info = copy(infos[0]) if infos else typer.Option() if is_option else typer.Argument()
    metavar, text = described.get(parameter.name, (None, info.help or ""))
    info.help, info.metavar = text.replace("[", r"\["), metavar or info.metavar
    info.rich_help_panel = panel
    if is_option and info.default is ...:
        info.default = f"--{parameter.name.replace('_', '-')}"  # without its negation
    default = parameter.default
    if kind == tuple[str, ...]:
        kind, default = _REPEATED, None
    return parameter.replace(
        kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default
    )


def _sections(documented: Any) -> tuple[str, dict[str, tuple[str | None, str]]]:
    """Return the text of a docstring, and the word and the help of each of its parameters."""
    text, *sections = _SECTION.split(inspect.getdoc(documented) or "")
    paragraphs = text.rstrip().split("\n\n")
    entries: dict[str, tuple[str | None, str]] = {}
    name = ""
    for line in "\n".join(sections).splitlines():
        if entry := _ENTRY.fullmatch(line):
            name = entry[1]
            entries[name] = (entry[2], "")
        elif line.strip():
            word, before = entries[name]
            entries[name] = (word, f"{before} {line.strip()}".lstrip())
    return "\n\n".join(_unwrapped(paragraph) for paragraph in paragraphs), entries


def _unwrapped(paragraph: str) -> str:
    r"""Join lines, which the terminal wraps again, but below a ``\b``; brackets are no markup."""
    if paragraph.startswith("\\b\n"):
        return paragraph.removeprefix("\\b\n")
    return " ".join(paragraph.split()).replace("[", r"\[")
