"""DICOM files: elements that say to be longer than their file, for which ITK would take memory."""

from __future__ import annotations

import struct
from pathlib import Path

from segcal.data.containers.contents import damaged, read_bytes

MARK, MARK_AT = b"DICM", 128  # what tells a DICOM file, after its preamble
_IMPLICIT = b"1.2.840.10008.1.2"
_OTHERS = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.2")  # deflated, and big-endian
_SYNTAX = (0x0002, 0x0010)
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_SHORT = (
    *(b"AE", b"AS", b"AT", b"CS", b"DA", b"DS", b"DT", b"FD", b"FL", b"IS", b"LO", b"LT"),
    *(b"PN", b"SH", b"SL", b"SS", b"ST", b"TM", b"UI", b"UL", b"US"),
)
_UNDEFINED = 0xFFFFFFFF


def is_dicom(content: bytes) -> bool:
    """Whether a file that begins so is a DICOM file."""
    return content[MARK_AT:].startswith(MARK)


def check_lengths(path: Path) -> None:
    """Refuse an element that goes beyond the end of its file.

    What cannot be followed, such as deflated data or sequences of undefined length, is left to
    ITK."""
    place, syntax = MARK_AT + len(MARK), b""
    content = read_bytes(path) if is_dicom(read_bytes(path, place)) else b""
    while place + 8 <= len(content):
        tag = struct.unpack_from("<2H", content, place)
        is_meta = tag[0] == _SYNTAX[0]
        found = _element(content, place, implicit=not is_meta and syntax == _IMPLICIT)
        if found is None and is_meta:  # here all is as the standard says, or it is damage
            damaged(path, f"its element ({tag[0]:04x},{tag[1]:04x}) cannot be")
        if found is None or (not is_meta and syntax in _OTHERS):
            return
        start, length = found
        place = start + length
        if place > len(content):
            damaged(path, f"its element ({tag[0]:04x},{tag[1]:04x}) is longer than the file")
        if tag == _SYNTAX:
            syntax = content[start:place].strip(b"\0 ")


def _element(content: bytes, place: int, *, implicit: bool) -> tuple[int, int] | None:
    """Where the value of an element starts, and its length; `None` if that cannot be told."""
    kind = content[place + 4 : place + 6]
    if not implicit and kind in _SHORT:
        return place + 8, int.from_bytes(content[place + 6 : place + 8], "little")
    if not implicit and kind not in _LONG:
        return None
    start = place + (8 if implicit else 12)
    length = int.from_bytes(content[start - 4 : start], "little")
    return None if length == _UNDEFINED else (start, length)
