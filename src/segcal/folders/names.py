"""Names of cases, classes, data sets and runs: which are allowed, and the paths made from them.

Files of others hold names too. A path is made from a name by `path_of` alone."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from segcal.types import UserError

LONGEST = 180
"""Bytes of a name; systems allow 255 for a file, and endings are added."""


def check_text(what: str, text: object) -> str:
    """A name that is shown, such as a class's: not empty, on one line, and in Unicode.

    >>> check_text("class", "left lung")
    'left lung'
    """
    # isprintable is false for lone surrogates and for all that moves a terminal's cursor
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise UserError(f"{text!a:.80} cannot be a {what}'s name; use letters on one line")
    if len(text.encode()) > LONGEST:
        raise UserError(f"the name of a {what} is longer than {LONGEST} bytes: {text:.40}...")
    return text


def check_name(what: str, text: object) -> str:
    """A name that files are called by: also without slashes, and not hidden.

    >>> check_name("case", "../../evil")
    Traceback (most recent call last):
    segcal.types.UserError: a case's name must be a plain folder name; got '../../evil'
    """
    name = check_text(what, text) if text != "" else ""
    if not name or "/" in name or "\\" in name or name.startswith("."):
        raise UserError(f"a {what}'s name must be a plain folder name; got {name!a}")
    return name


def path_of(folder: Path, name: str, ending: str = "") -> Path:
    """The file or folder of that name, which is in `folder`.

    >>> str(path_of(Path("cases"), "a 1", ".image.npy"))
    'cases/a 1.image.npy'
    """
    return folder / f"{check_name('file', name)}{ending}"


def one_name(text: str) -> str:
    """The form by which names of one person are known as the same, such as "Anna" and "anna ".

    >>> one_name("Anna  B") == one_name("anna b ")
    True
    """
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().casefold()
