"""Small parts of sentences: lists, numbers, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segcal.metrics import METRICS

MINUS = "−"
NBSP = "\u00a0"  # keeps a number and its unit on one line


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    *others, final = list(names) or [""]
    return f"{', '.join(others)} {last} {final}" if others else final


def name_of(metric: str) -> str:
    """A metric as sentences call it.

    >>> name_of("dice"), name_of("misplaced")
    ('DSC', 'misplaced confidence')
    """
    return "misplaced confidence" if metric == "misplaced" else METRICS[metric].label


def capital(text: str) -> str:
    """A text that begins a line."""
    return text[0].upper() + text[1:]


def number_of(n: int, singular: str) -> str:
    """A number of things.

    >>> number_of(1, "case"), number_of(3, "case")
    ('1 case', '3 cases')
    """
    return f"{n} {singular}" if n == 1 else f"{n} {singular}s"


def grouped(groups: Mapping[str, Sequence[str]]) -> str:
    """A sentence per group that has members.

    >>> grouped({"Too much": ["LS", "FL"], "Too little": []})
    'Too much: LS and FL.'
    """
    return " ".join(f"{title}: {listed(names)}." for title, names in groups.items() if names)
