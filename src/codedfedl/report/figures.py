"""How figures are made: without any global state, and the same to the last byte every time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal
from zlib import crc32

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from codedfedl.io.files import FIGURE_SUFFIXES, check_destination, latex_program, replacing

BLUE, ORANGE, GREY = "#1f5fa8", "#d9541e", "#5b6570"
COLOURS = (
    *(BLUE, ORANGE, "#2b8a5b", "#8a4fbf", "#b0892c"),
    *(GREY, "#c2407e", "#1397a8", "#7b3f1d", "#8fae1b"),
)
"""Of the lines of a figure, in their order."""

_SCHEME_COLOURS = {
    "uncoded": "#1f77d0",
    "coded": "#e0661a",
    "coded-newton": "#219653",
    "one-shot": "#8e5bd6",
    "fedavg": "#c79a1e",
    "greedy": "#7a8591",
    "sketch-solve": "#d9488b",
    "balanced": "#159aa8",
    "partial": "#a0582a",
    "centralised": "#86a81f",
    "cfl": "#e05252",
    "private": "#5b6ee0",
    "mifa": "#b07cc6",
    "dsag": "#3fa38a",
    "fedbuff": "#c46b52",
    "ringleader": "#6f8f4e",
    "gradient-coding": "#9a7d5a",
    "fednova": "#4f9fd0",
    "tifl": "#b8475f",
    "anytime": "#4c6b8a",
    "paced": "#d1495b",
    "malenia": "#7d7f3a",
    "fedadam": "#d98a3d",
    "fedyogi": "#a3b556",
    "fedprox": "#c2667a",
    "fedau": "#5f9e8f",
    "timelyfl": "#8c5a6e",
    "fedcompass": "#4a8fbf",
    "tangent-newton": "#14663a",
}
_SHADES = (0.0, 0.35, -0.3, 0.55, -0.5)  # towards white above 0, towards black below

DASHES: tuple[tuple[int, ...], ...] = ((), (8, 4), (2, 3), (10, 3, 2, 3), (5, 2))
"""Of the lines of the first run of a page, the second, …: lengths of dashes and gaps, pixels."""

STYLE: Mapping[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 10,
    "axes.edgecolor": GREY,
    "legend.frameon": False,
    "svg.hashsalt": "codedfedl",
    "svg.fonttype": "path",
}
_INK = "#0a0b0c"  # stands for the colour of a page's text
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
PAGE: Mapping[Any, Any] = {**STYLE, **dict.fromkeys(_INKED, _INK)}
"""For figures in a page, light or dark."""


@contextmanager
def new_figure(width: float, height: float, style: Mapping[Any, Any] = STYLE) -> Iterator[Figure]:
    """Make a figure, whose style holds for all that is drawn meanwhile; sizes are in inches."""
    with mpl.rc_context(dict(style)):
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | Path | BinaryIO, form: str | None = None) -> None:
    """Write a figure without a time stamp, so that the same figure is the same file.

    Parameters
    ----------
    form
        ``png``, ``svg``, ``pdf`` or ``pgf``; by default the path's ending.
    """
    if isinstance(path, str | Path):
        check_destination(path, FIGURE_SUFFIXES)
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            save_figure(figure, file, Path(path).suffix[1:])
        return
    stamps = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}
    without = dict.fromkeys(stamps.get(form or "", ()))
    style = dict(STYLE)
    if form == "pgf":  # LaTeX measures its texts
        style |= {"pgf.texsystem": latex_program(), "pgf.rcfonts": False}
    with mpl.rc_context(style):
        figure.savefig(
            path, format=form, dpi=160, metadata=without or None, transparent=form == "svg"
        )


def page_svg(figure: Figure) -> str:
    """Return a figure for a page: its ink is the page's, in the dark too."""
    buffer = BytesIO()
    save_figure(figure, buffer, "svg")
    text = buffer.getvalue().decode("utf-8")
    return text[text.index("<svg") :].replace(_INK, "currentColor")


@dataclass(frozen=True, eq=False)
class Picture:
    """What ``plot()`` returns: a notebook shows it, `save` writes it, `figure` is matplotlib's."""

    figure: Figure

    def save(self, path: str | Path) -> None:
        """Write it to a file that ends in .png, .svg or .pdf."""
        save_figure(self.figure, path)

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        save_figure(self.figure, file, "png")
        return file.getvalue()


def scheme_colour(scheme: str, setting: int = 0) -> str:
    """Return a scheme's colour; of its second setting on a page, third, …, another shade of it."""
    names = list(_SCHEME_COLOURS)
    colour = (
        _SCHEME_COLOURS.get(scheme) or _SCHEME_COLOURS[names[crc32(scheme.encode()) % len(names)]]
    )
    shade = _SHADES[setting % len(_SHADES)]
    end = 255 if shade > 0 else 0
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(shade) * (end - part)):02x}" for part in parts)


def log_axis(ax: Axes, which: Literal["x", "y"] = "x") -> None:
    """Make an axis logarithmic, with plain numbers, and more of them on a short one.

    Where nothing above 0 is drawn it stays as it is.
    """
    low, high = getattr(ax.dataLim, f"interval{which}")
    if not 0 < high < float("inf"):
        return
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = axis.get_view_interval()
    plain = StrMethodFormatter("{x:,g}")
    axis.set_major_formatter(plain)
    if high < 100 * low:
        axis.set_minor_locator(LogLocator(subs=(2, 3, 5, 7) if high < 10 * low else (2, 5)))
        axis.set_minor_formatter(plain)
    else:
        axis.set_minor_formatter(NullFormatter())
