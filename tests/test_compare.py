"""segcal compare, as a user meets it."""

import csv
import io
import json
import subprocess
import sys

import pytest
from synthetic_runs import scores_of, write_run
from typer.testing import CliRunner

from segcal.cli import app
from segcal.compare.tables import TABLES
from segcal.types import UserError

CASES = tuple(f"c{i}" for i in range(10))
COMMON = {"dataset": "hippocampus", "classes": ("Anterior", "Posterior"), "cases": CASES}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("compared")
    both = ({}, {"calibrator": "ts"})
    for loss, shift in (("ce", 0.0), ("focal", 0.2), ("mbls", 0.4)):
        scores = [scores_of(CASES, COMMON["classes"], shift=shift + i, seed=1) for i in range(2)]
        write_run(root, loss, loss, scores=scores, conditions=both, **COMMON)
    return root


def compare(*args):
    done = CliRunner().invoke(app, ["compare", *map(str, args)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_all_tables_go_to_standard_output(runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = compare(runs)
    assert done.exit_code == 0
    for title in (
        "Discriminative performance",
        "Calibration",
        "Ranks",
        "Tests between contenders",
        "Post-hoc calibration",
    ):
        assert f"{title}: hippocampus" in done.stdout
    assert "Backbones" not in done.stdout
    assert done.stderr == ""


def test_a_user_error_is_one_sentence_and_exit_2(runs):
    """A real process; it fails before anything heavy is loaded."""
    command = [
        sys.executable,
        "-c",
        "from segcal.cli import main; main()",
        "compare",
        str(runs),
        "--format",
        "html",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "segcal: unknown format 'html'; choose one of terminal, csv, markdown, latex\n"
    )


def test_formats(runs):
    wanted = ("--table", "calibration", "--table", "ranking")
    page = compare(runs, "--table", "calibration", "--format", "markdown").stdout
    assert page.startswith("**Calibration: hippocampus**\n\n|  | Misplaced ↓ | NLL ↓ |\n")
    paper = compare(runs, "--metrics", "paper", *wanted, "--format", "markdown").stdout
    assert "|  | ECE ↓ | CECE ↓ |\n" in paper
    assert "|  | DSC rank | ASD rank | ECE rank | CECE rank |" in paper
    assert "a perfectly calibrated network does not get 0" in paper
    rows = list(
        csv.reader(io.StringIO(compare(runs, "--table", "calibration", "--format", "csv").stdout))
    )
    assert [row[0] for row in rows] == ["method", "CE", "FL", "MbLS"]
    latex = compare(runs, *wanted, "--format", "latex").stdout
    assert latex.count(r"\begin{tabular}") == 2
    values = json.loads(compare(runs, *wanted, "--json").stdout)
    assert [table["key"] for table in values] == ["calibration", "ranking"]
    assert [row["key"] for row in values[0]["rows"]] == ["ce", "focal", "mbls"]
    assert values[0]["rows"][2]["cells"][0]["best"] is True


def test_several_tables_as_csv_are_told_apart(runs):
    text = compare(runs, "--table", "calibration", "--table", "tests", "--format", "csv").stdout
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# Calibration: hippocampus",
        "# Tests between contenders: hippocampus",
    ]
    assert "\npair,DSC" in text


def test_a_file_has_every_number_and_a_narrow_screen_too(runs, monkeypatch):
    """Without a screen a table is as wide as it needs; `COLUMNS` bounds it, by several tables below
    each other.
    """
    table = json.loads(compare(runs, "--table", "discriminative", "--json").stdout)[0]
    numbers = [
        f"{cell['value']:.{d}f} ±"
        for row in table["rows"]
        for cell, d in zip(row["cells"], table["digits"], strict=True)
    ]
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = compare(runs, "--table", "discriminative").stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = compare(runs, "--table", "discriminative").stdout
    assert (wide.count("┏"), narrow.count("┏")) == (1, 2)
    assert max(map(len, narrow.splitlines())) <= 80
    for text in (wide, narrow):
        assert "…" not in text
        assert "* is the best mean, + the second." in text
        assert all(number in text for number in numbers)


def test_out_holds_every_table_in_every_format(runs, tmp_path):
    done = compare(runs, "--out", tmp_path / "tables", "--table", "calibration", "--table", "tests")
    names = sorted(path.name for path in (tmp_path / "tables").iterdir())
    assert names == sorted(
        [
            f"{key}-hippocampus.{ending}"
            for key in ("calibration", "tests")
            for ending in ("csv", "md", "tex")
        ]
        + ["tables.json"]
    )
    assert [line.split("/")[-1] for line in done.stderr.splitlines()] == names
    assert "Calibration: hippocampus" in done.stdout


def test_a_calibrator_and_published_values(runs):
    with_paper = ("--calibrator", "ts", "--published")
    plain, with_ts = (
        json.loads(compare(runs, "--table", "calibration", "--json", *more).stdout)[0]
        for more in (("--metrics", "paper"), ("--metrics", "paper", *with_paper))
    )
    assert with_ts["title"] == "Calibration with TS: hippocampus"
    assert plain["rows"][0]["cells"][0]["value"] != with_ts["rows"][0]["cells"][0]["value"]
    assert plain["rows"][0]["cells"][0]["published"] is None
    assert with_ts["rows"][0]["cells"][0]["published"] == 0.051
    with pytest.raises(UserError, match="of its own metrics only; add --metrics paper"):
        compare(runs, *with_paper)
    with pytest.raises(UserError, match="unknown calibrator 'foo'; choose one of ts"):
        compare(runs, "--calibrator", "foo")
    with pytest.raises(UserError, match="ce has no test scores with lts; run segcal calibrate"):
        compare(runs, "--calibrator", "lts")


def test_bad_input_is_a_sentence(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        compare(tmp_path)
    with pytest.raises(
        UserError, match="there is no table backbones: it needs runs on a second network"
    ):
        compare(runs, "--table", "backbones")
    write_run(tmp_path, "half", status="running")
    with pytest.raises(UserError, match="half is not finished"):
        compare(runs, tmp_path / "half")
    write_run(tmp_path, "elsewhere", "ls", checksum="two", **COMMON)
    with pytest.raises(
        UserError, match="were trained on different preparations or splits of hippocampus"
    ):
        compare(runs, tmp_path / "elsewhere")


def test_the_help_names_every_table():
    text = compare("--help").stdout
    assert "Example: segcal compare runs/ce runs/mbls" in " ".join(text.split())
    for key in TABLES:
        assert key in text
