"""Numbers and names as they stand in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable

from segcal.metrics import METRICS

MINUS = "−"
JOINED = "\u00a0"  # a number is not parted from its unit at the end of a line


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names in a row.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', '')
    """
    known = list(names)
    return f" {last} ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))


def number_of(n: int, one: str, many: str = "") -> str:
    """A number of things.

    >>> number_of(1, "case"), number_of(3, "case"), number_of(2, "class", "classes")
    ('1 case', '3 cases', '2 classes')
    """
    return f"{n} {one if n == 1 else many or one + 's'}"


def p_text(p: float) -> str:
    r"""A p-value as printed.

    >>> p_text(0.0004), p_text(0.0312), p_text(1.0)
    ('p\xa0<\xa00.001', 'p\xa0=\xa00.031', 'p\xa0=\xa01')
    """
    text = "p < 0.001" if p < 0.001 else f"p = {min(p, 1.0):.2g}"
    return text.replace(" ", JOINED)


def score(metric: str, value: float) -> str:
    r"""A mean as printed, with its unit.

    >>> score("dice", 0.87654), score("asd", 1.5)
    ('0.877', '1.500\xa0mm')
    """
    unit = METRICS[metric].unit
    return f"{value:.3f}{JOINED}{unit}" if unit else f"{value:.3f}"


def share(part: float) -> str:
    r"""A share of samples, never rounded to all or none where it is not.

    >>> share(0.5), share(0.9999), share(1.0), share(0.0001)
    ('50\xa0%', 'over 99\xa0%', '100\xa0%', 'under 1\xa0%')
    """
    if 0.99 < part < 1 or 0 < part < 0.01:
        return f"over 99{JOINED}%" if part > 0.5 else f"under 1{JOINED}%"
    return f"{100 * part:.0f}{JOINED}%"


def interval(low: float, high: float) -> str:
    """A mean's interval in brackets; nothing where there is none.

    >>> interval(0.1, 0.25)
    ' (0.100 to 0.250)'
    """
    return "" if math.isnan(low) else f" ({low:.3f} to {high:.3f})"


def signed(value: float) -> str:
    """A number with its sign, either way.

    >>> signed(0.0312), signed(-0.2)
    ('+0.031', '−0.200')
    """
    return f"{value:+.3f}".replace("-", MINUS)


def change_text(before: float, after: float) -> str:
    """From what to what, with as many decimals as it takes to see a change, five at most.

    >>> change_text(0.041, 0.0312), change_text(0.0341, 0.0342)
    ('0.041 to 0.031', '0.0341 to 0.0342')
    """
    for digits in (3, 4, 5):
        first, second = f"{before:.{digits}f}", f"{after:.{digits}f}"
        if first != second or before == after:
            break
    return f"{first} to {second}"
