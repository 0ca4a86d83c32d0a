"""Printed names of contenders and settings. They are made from fields here, and never parsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from segcal.losses import LOSSES
from segcal.networks import NETWORKS

Settings = tuple[tuple[str, Any], ...]
"""Names and values of settings, sorted by name: `(("margin", 5.0),)`."""

MAIN_NETWORK = "unet"  # names leave it out


def setting_text(settings: Settings, sign: str = "=") -> str:
    """Settings as printed.

    >>> setting_text((("margin", 10.0), ("penalty", "l2")))
    'margin=10 penalty=l2'
    """
    return " ".join(f"{name}{sign}{_value(value)}" for name, value in settings)


def _value(value: Any) -> str:
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

    >>> method_label("ce+mbls"), method_label("nnU-Net")
    ('CE+MbLS', 'nnU-Net')
    """
    parts = method.split("+")
    return "+".join(LOSSES[part].label if part in LOSSES else part for part in parts)


def network_label(network: str) -> str:
    """A network as printed; an ensemble may have several."""
    parts = network.split("+")
    return "+".join(NETWORKS[part].label if part in NETWORKS else part for part in parts)


def key_text(method: str, network: str, variant: Settings, last: bool, members: int) -> str:
    """A contender in tables that programs read.

    >>> key_text("mbls", "transunet", (("penalty", "l2"),), False, 1)
    'transunet mbls penalty=l2'
    """
    main = network == MAIN_NETWORK
    parts = ["" if main else network, method, setting_text(variant), *_ending(last, members)]
    return " ".join(filter(None, parts))


def label_text(method: str, network: str, variant: Settings, last: bool, members: int) -> str:
    """A contender in tables and figures.

    >>> label_text("mbls", "transunet", (("penalty", "l2"),), True, 1)
    'MbLS (penalty l2), TransUNet, last epoch'
    """
    settings = f" ({setting_text(variant, ' ')})" if variant else ""
    network = "" if network == MAIN_NETWORK else network_label(network)
    parts = [method_label(method) + settings, network, *_ending(last, members)]
    return ", ".join(filter(None, parts))


def _ending(last: bool, members: int) -> tuple[str, str]:
    return "last epoch" if last else "", f"ensemble of {members}" if members > 1 else ""
