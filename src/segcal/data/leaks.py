"""What must not be on both sides of a split: patients, by any spelling, and images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from segcal.data.splits import NAMES, Split
from segcal.folders.names import one_name
from segcal.types import UserError

DUPLICATES = ("refuse", "allow", "drop")
"""What preparation does with identical images: by default it refuses them across splits."""


def as_one(patient_of: Mapping[str, str]) -> dict[str, str]:
    """The same patients, each in the first of its spellings.

    >>> as_one({"a": "Anna", "b": "anna ", "c": "Ben"})
    {'a': 'Anna', 'b': 'Anna', 'c': 'Ben'}
    """
    spelling: dict[str, str] = {}
    return {id: spelling.setdefault(one_name(name), name) for id, name in patient_of.items()}


def image_of(record: Mapping[str, Any]) -> str:
    """What tells the image of a case from others: its prepared array, and its intensities before.

    A window can make different images one array, all black or white."""
    return f"{record['sha256']['image']} {[tuple(limits) for limits in record['intensity']]}"


def same_images(records: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """The cases that have one image, in groups of several."""
    groups: dict[str, list[str]] = defaultdict(list)
    for id, record in records.items():
        groups[image_of(record)].append(id)
    return [ids for ids in groups.values() if len(ids) > 1]


def later_ones(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The cases whose image an earlier one has, each with the reason to leave it out."""
    reasons = {}
    for first, *others in same_images(records):
        for id in others:
            reasons[id] = f"it holds the same image as {first}"
    return reasons


def refuse_across(records: Mapping[str, Mapping[str, Any]], folds: Sequence[Split]) -> None:
    """Refuse an image that is in two splits of a fold."""
    groups = same_images(records)
    for fold in folds:
        role = {id: name for name in NAMES for id in fold[name]}
        for ids in groups:
            roles = list(dict.fromkeys(role[id] for id in ids if id in role))
            if len(roles) > 1:
                both = f"{', '.join(ids)} are the same image, across {' and '.join(roles)}"
                remedy = "--drop-duplicates leaves the later ones out, --allow-duplicates keeps all"
                raise UserError(f"{both}; {remedy}")


def check_apart(
    fitted_on: Iterable[str], reported_on: Iterable[str], of: Mapping[str, str | None], what: str
) -> None:
    """Refuse to fit on what is reported; `of` is the patient or the image of a case, if known.

    >>> check_apart(["a"], ["b"], {"a": "Anna", "b": "anna"}, "patient")
    Traceback (most recent call last):
    segcal.types.UserError: a and b are of one patient, but calibrators are fitted on the one and \
reported on the other; prepare the data with another split
    """
    first: dict[str, str] = {}
    for id in fitted_on:
        if (value := of.get(id)) is not None:
            first.setdefault(one_name(value), id)
    for id in reported_on:
        value = of.get(id)
        if value is not None and (other := first.get(one_name(value))) is not None:
            both = f"{other} and {id} are of one {what}"
            why = "calibrators are fitted on the one and reported on the other"
            raise UserError(f"{both}, but {why}; prepare the data with another split")
