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
    """The versions that could matter; the commits of segcal's own sources and of the working
    folder, if there are any.
    """
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("segcal", "torch", "monai", "lightning", "numpy", "simpleitk"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"segcal git": _own_state(), "git": git_state()}


def git_state(folder: Path | None = None) -> str:
    """The commit of the working folder, with `-dirty` if files differ from it; empty outside a
    repository.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _own_state() -> str:
    """The same of segcal's sources; empty if they were installed, be it into a repository of
    somebody else.
    """
    folder = Path(__file__).parent
    return (
        git_state(folder)
        if (folder.parents[1] / "pyproject.toml").is_file() and folder.parent.name == "src"
        else ""
    )
