"""The paper's figures and Table 1, and the experiments that go beyond them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from codedfedl.reproduce.charged_hours import cold_start, private, quality, robustness, settings
from codedfedl.reproduce.deep import deep
from codedfedl.reproduce.frontiers import frontier
from codedfedl.reproduce.natural import natural
from codedfedl.reproduce.paper_results import figure_1, figure_1_and_table, table_1
from codedfedl.reproduce.reproduction import Reproduction

__all__ = ["REPRODUCTIONS", "Reproduction"]

REPRODUCTIONS: dict[str, Callable[[Reproduction], dict[str, Any]]] = {
    "fig1": figure_1,
    "fig2": partial(table_1, datasets=("mnist",)),
    "fig3": partial(table_1, datasets=("fashion-mnist",)),
    "table1": table_1,
    "all": figure_1_and_table,
    "coldstart": cold_start,
    "robustness": robustness,
    "quality": quality,
    "settings": settings,
    "frontier": frontier,
    "private": private,
    "deep": deep,
    "natural": natural,
}
"""What runs each reproduction and returns its document, by name."""
