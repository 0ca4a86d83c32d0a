"""The wheel, installed into an empty environment away from the repository, does the whole job.

`make test-wheel` runs it: an installation takes minutes. SEGCAL_WHEEL names the wheel."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel():
    path = os.environ.get("SEGCAL_WHEEL", "")
    assert path, "name the wheel in SEGCAL_WHEEL, or run make test-wheel"
    return Path(path).absolute()


def test_the_wheel_has_every_file_of_the_package(wheel):
    """Style sheets, scripts, plans and published values among them."""
    package = ROOT / "src" / "segcal"
    files = [path for path in package.rglob("*") if path.is_file()]
    expected = {f"segcal/{path.relative_to(package)}" for path in files if path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())


@pytest.fixture(scope="module")
def command(wheel, tmp_path_factory):
    """`segcal` in a new environment that knows nothing of the repository."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q"]
    constraints = ["-c", ROOT / "constraints.txt"] if sys.version_info >= (3, 11) else []
    subprocess.run([*install, *constraints, wheel], check=True, cwd=folder)
    return folder / "bin" / "segcal"


def run(command, *args, cwd):
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options = {"cwd": cwd, "env": alone, "capture_output": True, "text": True, "encoding": "utf-8"}
    done = subprocess.run([command, *args], check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demonstration_runs_there(command, tmp_path):
    done = json.loads(run(command, "demo", "--quick", "--json", cwd=tmp_path))
    assert {row["method"] for row in done["methods"]} == {"CE", "MbLS"}
    assert all(row["dice"] > 0.5 for row in done["methods"])
    report = (tmp_path / done["report"]).read_text(encoding="utf-8")
    assert "</html>" in report
    assert (tmp_path / done["picture"]).read_bytes().startswith(b"\x89PNG")


def test_a_finished_demonstration_says_where_to_go_next(command, tmp_path_factory):
    folder = next(path for path in tmp_path_factory.getbasetemp().rglob("demo-quick"))
    said = run(command, "demo", "--quick", cwd=folder.parent)
    for verb in ("prepare", "study quick", "audit"):
        assert f"segcal {verb} " in said
