"""How lines look: a colour for every scheme, the same on every page, and a dash for every run."""

from zlib import crc32

__all__ = ["DASHES", "scheme_colour"]

_COLOURS = {
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
}
_SHADES = (0.0, 0.35, -0.3, 0.55, -0.5)  # towards white above 0, towards black below

DASHES: tuple[tuple[int, ...], ...] = ((), (8, 4), (2, 3), (10, 3, 2, 3), (5, 2))
"""Of the lines of the first run, the second, …: lengths of dashes and gaps, pixels."""


def scheme_colour(scheme: str, place: int = 0) -> str:
    """Return a scheme's colour; of its second setting on a page, third, …, another shade of it."""
    names = list(_COLOURS)
    colour = _COLOURS.get(scheme, _COLOURS[names[crc32(scheme.encode()) % len(names)]])
    shade = _SHADES[place % len(_SHADES)]
    end = 255 if shade > 0 else 0
    parts = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(shade) * (end - part)):02x}" for part in parts)
