"""What figures share: sizes and inks, settings, panels, the legend, texts about missing values.

Figures have a white background, so that they can be read in a dark page too. No drawing function
changes the global settings of matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Container, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

if TYPE_CHECKING:  # looks need torch, a contact sheet does not
    from segcal.figures.looks import Look, Looks

MM = 1 / 25.4
SINGLE, DOUBLE = 88.0, 180.0  # the widths of a journal's column and page, in mm
FOOT = 4.0  # the height of a line below a figure, in mm
FONT, SMALL = 7.0, 6.0
INK, SOFT, PALE = "#222222", "#6B6B6B", "#D9D9D9"
CENTRED: Any = {"ha": "center", "va": "center", "fontsize": SMALL}  # a text around a point
STYLE: Any = [
    "default",  # the user's settings have no effect
    dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "figure.titlesize"), FONT),
    dict.fromkeys(("figure.labelsize", "legend.fontsize"), SMALL),
    dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    {"font.family": "DejaVu Sans", "legend.handlelength": 2.2, "legend.columnspacing": 1.2},
    {"axes.linewidth": 0.5, "axes.edgecolor": SOFT, "axes.axisbelow": True},
    {"axes.titlepad": 3.0, "axes.labelpad": 2.0},
    {"lines.linewidth": 1.0, "lines.markersize": 4.0, "hatch.linewidth": 0.4},
]

P = ParamSpec("P")
SCREEN, SHARP = 130, 2  # dots per inch in a notebook, and how many of its pixels one of them has


class Drawing(Figure):
    """A figure that a notebook shows without pyplot, which would keep every figure in memory."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and the size at which it is shown."""
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=SCREEN * SHARP)
        width, height = (round(SCREEN * inches) for inches in self.get_size_inches())
        return stream.getvalue(), {"width": width, "height": height}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a drawing function with `STYLE`, then restore the settings of matplotlib."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(STYLE):
            return draw(*args, **kwargs)

    return inside


def panels(
    rows: int, columns: int, width: float, height: float, legend: Sequence[Any] = (), **grid: Any
) -> tuple[Figure, NDArray[Any]]:
    """A white figure with a grid of axes; sizes in mm, and room for the handles of a legend."""
    if legend:
        height += _legend_size(legend, width)[1]
    figure = Drawing(figsize=(width * MM, height * MM), layout="constrained", facecolor="white")
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **grid)
    for ax in axes.flat:
        # Ticks are made when the figure is saved, with the settings of that moment. So the axes
        # must keep these settings.
        ax.tick_params(labelsize=SMALL, labelcolor=INK, color=SOFT, width=0.5, length=2, pad=2)
    return figure, axes


def wrapped(n: int, most: int) -> tuple[int, int]:
    """The rows and columns of a grid for n panels, with at most `most` in a row.

    >>> wrapped(5, 4)
    (2, 4)
    """
    columns = min(n, most)
    return -(-n // columns), columns


def switch_off(axes: Iterable[Axes]) -> None:
    """Show nothing of these axes."""
    for ax in axes:
        ax.set_axis_off()


def stacked(axes: NDArray[Any], n: int, height: int = 1) -> list[NDArray[Any]]:
    """The first n groups of `height` axes on top of each other; the others are switched off."""
    groups = []
    for row in range(0, len(axes), height):
        groups += list(axes[row : row + height].T)
    for group in groups[n:]:
        switch_off(group)
    return groups[:n]


def _legend_size(handles: Sequence[Any], width: float) -> tuple[int, float]:
    """How many columns of entries fit into a width, and the height of the legend, in mm."""
    longest = max(len(handle.get_label()) for handle in handles)
    each = 6 + 1.2 * longest  # the symbol and about 1.2 mm per letter
    columns = max(1, min(len(handles), int(width / each)))
    return columns, 3.2 * math.ceil(len(handles) / columns) + 1


def finished(
    figure: Figure, handles: Sequence[Any], *, title: str = "", missing: Sequence[str] = ()
) -> Figure:
    """The figure with a legend below the panels, and above them a text on missing values."""
    width = figure.get_size_inches()[0] / MM
    if missing:
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        text = textwrap.fill(f"no value: {', '.join(missing[:6])}{more}", int(width / 1.3))
        figure.suptitle(text, fontsize=SMALL, color=SOFT)
    if handles:
        columns, _ = _legend_size(handles, width)
        place: Any = {"loc": "outside lower center", "ncols": columns, "title": title or None}
        figure.legend(handles=handles, **place).get_title().set_fontsize(SMALL)
    return figure


def told(figure: Figure, basis: str) -> Figure:
    """The figure with a line more at its foot, which says over what its numbers are."""
    if not basis:
        return figure
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + FOOT * MM)
    foot = FOOT * MM / (height + FOOT * MM)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, foot, 1, 1 - foot))
    for legend in figure.legends:  # the layout moves the panels only
        legend.borderaxespad += FOOT * MM * 72 / SMALL  # in sizes of its font
    figure.text(0.99, 0.4 * foot, basis, ha="right", fontsize=SMALL, color=SOFT)
    return figure


def line_handles(looks: Iterable[Look], **changes: Any) -> list[Line2D]:
    """Entries of a legend: the line and marker of each contender."""
    return [Line2D([], [], label=look.label, **look.of_line(**changes)) for look in looks]


def labels_without(looks: Looks, values: Container[str]) -> list[str]:
    """The labels of the contenders that have no value."""
    return [look.label for key, look in looks.items() if key not in values]


def say(ax: Axes, text: str) -> None:
    """A text in the middle of a panel that has nothing to show."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, color=SOFT, wrap=True, **CENTRED)


def grid(ax: Axes, axis: Any = "both") -> None:
    """Faint grid lines."""
    ax.grid(True, axis=axis, color=PALE, linewidth=0.4)


def colour_bar(figure: Figure, colours: Any, label: str, length: float = 2, **where: Any) -> Any:
    """A bar that shows which colour is which value; `length` is that of its ticks."""
    bar = figure.colorbar(colours, **where)
    bar.set_label(label, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=length)
    bar.outline.set_visible(False)
    return bar


def shortened(text: str, length: int) -> str:
    """A text that fits; its end is left out if it is too long.

    >>> shortened("posterior horn", 10)
    'posterior…'
    """
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
