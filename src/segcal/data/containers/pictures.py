"""Pictures: PNG with its checksums; sizes and ends of JPEG, BMP and TIFF, which have none."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from segcal.data.containers.contents import (
    ZLIB_OR_GZIP,
    Contents,
    damaged,
    inflated,
    read_bytes,
    require_length,
    require_size,
    truncated,
)
from segcal.types import UserError

PNG = b"\x89PNG\r\n\x1a\n"
_PNG_PARTS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # numbers per pixel, by the type of colour
_NO_SIZE = (0xC4, 0xC8, 0xCC)  # JPEG markers among those of frames that have no size
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4}  # of a TIFF field, by its type
_PLAIN, _DEFLATED = (1,), (8, 32946)
_TIFF_CODES = (*_PLAIN, *_DEFLATED, 5, 32773, 7)  # and LZW, PackBits, JPEG


def png(path: Path, whole: bool) -> Contents:
    """Check a PNG, with the checksum of each of its parts, and the end of its stream."""
    content = read_bytes(path, -1 if whole else 64)
    if not content.startswith(PNG) or content[12:16] != b"IHDR" or len(content) < 33:
        truncated(path)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content[16:29])
    if colour not in _PNG_PARTS or depth not in (1, 2, 4, 8, 16) or interlaced > 1:
        damaged(path, "its header says colours that PNG does not have")
    n_parts = _PNG_PARTS[colour]
    require_size(path, (width, height), n_parts)
    if whole:
        stream = _png_stream(path, content)
        if not interlaced:
            row = 1 + (width * depth * n_parts + 7) // 8
            inflated(path, stream, height * row, ZLIB_OR_GZIP)
    return Contents((width, height), n_parts)


def _png_stream(path: Path, content: bytes) -> bytes:
    """The compressed pixels of all parts that have some."""
    place, parts = len(PNG), []
    while place + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, place)
        end = place + 12 + length
        if end > len(content):
            truncated(path)
        (known,) = struct.unpack_from(">I", content, end - 4)
        kind, part = content[place + 4 : place + 8], content[place + 8 : end - 4]
        if zlib.crc32(part, zlib.crc32(kind)) != known:
            damaged(path, "a checksum does not fit its pixels")
        if kind == b"IDAT":
            parts.append(part)
        if kind == b"IEND":
            return b"".join(parts)
        place = end
    truncated(path)


def jpeg(path: Path, whole: bool) -> Contents:
    """Check that a JPEG has a size within limits, and an end; it has no checksum."""
    content = read_bytes(path)
    if not content.startswith(b"\xff\xd8"):
        truncated(path)
    if b"\xff\xd9" not in content[-256:]:
        truncated(path)
    place = 2
    while place + 10 <= len(content) and content[place] == 0xFF:
        marker = content[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width, n_parts = struct.unpack_from(">HHB", content, place + 5)
            require_size(path, (width, height), n_parts)
            return Contents((width, height), n_parts)
        place += 2 + struct.unpack_from(">H", content, place + 2)[0] if marker != 0xFF else 1
    truncated(path)


def bmp(path: Path, whole: bool) -> Contents:
    """Check that a BMP has a size within limits, and the pixels that its header says."""
    content = read_bytes(path, -1 if whole else 54)
    if not content.startswith(b"BM") or len(content) < 54:
        truncated(path)
    (first,) = struct.unpack_from("<I", content, 10)
    width, height, _, bits, packed = struct.unpack_from("<iiHHI", content, 18)
    height = abs(height)  # negative: from the top
    require_size(path, (width, height))
    if bits not in (1, 4, 8, 16, 24, 32) or packed not in (0, 3) or first < 54:
        raise UserError(f"{path} is a packed or odd BMP; store it as PNG")
    if whole and len(content) < first + height * ((width * bits + 31) // 32 * 4):
        truncated(path)
    return Contents((width, height), max(1, bits // 8 if bits > 16 else 1))


def tiff(path: Path, whole: bool) -> Contents:
    """Check that a TIFF has one picture of a size within limits, with its pixels to their end."""
    content = read_bytes(path)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(content[:4])
    if order is None:
        truncated(path)
    try:
        fields = _tiff_fields(content, order)
    except struct.error:
        truncated(path)
    width, height = (fields.get(tag, [0])[0] for tag in (256, 257))
    bits, n_parts = fields.get(258, [1]), fields.get(277, [1])[0]
    require_size(path, (width, height), n_parts)
    code = fields.get(259, [1])[0]
    if code not in _TIFF_CODES or not 1 <= max(bits) <= 64:
        raise UserError(f"{path} is a TIFF that is packed in a rare way; store it as PNG")
    starts, lengths = ((fields.get(a) or fields.get(b) or []) for a, b in ((273, 324), (279, 325)))
    if not starts or len(starts) != len(lengths):
        damaged(path, "its header does not say where its pixels are")
    for start, length in zip(starts, lengths, strict=True):
        if start + length > len(content):
            truncated(path)
        if whole and code in _DEFLATED:
            _check_deflated(path, content[start : start + length])
    if whole and code in _PLAIN and 273 in fields:
        row = (width * n_parts * bits[0] + 7) // 8
        require_length(path, sum(lengths), height * row)
    return Contents((width, height), n_parts)


def _check_deflated(path: Path, part: bytes) -> None:
    stream = zlib.decompressobj(ZLIB_OR_GZIP)
    rest = part
    try:
        while rest and not stream.eof:
            stream.decompress(rest, 1 << 22)  # no more at a time, whatever the stream says
            rest = stream.unconsumed_tail
    except zlib.error as error:
        damaged(path, f"its compressed data are not what was written ({error})")
    if not stream.eof:
        truncated(path)


def _tiff_fields(content: bytes, order: str) -> dict[int, list[int]]:
    """The whole numbers of the first directory, by their tag."""
    (place,) = struct.unpack_from(f"{order}I", content, 4)
    (n_fields,) = struct.unpack_from(f"{order}H", content, place)
    fields = {}
    for i in range(n_fields):
        entry = place + 2 + 12 * i
        tag, kind, count = struct.unpack_from(f"{order}HHI", content, entry)
        if kind not in (3, 4) or count > len(content):
            continue
        at = entry + 8
        if count * _TIFF_BYTES[kind] > 4:
            (at,) = struct.unpack_from(f"{order}I", content, at)
        letter = "H" if kind == 3 else "I"
        fields[tag] = list(struct.unpack_from(f"{order}{count}{letter}", content, at))
    return fields
