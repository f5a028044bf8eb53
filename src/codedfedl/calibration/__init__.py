"""Fleets that are known: the paper's own."""

from codedfedl.calibration.paper import (
    FIGURE_1_SECONDS,
    figure_1_client,
    gain_by_alpha,
    paper_devices,
    paper_fleet,
)

__all__ = ["FIGURE_1_SECONDS", "figure_1_client", "gain_by_alpha", "paper_devices", "paper_fleet"]
