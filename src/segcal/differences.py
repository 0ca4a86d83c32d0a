"""What differs between two tables of settings, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST = 40  # letters of a value that is told
MOST = 4  # differences in a sentence


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> str:
    """The values that differ between those found in `where` and those given here.

    >>> differences({"training": {"epochs": 5}}, {"training": {"epochs": 8}}, "runs/a")
    'training.epochs is 5 in runs/a and 8 here'
    >>> differences({"seed": 1, "split": "a" * 50}, {"split": "b" * 50}, "cases/x")
    'seed is 1 in cases/x and not set here; split in cases/x is another one'
    >>> differences({"loss": {"name": "ce"}}, {"loss": {"name": "mbls", "margin": 5}}, "runs/a")
    'loss.name is "ce" in runs/a and "mbls" here'
    """
    before, after = _flat(old), _flat(new)
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    # of two losses or networks the settings say nothing more
    other = [key.removesuffix("name") for key in keys if key.endswith(".name")]
    keys = [key for key in keys if key.endswith(".name") or not key.startswith(tuple(other))]
    lines = []
    for key in keys[:MOST]:
        values = [each.get(key) for each in (before, after)]
        told = ["not set" if value is None else json.dumps(value) for value in values]
        if max(map(len, told)) > LONGEST:
            lines.append(f"{key} in {where} is another one")
        else:
            lines.append(f"{key} is {told[0]} in {where} and {told[1]} here")
    more = f"; and {len(keys) - MOST} more" if len(keys) > MOST else ""
    return "; ".join(lines) + more


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one, with dots in its keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value
    return flat
