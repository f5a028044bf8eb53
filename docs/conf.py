"""How the site is built from these pages: `make docs`."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin

import click
import typer
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic.fields import FieldInfo
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxTranslator

from codedfedl.cli import app as commands
from codedfedl.runs.config import Experiment
from codedfedl.runs.federation_sections import FederationConfig, ServerConfig
from codedfedl.runs.sections import (
    DataConfig,
    FeaturesConfig,
    FleetConfig,
    ModelConfig,
    SchemeConfig,
    TrainingConfig,
)
from codedfedl.schemes import SCHEMES

_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
release = version = _PROJECT["version"]
project_copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["generated"]  # tables that pages include
highlight_language = "none"  # output and formulas; blocks of code say what they are
smartquotes = False  # `--json` is no dash
default_role = "code"  # docstrings write names in single backticks
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_digits = False

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, with names as they are
napoleon_use_rtype = False

html_theme = "furo"
html_math_renderer = "mathml"
html_title = "codedfedl"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}


def setup(app: Sphinx) -> None:
    """Ask to see every page and signature on the way."""
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula, None))
    app.connect("source-read", _prepare)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-process-docstring", _colons_stay, priority=600)  # napoleon: 500
    app.connect("doctree-read", _tidy)


def _inline_formula(writer: SphinxTranslator, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers draw by themselves: no script, no request."""
    _write(writer, tex2mathml(node.astext()))


def _formula(writer: SphinxTranslator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    _write(writer, f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')


def _write(writer: SphinxTranslator, text: str) -> NoReturn:
    writer.body.append(text)  # type: ignore[attr-defined]
    raise nodes.SkipNode


def _prepare(_app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in the commands, and send links that leave this folder to their pages here."""
    text = source[0].replace("../../benchmarks/README.md", "../results/benchmarks.md")
    text = text.replace("](../../SECURITY.md", "](../explanation/security.md")
    if page == "reference/commands":
        text = text.replace("<!-- commands -->", _all_commands())
    if page == "reference/configuration":
        text = text.replace("<!-- tables -->", _all_tables())
        text = text.replace("<!-- schemes -->", _all_schemes())
    source[0] = text


_ARRAYS = {"float64": "FloatArray", "int64": "IntArray", "bool": "Mask", "Any": "Array"}
_ARRAY = re.compile(
    r"~?(?:numpy\.)?ndarray\[~?tuple\[~?(?:typing\.)?Any, \.\.\.\], "
    r"~?(?:numpy\.)?dtype\[~?(?:numpy\.|typing\.)?(\w+)\]\]"
)
_ARRAY_LIKE = re.compile(r"[~\w.]*_Buffer \| .*?\[complex \| bytes \| str\]")


def _short(text: str) -> str:
    """Call arrays what the code calls them."""
    text = _ARRAY_LIKE.sub("ArrayLike", text)
    return _ARRAY.sub(lambda found: _ARRAYS.get(found[1], "Array"), text)


def _shorten(
    _app: Sphinx,
    _what: str,
    _name: str,
    _thing: object,
    _options: object,
    signature: str | None,
    result: str | None,
) -> tuple[str | None, str | None]:
    return signature and _short(signature), result and _short(result)


def _colons_stay(
    _app: Sphinx, what: str, _name: str, thing: object, _options: object, lines: list[str]
) -> None:
    """Undo that what stands before a colon in a property's docstring becomes its type."""
    if what == "property":
        lines[:] = (inspect.getdoc(thing) or "").splitlines()


def _tidy(_app: Sphinx, page: nodes.document) -> None:
    """Let a type say "seconds" without a link to something of that name, and the like."""
    for link in list(page.findall(addnodes.pending_xref)):
        if link["refdomain"] == "py" and link["reftarget"].islower():
            link.replace_self(link.children)
    for kind in list(page.findall(addnodes.desc_annotation)):
        if (short := _short(kind.astext())) != kind.astext():
            kind.children = [nodes.Text(short)]
    for text in list(page.findall(nodes.Text)):
        if " -- " in text:
            text.parent.replace(text, nodes.Text(text.replace(" -- ", " – ")))


def _all_commands() -> str:
    """Return every command as Markdown, from what `--help` says of it."""
    return "\n".join(_told(typer.main.get_command(commands), "codedfedl", 2))


def _told(command: click.Command, path: str, level: int) -> list[str]:
    """Return a command, its arguments and options, and then its own commands."""
    context = click.Context(command, info_name=path)
    lines = []
    if path != "codedfedl":
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        lines += ["#" * level + f" `{path}`", "", f"    {usage}", ""]
        lines += [_paragraphs(command.help or ""), ""]
    shown = [p for p in command.get_params(context) if p.name not in ("help", *_COMPLETION)]
    if shown:
        lines += ["| argument or option | default | meaning |", "| --- | --- | --- |"]
        lines += [_row(parameter, context) for parameter in shown] + [""]
    if isinstance(command, click.Group):
        below = level if path == "codedfedl" else level + 1
        for name, sub in command.commands.items():
            lines += _told(sub, f"{path} {name}", below)
    return lines


_COMPLETION = ("install_completion", "show_completion")


def _paragraphs(text: str) -> str:
    return text.replace("\\[", "[").strip()


def _row(parameter: click.Parameter, context: click.Context) -> str:
    """Return a line of the table: name, default and meaning of a parameter."""
    name, kind = f"`{(parameter.name or '').upper()}`", ""
    if isinstance(parameter, click.Option):
        name = ", ".join(f"`{form}`" for form in parameter.opts)
        kind = "" if parameter.is_flag else parameter.make_metavar(context).replace("|", ", ")
    default = parameter.default
    known = not (default is None or isinstance(default, bool) or parameter.required)
    cells = [f"{name} {kind}".strip(), f"`{default}`" if known else "", _help(parameter)]
    return "| " + " | ".join(cells) + " |"


_TABLES = {
    "": Experiment,
    "data": DataConfig,
    "fleet": FleetConfig,
    "features": FeaturesConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "federation": FederationConfig,
    "server": ServerConfig,
    "schemes": SchemeConfig,
}
"""Of an experiment, by their names."""


def _all_tables() -> str:
    """Return every key of every table as Markdown, with its default and range."""
    lines = []
    for table, model in _TABLES.items():
        meanings = _documented(model)
        lines += [f"## `[{table}]`" if table else "## At the top", "", _summary(model), ""]
        lines += ["| key | default | values | meaning |", "| --- | --- | --- | --- |"]
        for key, field in model.model_fields.items():
            if not table and key in _TABLES:
                continue
            default = "" if field.is_required() else f"`{_plain(field.default)}`"
            cells = [f"`{key}`", default, _values(field), meanings[key]]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _all_schemes() -> str:
    """Return every setting of every built-in scheme as Markdown."""
    lines = []
    for name, scheme in sorted(SCHEMES.items()):
        meanings = {k: v for part in reversed(scheme.__mro__) for k, v in _documented(part).items()}
        settings = [field for field in fields(scheme) if field.name != "secure"]
        lines += [f"### `{name}`", "", _summary(scheme), ""]
        if settings:
            lines += ["| setting | default | meaning |", "| --- | --- | --- |"]
        for field in settings:
            default = "" if field.default is MISSING else f"`{_plain(field.default)}`"
            lines.append(f"| `{field.name}` | {default} | {meanings[field.name]} |")
        lines.append("")
    return "\n".join(lines)


def _summary(thing: type) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _documented(thing: type) -> dict[str, str]:
    """Return what a numpydoc docstring says of each attribute or parameter."""
    text = inspect.cleandoc(thing.__doc__ or "")
    section = re.search(r"^(?:Attributes|Parameters)\n-+\n(.*?)(?=^\w[^\n]*\n---|\Z)", text, _BLOCK)
    meanings = {}
    for entry in re.finditer(
        r"^(\S[^\n]*)\n((?:    [^\n]*\n?|\n)+)", (section or [""] * 2)[1], _BLOCK
    ):
        names, _, unit = entry[1].partition(" : ")
        body = " ".join(entry[2].split()).replace("|", "\\|").replace("``", "`")
        for name in names.split(","):
            meanings[name.strip()] = f"({unit}) {body}" if unit else body
    return meanings


_BLOCK = re.MULTILINE | re.DOTALL


def _plain(value: object) -> str:
    """Return a default as TOML writes it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and value and isinstance(value[0], SchemeConfig):
        return value[0].name
    return f'"{value}"' if isinstance(value, str) else f"{value}"


_SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def _values(field: FieldInfo) -> str:
    """Return the words that a key may have, and the bounds of its number."""
    words = [f'`"{word}"`' for kind in _kinds(field.annotation) for word in kind]
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([*words, *bounds])


def _kinds(annotation: object) -> Iterator[tuple[object, ...]]:
    if get_origin(annotation) is Literal:
        yield get_args(annotation)
        return
    for part in get_args(annotation):
        yield from _kinds(part)


def _help(parameter: click.Parameter) -> str:
    text = (getattr(parameter, "help", None) or "").replace("\n", " ")
    return _paragraphs(text).replace("|", "\\|")
