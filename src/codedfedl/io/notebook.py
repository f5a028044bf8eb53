"""Display in a notebook: tables in HTML, and pictures."""

from collections.abc import Iterable, Mapping
from html import escape
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from codedfedl.report.figures import Picture


MAX_ROWS = 20


def html_table(columns: Mapping[str, Iterable[Any]], title: str = "", note: str = "") -> str:
    """Return a table for a notebook, of many rows the first; names and titles are escaped.

    Examples
    --------
    >>> "<td>a&lt;b</td>" in html_table({"client": ["a<b"], "rate": [2.5]})
    True
    """
    rows = list(zip(*(list(values) for values in columns.values()), strict=True))
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = len(rows) - MAX_ROWS
    notes = [note] if note else []
    notes += [f"and {more:,} more"] if more > 0 else []
    return (
        "<table>"
        + (f"<caption><b>{escape(title)}</b></caption>" if title else "")
        + f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in notes)
    )


def _cell(value: Any) -> str:
    """Write a value as people do."""
    if value is None or (isinstance(value, Real) and np.isnan(float(value))):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return f"{number:,.0f}" if number.is_integer() and abs(number) < 1e9 else f"{number:.4g}"
    return escape(str(value))


def drawn(figure: str, *given: Any) -> "Picture":
    """Draw one of the report's figures, such as ``figures:plan_figure``.

    By its name, and when it is asked for: a fleet that is only planned with loads no matplotlib,
    and what is shown does not depend on what shows it.
    """
    module, _, function = figure.partition(":")
    draw = getattr(import_module(f"codedfedl.report.{module}"), function)
    picture: Picture = import_module("codedfedl.report.figures").Picture(draw(*given))
    return picture
