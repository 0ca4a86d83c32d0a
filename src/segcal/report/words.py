"""Numbers and names as they are printed in sentences."""

from __future__ import annotations

from collections.abc import Iterable

MINUS = "−"
NBSP = "\u00a0"  # keeps a number and its unit on one line


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    *others, final = list(names) or [""]
    return f"{', '.join(others)} {last} {final}" if others else final


def number_of(n: int, singular: str) -> str:
    """A number of things.

    >>> number_of(1, "case"), number_of(3, "case")
    ('1 case', '3 cases')
    """
    return f"{n} {singular}" if n == 1 else f"{n} {singular}s"
