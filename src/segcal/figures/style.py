"""How all figures look: sizes, fonts, and the one place that gives each method its colour, marker
and line.

Figures have a white background of their own, so that they read in a dark page too, and no function
here or in the modules that draw leaves a trace in matplotlib's global settings."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

MM = 1 / 25.4
SINGLE, DOUBLE = 88 * MM, 180 * MM
"""The widths of a journal's column and page, in inches."""

FONT, SMALL = 7.0, 6.0
INK, SOFT, PALE = "#222222", "#6B6B6B", "#D9D9D9"
OVER, UNDER = "#B2182B", "#2166AC"
"""Too confident and too little: red against blue, which all readers tell apart."""

STYLE: Any = [
    "default",  # whatever a user's own settings are, our figures look the same
    {
        "font.family": "DejaVu Sans",
        "font.size": FONT,
        "axes.titlesize": FONT,
        "axes.labelsize": FONT,
        "figure.titlesize": FONT,
        "figure.labelsize": SMALL,
        "legend.fontsize": SMALL,
        "legend.frameon": False,
        "legend.handlelength": 2.2,
        "legend.columnspacing": 1.2,
        "axes.linewidth": 0.5,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "text.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "lines.linewidth": 1.0,
        "lines.markersize": 4.0,
        "hatch.linewidth": 0.4,
        "axes.titlepad": 3.0,
        "axes.labelpad": 2.0,
    },
]

# Okabe and Ito's colours without yellow, which is lost on white; a grey takes its place.
METHODS = {
    "ce": ("#000000", "o"),
    "ce_dice": ("#737373", "s"),
    "focal": ("#E69F00", "^"),
    "ecp": ("#56B4E9", "v"),
    "ls": ("#009E73", "<"),
    "svls": ("#CC79A7", "P"),
    "mbls": ("#D55E00", "D"),
    "mbls_dice": ("#0072B2", "X"),
}
OTHERS = (
    ("#8C6D00", ">"),
    ("#5E3C99", "p"),
    ("#7B3014", "h"),
    ("#1B4F4A", "d"),
)  # for losses without a row of their own
NETWORKS = {
    "unet": ("-", "full"),
    "attention_unet": ("--", "left"),
    "unetpp": ("-.", "bottom"),
    "transunet": (":", "none"),
}
OTHER_NETWORK = ((0, (4, 1, 1, 1, 1, 1)), "top")
SHADES = (0.45, -0.4, 0.65, -0.65)  # towards white, towards black


@dataclass(frozen=True)
class Look:
    """How a contender is drawn, everywhere."""

    colour: str
    marker: str
    line: Any  # a line style
    fill: str  # of the marker

    def of_line(self) -> dict[str, Any]:
        """Arguments for `plot`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "fillstyle": self.fill,
            "markerfacecoloralt": "white",
            "markeredgewidth": 0.6,
        }


def look_of(key: str) -> Look:
    """The look of a contender, from its key alone, so that it is the same in every figure and on
    every machine.

    The method gives colour and marker, the network the kind of line and how the marker is filled,
    and settings that differ from the defaults a lighter or darker shade.

    >>> look_of("mbls").colour, look_of("transunet mbls").colour, look_of("transunet mbls").line
    ('#D55E00', '#D55E00', ':')
    """
    names = [part for part in key.split() if "=" not in part]
    settings = [part for part in key.split() if "=" in part]
    method = names[-1] if names else key
    colour, marker = METHODS.get(method) or OTHERS[zlib.crc32(method.encode()) % len(OTHERS)]
    if settings:
        colour = shade(colour, SHADES[zlib.crc32(" ".join(settings).encode()) % len(SHADES)])
    line, fill = NETWORKS.get(names[0], OTHER_NETWORK) if len(names) > 1 else NETWORKS["unet"]
    return Look(colour, marker, line, fill)


def colour_of(key: str) -> str:
    """The colour of a contender."""
    return look_of(key).colour


def shade(colour: str, amount: float) -> str:
    """A colour mixed with white (amount > 0) or black (amount < 0).

    >>> shade("#000000", 0.5), shade("#ff0000", -1)
    ('#808080', '#000000')
    """
    end = 1.0 if amount > 0 else 0.0
    red, green, blue = ((1 - abs(amount)) * part + abs(amount) * end for part in to_rgb(colour))
    return to_hex((red, green, blue))


P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw under our settings, and leave matplotlib's as they were."""

    @wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(STYLE):
            return draw(*args, **kwargs)

    return inside


def panels(
    rows: int, columns: int, *, width: float = DOUBLE, height: float, **kwargs: Any
) -> tuple[Figure, NDArray[Any]]:
    """A white figure with a grid of axes."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **kwargs)
    for ax in axes.flat:
        # Ticks are made when a figure is drawn, under whatever settings hold then: these must be
        # the axes' own.
        ax.tick_params(labelsize=SMALL, labelcolor=INK, color=SOFT, width=0.5, length=2, pad=2)
    return figure, axes


def legend_size(texts: Iterable[str], width: float) -> tuple[int, float]:
    """How many columns of entries fit into a width, and the height that the legend needs, in
    inches.
    """
    known = list(texts)
    room = (6 + 1.2 * max(map(len, known), default=0)) * MM  # a handle and about 1.2 mm per letter
    columns = max(1, min(len(known), int(width / room)))
    return columns, (3.2 * math.ceil(len(known) / columns) + 1) * MM


def add_legend(
    figure: Figure,
    keys: Iterable[str],
    labels: Mapping[str, str],
    *,
    lines: bool = True,
    title: str = "",
) -> None:
    """One legend under all panels, an entry per contender in its look."""
    entries = [(look_of(key), labels[key]) for key in keys]
    handles = [
        Line2D([], [], label=text, **(look.of_line() | ({} if lines else {"linestyle": "none"})))
        for look, text in entries
    ]
    add_handles(figure, handles, title)


def add_handles(figure: Figure, handles: Sequence[Any], title: str = "") -> None:
    """A legend of any handles under all panels."""
    if handles:
        columns, _ = legend_size([str(h.get_label()) for h in handles], figure.get_size_inches()[0])
        made = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, title=title or None
        )
        made.get_title().set_fontsize(SMALL)


def say(ax: Axes, text: str) -> None:
    """Words in the middle of a panel that has nothing to show."""
    ax.text(
        0.5,
        0.5,
        text,
        transform=ax.transAxes,
        ha="center",
        va="center",
        color=SOFT,
        fontsize=SMALL,
        wrap=True,
    )


def say_missing(figure: Figure, what: Sequence[str]) -> None:
    """Words above the panels on what could not be drawn for want of a value."""
    if what:
        shown = ", ".join(what[:6]) + (f" and {len(what) - 6} more" if len(what) > 6 else "")
        letters = int(figure.get_size_inches()[0] / (1.3 * MM))
        figure.suptitle(textwrap.fill(f"no value: {shown}", letters), fontsize=SMALL, color=SOFT)


def grid(ax: Axes, axis: Any = "both") -> None:
    """Faint lines to read values by."""
    ax.grid(True, axis=axis, color=PALE, linewidth=0.4)


def text_on(colour: Any) -> str:
    """Black or white, whichever reads better on a colour.

    >>> text_on("#ffff00"), text_on("#000080")
    ('#222222', 'white')
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return INK if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 else "white"


def shortened(text: str, length: int) -> str:
    """A text that fits, its end left out if need be.

    >>> shortened("posterior horn", 10)
    'posterior…'
    """
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
