"""Printed names of methods, networks and settings; nothing parses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from segcal.losses import LOSSES
from segcal.networks import NETWORKS

Settings = tuple[tuple[str, Any], ...]
"""Names and values of settings, sorted by name: `(("margin", 5.0),)`."""

MAIN_NETWORK = "unet"  # names leave it out
WEIGHTS_LABELS = {"best": "best epoch", "last": "last epoch", "nll": "lowest NLL"}


def setting_text(settings: Settings, sign: str = "=") -> str:
    """Settings as printed.

    >>> setting_text((("margin", 10.0), ("penalty", "l2")))
    'margin=10 penalty=l2'
    """
    return " ".join(f"{name}{sign}{value_text(value)}" for name, value in settings)


def value_text(value: Any) -> str:
    """The value of a setting as printed: `5` for 5.0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if is_number else str(value)


def choice_text(chosen: Mapping[int, Settings], sign: str = "=") -> str:
    """The chosen setting of each fold as printed: one, or each with the number of its folds.

    >>> five, eight = (("margin", 5.0),), (("margin", 8.0),)
    >>> choice_text({0: five, 1: five})
    'margin=5'
    >>> choice_text({0: five, 1: eight, 2: eight})
    'margin=8 (2 folds), margin=5 (1 fold)'
    """
    counts = Counter(chosen.values()).most_common()
    texts = [setting_text(settings, sign) for settings, _ in counts]
    if len(counts) == 1:
        return texts[0]
    folds = [f"{n} fold{'s' if n > 1 else ''}" for _, n in counts]
    return ", ".join(f"{text} ({n})" for text, n in zip(texts, folds, strict=True))


def method_label(method: str) -> str:
    """A method as printed.

    >>> method_label("mbls"), method_label("nnU-Net")
    ('MbLS', 'nnU-Net')
    """
    return LOSSES[method].label if method in LOSSES else method


def network_label(network: str) -> str:
    """A network as printed."""
    return NETWORKS[network].label if network in NETWORKS else network
