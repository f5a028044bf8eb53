"""A figure that shows itself in a notebook."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from codedfedl.report.figures import save_figure

__all__ = ["Picture"]


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
