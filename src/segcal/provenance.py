"""Where a result came from: versions, git state, an identity for each run."""

from __future__ import annotations

import platform
import subprocess
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def identity() -> str:
    """A name that no other run has."""
    return uuid.uuid4().hex


def versions() -> dict[str, str]:
    """The versions that could matter, and the commits of segcal and of the working folder."""
    known = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("segcal", "torch", "monai", "lightning", "numpy", "simpleitk"):
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            known[name] = "not installed"
    return known | {"segcal git": _state_of_segcal(), "git": git_state()}


def git_state(folder: Path | None = None) -> str:
    """The commit of a folder, with `-dirty` if files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _state_of_segcal() -> str:
    """The commit of segcal's sources; empty if it was installed, even into another repository."""
    folder = Path(__file__).parent
    is_source = folder.parent.name == "src" and (folder.parents[1] / "pyproject.toml").is_file()
    return git_state(folder) if is_source else ""
