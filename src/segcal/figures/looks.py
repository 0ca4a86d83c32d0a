"""How the rows of `LOSSES`, `NETWORKS` and `METRICS` are shown: labels, colours, markers, lines.

The look follows from the position of a row in its table, so a new row needs nothing here. What is
in no table gets a look from its name: the same in every figure and on every machine."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from segcal.compare import Contender
from segcal.compare.names import Settings, method_label, setting_text
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import NETWORKS

# The colours of Okabe and Ito without yellow, which is hard to see on white, and with a grey; then
# four more.
METHOD_LOOKS = (
    *(("#000000", "o"), ("#737373", "s"), ("#E69F00", "^"), ("#56B4E9", "v")),
    *(("#009E73", "<"), ("#CC79A7", "P"), ("#D55E00", "D"), ("#0072B2", "X")),
    *(("#871E00", ">"), ("#0F2DA5", "p"), ("#5A2D4B", "h"), ("#004BFF", "d")),
)
NETWORK_LOOKS: tuple[tuple[Any, str], ...] = (
    *(("-", "full"), ("--", "left"), ("-.", "bottom"), (":", "none")),
    ((0, (4, 1, 1, 1, 1, 1)), "top"),
)
# What captions say, by the set of metrics that leads.
WORDS = {
    "main": {
        "measure": "misplaced confidence",
        "voxels": "voxels near predicted foreground",
        "dashes": "",
    },
    "paper": {
        "measure": "ECE",
        "voxels": "the reference's foreground",
        "dashes": " Dashes: the mean ECE that a perfectly calibrated network with the same"
        " probabilities would have, where it is known.",
    },
}
SHADES = (0.45, -0.4, 0.65, -0.65)  # towards white, towards black


@dataclass(frozen=True)
class Look:
    """How a contender is shown in all figures."""

    label: str
    colour: str
    marker: str
    line: Any  # a line style
    fill: str  # of the marker

    def of_line(self, **changes: Any) -> dict[str, Any]:
        """Arguments for `plot`."""
        arguments = {"color": self.colour, "marker": self.marker, "linestyle": self.line}
        arguments |= {"fillstyle": self.fill, "markerfacecoloralt": "white"}
        return arguments | {"markeredgewidth": 0.6} | changes


Looks = Mapping[str, Look]  # by the key of a contender


def look_of(
    method: str, network: str = next(iter(NETWORKS)), variant: Settings = (), label: str = ""
) -> Look:
    """The look of a contender.

    The method decides colour and marker, the network the line and the fill of the marker. Settings
    that differ from the defaults give a lighter or darker shade.

    >>> look_of("mbls").colour, look_of("mbls", "transunet").colour
    ('#D55E00', '#D55E00')
    >>> look_of("my ensemble").label
    'my ensemble'
    """
    place = list(LOSSES).index(method) if method in LOSSES else len(METHOD_LOOKS)
    if place < len(METHOD_LOOKS):
        colour, marker = METHOD_LOOKS[place]
    else:
        number = zlib.crc32(method.encode())
        colour, _ = METHOD_LOOKS[8 + number % 4]  # not one of the first eight
        _, marker = METHOD_LOOKS[number // 4 % len(METHOD_LOOKS)]
    if variant:
        number = zlib.crc32(setting_text(variant).encode())
        amount = SHADES[number % len(SHADES)]
        dark = sum(to_rgb(colour)) < 0.5  # no shade darker than black
        colour = shade(colour, abs(amount) if dark else amount)
    place = list(NETWORKS).index(network) if network in NETWORKS else len(NETWORK_LOOKS)
    line, fill = NETWORK_LOOKS[min(place, len(NETWORK_LOOKS) - 1)]
    return Look(label or method_label(method), colour, marker, line, fill)


def shade(colour: str, amount: float) -> str:
    """A colour mixed with white (amount > 0) or black (amount < 0).

    >>> shade("#000000", 0.5), shade("#ff0000", -1)
    ('#808080', '#000000')
    """
    end = 1.0 if amount > 0 else 0.0
    red, green, blue = ((1 - abs(amount)) * part + abs(amount) * end for part in to_rgb(colour))
    return to_hex((red, green, blue))


def looks_of(contenders: Iterable[Contender]) -> dict[str, Look]:
    """The looks of contenders, by key."""
    looks = {}
    for c in contenders:
        variant = c.variant
        if c.shows_weights:
            variant += (("weights", c.weights),)
        if c.members > 1:
            variant += (("members", c.members),)
        looks[c.key] = look_of(c.method, c.network, variant, c.label)
    return looks


def axis_label(metric: str) -> str:
    """A metric as printed beside an axis: label, which direction is better, and unit.

    >>> axis_label("asd")
    'ASD ↓ (mm)'
    """
    row = METRICS[metric]
    return f"{row.label} {row.arrow}" + (f" ({row.unit})" if row.unit else "")
