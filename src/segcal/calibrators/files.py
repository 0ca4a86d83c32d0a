"""A fitted calibrator on disk: `<stem>.safetensors`, its parameters, and `<stem>.json`, its facts.

No pickle, so that reading a file runs no code. The JSON holds the SHA-256 of both together, so that
a changed or exchanged file is noticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from segcal.types import UserError

FORMAT = 1  # the version of the JSON; raised when older files can no longer be read


def write(stem: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    """Write both files; the JSON last, and each whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    data = safetensors.torch.save(ready)
    content = {"format": FORMAT, **content}
    content["sha256"] = _digest(data, content)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    for kind, payload in (("safetensors", data), ("json", text.encode())):
        path = _path(stem, kind)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(payload)
        partial.replace(path)


def saved(stem: Path) -> bool:
    """Whether both files are there."""
    return all(_path(stem, kind).is_file() for kind in ("json", "safetensors"))


def read(stem: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote; anything else is refused."""
    again = "fit the calibrator again"
    try:
        content = json.loads(_path(stem, "json").read_text(encoding="utf-8"))
        data = _path(stem, "safetensors").read_bytes()
        version, digest = content["format"], content.pop("sha256")
    except FileNotFoundError as error:
        lacks = f"there is no fitted calibrator {stem} ({error.filename} is missing)"
        raise UserError(f"{lacks}; fit it first, with segcal calibrate") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{stem}.json is damaged; {again}") from None
    if version != FORMAT:
        raise UserError(f"{stem}.json has format {version}, this segcal reads {FORMAT}; {again}")
    if digest != _digest(data, content):
        both = f"{stem}.json or {stem}.safetensors"
        raise UserError(f"{both} was changed after it was written; {again}")
    try:
        return safetensors.torch.load(data), content
    except SafetensorError:
        raise UserError(f"{stem}.safetensors is damaged; {again}") from None


def _path(stem: Path, kind: str) -> Path:
    return stem.with_name(f"{stem.name}.{kind}")  # not with_suffix: a stem may have dots


def _digest(data: bytes, content: dict[str, Any]) -> str:
    return hashlib.sha256(data + json.dumps(content, sort_keys=True).encode()).hexdigest()
