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
    """The versions that could matter, and the state of the user's own repository if there is one."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("segcal", "torch", "monai", "lightning", "numpy", "simpleitk"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found | {"git": git_state()}


def git_state(folder: Path | None = None) -> str:
    """The commit of the working folder, with `-dirty` if files differ from it; empty outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
