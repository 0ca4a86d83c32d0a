"""Shows the examples in docstrings as code: Markdown alone would take `>>>` for quotations within
quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> (?:.+\n?)+", re.M)


class Doctests(griffe.Extension):
    """Puts a fence around every doctest, from its first `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for whatever was found in the source."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""The text with its doctests in fences.

    >>> fenced("Half.\n\n>>> half(4)\n2.0\n\nMore.")
    'Half.\n\n```pycon\n>>> half(4)\n2.0\n```\n\nMore.'
    """
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
