"""Sizes and inks of all figures."""

from __future__ import annotations

from typing import Any

from matplotlib.colors import to_hex, to_rgb

SINGLE, DOUBLE = 88.0, 180.0
"""The widths of a journal's column and page, in mm."""

FONT, SMALL = 7.0, 6.0
INK, SOFT, PALE = "#222222", "#6B6B6B", "#D9D9D9"
OVER, UNDER = "#B2182B", "#2166AC"
"""Overconfident and underconfident: colour-blind readers can tell red from blue."""

CENTRED: Any = {"ha": "center", "va": "center", "fontsize": SMALL}
"""Arguments for a small text around a point."""


def shade(colour: str, amount: float) -> str:
    """A colour mixed with white (amount > 0) or black (amount < 0).

    >>> shade("#000000", 0.5), shade("#ff0000", -1)
    ('#808080', '#000000')
    """
    end = 1.0 if amount > 0 else 0.0
    red, green, blue = ((1 - abs(amount)) * part + abs(amount) * end for part in to_rgb(colour))
    return to_hex((red, green, blue))


def text_on(colour: Any) -> str:
    """Black or white, whichever has more contrast on a colour.

    >>> text_on("#ffff00"), text_on("#000080")
    ('#222222', 'white')
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return INK if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18 else "white"
