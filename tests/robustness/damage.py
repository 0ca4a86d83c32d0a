"""Damage for the fuzzers: of JSON and of bytes; how a command ends, and what it wrote."""

import copy
import json
import random
import struct
import sys
from importlib import import_module

command_line = import_module("segcal.cli.app")
VALUES = [None, True, 0, -1, 1, 1e308, 10**40, float("nan"), float("inf"), "", "x", "../../evil"]
VALUES += ["a\nb", "\0", "x[/y]", "=1+1", "\ud800", [], {}, [[]], [None], {"": {}}, "9" * 5000]
VALUES += ["<script>", "é" * 400, "a" * 300]
HOSTILE = ["0", "-1", "1e30", "nan", "inf", "99999", "99999999999999999999", "", "../x", "LIST"]
HOSTILE += ["/dev/zero", "%d", "1 1 1 1 1 1", "True", "x" * 300, "\0", "é"]
FIELDS = {  # of NIfTI
    **{40 + 2 * i: "h" for i in range(8)},
    **{76 + 4 * i: "f" for i in range(12)},
    **{252 + 2 * i: "h" for i in range(2)},
    **{256 + 4 * i: "f" for i in range(18)},
    **{68: "h", 70: "h", 72: "h", 0: "i", 344: "i", 348: "i"},
}
FLOATS = [float("nan"), float("inf"), -1.0, 0.0, 1e30, 1e-30, 352.5]
WHOLE = [-1, 0, 1, 2, 7, 99, 32767, -32768]


def changed(value, rng):
    """The same JSON with one to three places that hold something else, or are gone."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 2, 3])):
        part = value
        while isinstance(part, (dict, list)) and part:
            key = rng.choice(list(part)) if isinstance(part, dict) else rng.randrange(len(part))
            inner = part[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
                _change(part, key, rng)
                break
            part = inner
    return value


def _change(part, key, rng):
    kind = rng.random()
    if kind < 0.2:
        del part[key]
    elif kind < 0.35 and isinstance(part, dict):
        part[str(rng.choice(VALUES))] = part.pop(key)
    else:
        part[key] = rng.choice(VALUES)


def text_of(value, rng):
    """As text, now and then with damage of the text itself."""
    text = json.dumps(value).encode()
    kind = rng.random()
    if kind < 0.05:
        return text[: rng.randrange(len(text))]
    if kind < 0.1:
        place = rng.randrange(len(text))
        return text[:place] + rng.randbytes(3) + text[place + 1 :]
    if kind < 0.12:
        return rng.choice([b"[" * 100_000, b'{"a":' * 50_000, b"", b"\xff\xfe", b"null", b"5"])
    return text


def damaged(content, rng, is_nifti, text):
    """The bytes of a file with one to three changes."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.randrange(max(1, len(content)))
        kind = rng.choice(["flip", "byte", "cut", "grow", "drop", "field", "field", "field"])
        if kind == "field" and is_nifti and len(content) >= 352:
            place = rng.choice(list(FIELDS))
            letter = FIELDS[place]
            value = rng.choice(FLOATS if letter == "f" else WHOLE)
            struct.pack_into(f"<{letter}", content, place, value)
        elif kind == "field" and text:
            content = _with_hostile_value(content, rng)
        elif kind == "cut":
            del content[place:]
        elif kind == "grow":
            content[place:place] = rng.randbytes(rng.choice([1, 16, 999]))
        elif kind == "drop":
            del content[place : place + rng.choice([1, 8, 100])]
        elif content:
            changed = content[place] ^ (1 << rng.randrange(8))
            content[place] = changed if kind == "flip" else rng.randrange(256)
    return bytes(content)


def _with_hostile_value(content, rng):
    """A line of a text header with another value."""
    lines = bytes(content).split(b"\n")
    i = rng.randrange(min(14, len(lines)))
    for mark in (b"=", b":"):
        name, found, _ = lines[i].partition(mark)
        if found:
            lines[i] = name + mark + b" " + rng.choice(HOSTILE).encode("utf-8", "replace")
            break
    return bytearray(b"\n".join(lines))


def damaged_json(contents, seed, root):
    """Write one of these JSON files, damaged, into a folder of its own: its name and its path."""
    rng = random.Random(seed)
    name = rng.choice(list(contents))
    path = root / str(seed) / name
    path.parent.mkdir(parents=True)
    path.write_bytes(text_of(changed(contents[name], rng), rng))
    return name, path


def ended(arguments):
    """How a command ends: its exit code, and whether it said more than one sentence."""
    sys.argv = ["segcal", *map(str, arguments)]
    try:
        command_line.main()
    except SystemExit as end:
        return "fault: a bug" if end.code == command_line.BUG else f"ended {end.code or 0}"
    return "fault: did not end"


def everything_in(root):
    return {path for path in root.rglob("*") if not path.is_relative_to(root / "work")}
